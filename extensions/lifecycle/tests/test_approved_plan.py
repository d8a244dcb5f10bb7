"""Plans that `capelin plan --guard` approved."""

from typing import Any

import pytest
from capelin.runtime import Failure
from capelin.runtime.fixtures import sample_cluster
from capelin.runtime.messages import read
from capelin.runtime.v1alpha1 import ValidateTopology, ValidateTopologyRequest
from capelin.testing.extensions import fake_request
from capelin_lifecycle.actions.approved_plan import (
    PLAN_ANNOTATION,
    check_approved,
    topology_digests,
)
from capelin_lifecycle.api.actions import ApprovedPlan

POOL = "DevMachinePoolTemplate"


def request(name: str = "prod") -> ValidateTopologyRequest:
    document = fake_request(ValidateTopology, sample_cluster(name))
    return read(ValidateTopology.request_type(), document)


def approved(*requests: ValidateTopologyRequest) -> dict[str, str]:
    digests = {digest for each in requests for digest in topology_digests(each)}
    return {PLAN_ANNOTATION: ",".join(sorted(digests))}


def of_pool(found: ValidateTopologyRequest) -> Any:
    (item,) = (each for each in found.items if each.object["kind"] == POOL)
    return item


def check(found: ValidateTopologyRequest, annotations: dict[str, str], **fields: Any) -> None:
    check_approved(ApprovedPlan.read(fields), "guard", found, annotations)


def test_generated_names_do_not_matter() -> None:
    check(request("other"), approved(request("prod")))


def test_a_policy_holds_another_template() -> None:
    found = request()
    of_pool(found).object["spec"]["template"]["spec"]["size"] = "large"
    with pytest.raises(Failure, match=f"policy guard: .* not contain {POOL} of MachinePool mp-0"):
        check(found, approved(request()))
    check(found, approved(request(), found))


@pytest.mark.parametrize(("field", "value"), [("replicas", 9), ("version", "v1.99.0")])
def test_a_policy_holds_another_number_or_version(field: str, value: Any) -> None:
    found = request()
    (builtin,) = (each for each in of_pool(found).variables if each.name == "builtin")
    builtin.value["machinePool"][field] = value
    with pytest.raises(Failure, match=POOL):
        check(found, approved(request()))


def test_a_policy_holds_the_removal_of_a_group() -> None:
    found = request()
    found.items = [each for each in found.items if each.holder_reference.kind != "MachinePool"]
    with pytest.raises(Failure, match="not contain the groups of workers"):
        check(found, approved(request()))


def test_only_a_required_plan_may_not_be_missing() -> None:
    check(request(), {})
    with pytest.raises(Failure, match=r"no plan is approved\. Approve one: capelin plan"):
        check(request(), {}, required=True)
