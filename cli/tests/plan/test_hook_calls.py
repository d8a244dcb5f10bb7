"""The calls of hooks in a plan, and the policies that match."""

from typing import Any

from capelin_cli.plan.extensions import RecordedCall
from capelin_cli.plan.hook_calls import hook_calls
from capelin_cli.plan.model import HookCall
from capelin_lifecycle.api import LifecyclePolicy, Policy

from .objects import CLUSTER, NAMESPACE, cluster

GATE = "before-cluster-upgrade-gate.lifecycle"


def policy(name: str, namespace: str = NAMESPACE, **spec: Any) -> Policy:
    return LifecyclePolicy.read(
        {
            "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"},
            "spec": {
                "hook": "BeforeClusterUpgrade",
                "action": {"approval": {"approvers": ["alice"]}},
                **spec,
            },
        }
    )


def call(hook: str = "BeforeClusterUpgrade", handler: str = GATE, **request: Any) -> RecordedCall:
    versions = {"fromKubernetesVersion": "v1.33.1", "toKubernetesVersion": "v1.34.1"}
    return RecordedCall(hook, handler, {"cluster": cluster(), **versions, **request})


def test_a_repeated_call_counts_once_and_has_its_policies() -> None:
    policies = [
        policy("second", order=2),
        policy("first"),
        policy("elsewhere", "other"),
        policy("suspended", suspend=True),
        policy("notice", onFailure="Continue"),
        policy("old", versions={"to": "<1.30"}),
    ]
    assert hook_calls([call(), call()], CLUSTER, policies, {}) == [
        HookCall(
            hook="BeforeClusterUpgrade",
            handler=GATE,
            from_version="v1.33.1",
            to_version="v1.34.1",
            policies=[f"{NAMESPACE}/first", f"{NAMESPACE}/second"],
        )
    ]


def test_policies_belong_to_the_lifecycle_extension() -> None:
    (found,) = hook_calls([call(handler="gate.other")], CLUSTER, [policy("first")], {})
    assert found.policies == []


def test_hooks_that_compute_and_other_clusters_do_not_count() -> None:
    other = cluster()
    other["metadata"]["name"] = "stage"
    calls = [call("GeneratePatches"), call(cluster=other)]
    assert hook_calls(calls, CLUSTER, [], {}) == []


def test_an_update_of_a_machine_is_about_its_cluster() -> None:
    machine = {"metadata": {"namespace": NAMESPACE}, "spec": {"clusterName": CLUSTER.name}}
    request = {"desired": {"machine": machine}}
    found = hook_calls([RecordedCall("UpdateMachine", "u.x", request)], CLUSTER, [], {})
    assert [each.hook for each in found] == ["UpdateMachine"]
