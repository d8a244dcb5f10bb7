"""Plans that `--guard` approves."""

from typing import Any, cast

import pytest
from capelin.client import Client
from capelin.errors import InvalidInputError, UserError
from capelin.runtime.fixtures import sample_cluster
from capelin.runtime.v1alpha1 import ValidateTopology
from capelin.testing.extensions import fake_request
from capelin_cli.explain.model import Reference
from capelin_cli.plan.extensions import RecordedCall
from capelin_cli.plan.guard import approve, digests_of, guards
from capelin_cli.plan.model import ClusterPlan, Plan
from capelin_lifecycle.actions.approved_plan import PLAN_ANNOTATION
from capelin_lifecycle.api import LifecyclePolicy


def cluster(name: str = "prod") -> Reference:
    return Reference(kind="Cluster", name=name, namespace="shop")


def call(name: str, **template: Any) -> RecordedCall:
    document = fake_request(ValidateTopology, sample_cluster(name, "shop"))
    document["items"][0]["object"]["spec"].update(template)
    return RecordedCall("ValidateTopology", "validate-topology-v1.lifecycle", document)


class Patches:
    """A client that records patches."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str | None, Any]] = []

    async def patch(self, kind: Any, name: str, namespace: str | None, patch: Any) -> None:
        self.made.append((f"{kind.resource.kind} {name}", namespace, patch))


def policy(name: str, action: dict[str, Any]) -> LifecyclePolicy:
    metadata = {"name": name, "namespace": "shop"}
    spec = {"hook": "ValidateTopology", "action": action}
    return LifecyclePolicy.read({"metadata": metadata, "spec": spec})


def test_the_digests_are_those_of_all_topologies_of_one_cluster() -> None:
    before, after = call("prod"), call("prod", size="large")
    alone = digests_of([before], cluster())
    both = digests_of([before, call("other", size="huge"), after], cluster())
    assert len(both) == len(alone) + 1
    assert {*alone} < {*both}
    assert digests_of([before], cluster("other")) == []


def test_only_policies_with_approved_plans_guard() -> None:
    rules = {"validate": {"rules": [{"expression": "true", "message": "never"}]}}
    assert guards([policy("planned", {"approvedPlan": {}}), policy("rules", rules)]) == {
        "shop/planned"
    }


async def test_an_approval_is_an_annotation() -> None:
    patches = Patches()
    plan = Plan(clusters=[ClusterPlan(cluster=cluster(), topologies=["a", "b"])])
    assert await approve(cast("Client", patches), plan) == ["Cluster prod"]
    annotations = {PLAN_ANNOTATION: "a,b"}
    assert patches.made == [("Cluster prod", "shop", {"metadata": {"annotations": annotations}})]


@pytest.mark.parametrize(
    ("fields", "error", "reason"),
    [
        ({"topologies": ["a"], "unknown": ["a pool"]}, UserError, "is unknown: a pool"),
        ({}, InvalidInputError, "no patch with validate-topology-v1"),
    ],
)
async def test_approve_rejects_a_plan_without_a_policy_or_with_unknown_effects(
    fields: dict[str, Any], error: type[UserError], reason: str
) -> None:
    patches = Patches()
    known = ClusterPlan(cluster=cluster("first"), topologies=["a"])
    plan = Plan(clusters=[known, ClusterPlan(cluster=cluster(), **fields)])
    with pytest.raises(error, match="of Cluster prod is not approved") as raised:
        await approve(cast("Client", patches), plan)
    assert reason in str(raised.value.reason)
    assert patches.made == []
