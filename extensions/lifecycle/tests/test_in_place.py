"""The answers to Cluster API's hooks of updates in place."""

import json
from typing import Any, cast

import pytest
from capelin.api import Resource, Unstructured
from capelin.client import Client
from capelin.runtime import Failure, Response
from capelin.runtime.messages import RetryResponse
from capelin.runtime.server import read_options
from capelin.runtime.v1alpha1 import CanUpdateMachineSetRequest, UpdateMachineRequest
from capelin_lifecycle.__main__ import LifecycleOptions
from capelin_lifecycle.hooks import NAME
from capelin_lifecycle.in_place import (
    MACHINES,
    can_update_machine_set,
    update_answer,
    update_machine,
)

OLD, NEW = "v1.33.13", "v1.34.4"
BUNDLE = {"profile": "Bundle", "matchLabels": {"role": "worker"}}


def side(version: str, **spec: Any) -> dict[str, Any]:
    """A MachineSet with the template of its machines."""
    return {
        "machineSet": {
            "metadata": {"name": "racks", "namespace": "team"},
            "spec": {"template": {"spec": {"clusterName": "demo", "version": version}}},
        },
        "infrastructureMachineTemplate": {
            "apiVersion": f"{MACHINES.api_version}",
            "kind": "CapelinMachineTemplate",
            "metadata": {"name": "racks"},
            "spec": {"template": {"spec": {"backend": "Hosts", "hosts": BUNDLE, **spec}}},
        },
    }


def patches(current: dict[str, Any], desired: dict[str, Any]) -> tuple[Any, Any]:
    """The patches of the MachineSet and of the template."""
    request = CanUpdateMachineSetRequest.read({"current": current, "desired": desired})
    response = can_update_machine_set(request)
    assert response.status == "Success"
    assert response.bootstrap_config_template_patch is None
    machine_set, template = (
        json.loads(patch.patch) if patch else None
        for patch in (
            response.machine_set_patch,
            response.infrastructure_machine_template_patch,
        )
    )
    return machine_set, template


def test_next_version_is_possible_in_place() -> None:
    replaced = {"op": "replace", "path": "/spec/template/spec/version", "value": NEW}
    assert patches(side(OLD), side(NEW)) == ([replaced], None)
    commands = {**BUNDLE, "profile": "Commands", "installCommands": ["true"]}
    hosts = {"op": "replace", "path": "/spec/template/spec/hosts", "value": commands}
    assert patches(side(OLD), side(NEW, hosts=commands)) == ([replaced], [hosts])
    # Cluster API replaces the machines because of the other difference.
    labels = {**BUNDLE, "matchLabels": {"role": "other"}}
    assert patches(side(OLD), side(NEW, hosts=labels)) == ([replaced], None)


@pytest.mark.parametrize(
    ("current", "desired"),
    [
        (side(OLD), side(OLD)),
        (side(NEW), side(OLD)),
        (side(OLD), side("v1.35.4")),
        (side(OLD), side("new")),
        (side(OLD, backend="Simulated"), side(NEW, backend="Simulated")),
        (side(OLD, hosts={}), side(NEW, hosts={})),
        (side(OLD), side(NEW, hosts={"profile": "Image"})),
    ],
)
def test_other_changes_replace_machines(current: dict[str, Any], desired: dict[str, Any]) -> None:
    assert patches(current, desired) == (None, None)


def test_templates_of_other_providers_are_not_answered() -> None:
    other = side(NEW)
    other["infrastructureMachineTemplate"]["kind"] = "DevMachineTemplate"
    assert patches(side(OLD), other) == (None, None)


def infrastructure(
    status: str = "True", reason: str = "Ready", generation: int = 1
) -> Unstructured:
    condition = {"type": "Ready", "status": status, "reason": reason, "observedGeneration": 1}
    return {
        "apiVersion": MACHINES.api_version,
        "kind": MACHINES.kind,
        "metadata": {"name": "one", "namespace": "team", "generation": generation},
        "spec": {},
        "status": {"conditions": [condition]},
    }


@pytest.mark.parametrize(
    ("observed", "kubelet", "waits"),
    [
        (infrastructure(), NEW, False),
        (infrastructure(), OLD, True),
        (infrastructure(), None, True),
        (infrastructure("False", "Updating"), NEW, True),
        (infrastructure(generation=2), NEW, True),
        ({"metadata": {}}, NEW, True),
    ],
)
def test_update_ends_with_the_version_of_the_node(
    observed: Unstructured, kubelet: str | None, waits: bool
) -> None:
    answer = update_answer(NEW, observed, kubelet)
    assert (getattr(answer, "retry_after_seconds", 0) > 0) is waits


def test_failed_update_fails_the_hook() -> None:
    with pytest.raises(Failure, match="InfrastructureReady of the Machine has the details"):
        update_answer(NEW, infrastructure("False", "UpdateFailed"), OLD)


def machine(kind: str = MACHINES.kind) -> Unstructured:
    reference = {"apiGroup": MACHINES.group, "kind": kind, "name": "one"}
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Machine",
        "metadata": {"name": "one", "namespace": "team"},
        "spec": {"version": NEW, "infrastructureRef": reference},
    }


class Cluster:
    """A management cluster with some objects."""

    def __init__(self, *objects: Unstructured) -> None:
        self._objects = {obj["kind"]: obj for obj in objects}

    async def find(self, kind: Any, name: str, namespace: str) -> Any:
        assert (name, namespace) == ("one", "team")
        resource: Resource = getattr(kind, "resource", kind)
        found = self._objects.get(resource.kind)
        return found and kind.read(found)


async def test_live_objects_decide() -> None:
    async def called(*objects: Unstructured, kind: str = MACHINES.kind) -> Response:
        desired = {"machine": machine(kind), "infrastructureMachine": infrastructure()}
        request = UpdateMachineRequest.read({"desired": desired})
        return await update_machine(cast("Client", Cluster(*objects)), request)

    with pytest.raises(Failure, match="only machines of the kind CapelinMachine"):
        await called(kind="DevMachine")
    with pytest.raises(Failure, match="the Machine one does not exist"):
        await called(machine())
    updated = {**machine(), "status": {"nodeInfo": {"kubeletVersion": NEW}}}
    assert (await called(updated, infrastructure())).status == "Success"
    assert isinstance(await called(machine(), infrastructure()), RetryResponse)


@pytest.mark.parametrize(
    ("arguments", "variable", "answers"),
    [
        ([], "", False),
        (["--in-place-updates"], "", True),
        ([], "true", True),
    ],
)
def test_in_place_updates_are_off_by_default(
    arguments: list[str], variable: str, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPELIN_IN_PLACE_UPDATES", variable)
    options = read_options(LifecycleOptions, NAME, arguments)
    assert options.engine.in_place_updates is answers
