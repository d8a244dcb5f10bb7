"""What `capelin up` prints and what it leaves alone."""

from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin_infra.demo import DemoOptions, changed_by_others, differences
from capelin_infra.invocation import command_name


def test_next_steps_name_the_command_as_it_was_called() -> None:
    assert command_name({}) == "capelin"
    assert command_name({"UV_RUN_RECURSION_DEPTH": "1"}) == "uv run capelin"


def entry(manager: str, *fields: str, subresource: str = "") -> dict[str, Any]:
    fields_v1: dict[str, Any] = {f"f:{field}": {} for field in fields}
    return {"manager": manager, "fieldsV1": fields_v1, "subresource": subresource}


@pytest.mark.parametrize(
    ("entries", "changed"),
    [
        ([entry("capelin-cli", "spec")], False),
        # Cluster API's core owns references in the metadata, and the status.
        ([entry("capelin-cli", "spec"), entry("manager", "metadata")], False),
        ([entry("capelin-cli", "spec"), entry("manager", "spec", subresource="status")], False),
        ([entry("capelin-cli", "spec"), entry("kubectl-edit", "spec")], True),
        ([entry("capelin-cli", "metadata"), entry("kubectl-patch", "spec")], True),
    ],
)
def test_an_object_that_somebody_changed_is_known(
    entries: list[dict[str, Any]], changed: bool
) -> None:
    assert changed_by_others({"metadata": {"managedFields": entries}}) is changed


CLUSTER = Cluster.read(
    {
        "metadata": {"name": "demo"},
        "spec": {
            "topology": {
                "version": "v1.34.4",
                "controlPlane": {"replicas": 1},
                "workers": {"machinePools": [{"name": "a", "class": "a", "replicas": 4}]},
            }
        },
    }
)


def test_options_that_an_existing_demo_cluster_does_not_have_are_said() -> None:
    assert differences(CLUSTER, DemoOptions(workers=1, control_plane_replicas=2)) == [
        "Cluster demo keeps its 4 workers; change them with capelin scale demo --workers 1.",
        (
            "Cluster demo keeps its 1 control plane replicas; change them "
            "with capelin scale demo --control-plane-replicas 2."
        ),
    ]


@pytest.mark.parametrize("options", [DemoOptions(), DemoOptions(4, 1)])
def test_nothing_is_said_of_options_that_it_has_or_that_were_not_given(
    options: DemoOptions,
) -> None:
    assert differences(CLUSTER, options) == []
