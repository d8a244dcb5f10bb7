"""Updates of machines in place: answers Cluster API's hooks for machines that are hosts.

The infrastructure provider updates a host when the version of its Machine changes. These handlers
tell Cluster API for which changes that is possible, and when the update has ended.
"""

from typing import Any, Final

import orjson
from capelin.api import Resource, Unstructured
from capelin.api.capi import Machine
from capelin.client import Client, ClientError
from capelin.contract import READY, upgrade_problem
from capelin.controller import Permission
from capelin.runtime import Failure, Response, proceed, retry_after
from capelin.runtime.v1alpha1 import (
    CanUpdateMachineSetRequest,
    CanUpdateMachineSetResponse,
    Patch,
    UpdateMachineRequest,
)

HANDLERS: Final = {
    "CanUpdateMachineSet": "can-update-machine-set-v1",
    "UpdateMachine": "update-machine-v1",
}
"""Cluster API permits one extension for each of these hooks, so an option turns them on."""
MACHINES: Final = Resource(
    "infrastructure.cluster.x-k8s.io", "v1alpha1", "CapelinMachine", "capelinmachines"
)
PERMISSIONS: Final = (
    Permission("cluster.x-k8s.io", ("machines",), ("get",)),
    Permission(MACHINES.group, (MACHINES.plural,), ("get",)),
)
_MACHINE: Final = (MACHINES.group, MACHINES.kind)
_PROFILES: Final = frozenset({"Bundle", "Commands"})
_INSTALLATION: Final = frozenset({"profile", "installCommands"})
"""Settings of hosts that only name the way to install programs."""
_SECONDS: Final = 10
_DETAILS: Final = "the condition InfrastructureReady of the Machine has the details"


def can_update_machine_set(request: CanUpdateMachineSetRequest) -> CanUpdateMachineSetResponse:
    """The changes of a MachineSet that the provider carries out in place.

    Cluster API replaces the machines if these are not all changes.
    """
    current, desired = request.current, request.desired
    before = current.machine_set.spec.template.spec.version
    after = desired.machine_set.spec.template.spec.version
    old, new = current.infrastructure_machine_template, desired.infrastructure_machine_template
    if not (_is_updatable(old) and _is_updatable(new) and _is_next(before, after)):
        return CanUpdateMachineSetResponse(status="Success")
    template: Patch | None = None
    before_hosts, after_hosts = _hosts(old), _hosts(new)
    # They may differ in the way to install programs, and in nothing else.
    if before_hosts != after_hosts and _others(before_hosts) == _others(after_hosts):
        template = _replacing("/spec/template/spec/hosts", after_hosts)
    return CanUpdateMachineSetResponse(
        status="Success",
        machine_set_patch=_replacing("/spec/template/spec/version", after),
        infrastructure_machine_template_patch=template,
    )


async def update_machine(client: Client, request: UpdateMachineRequest) -> Response:
    """Wait until the provider has updated a machine.

    Raises:
        Failure: The update has failed, or the machine is not one of this provider.
    """
    desired = request.desired
    reference = desired.machine.spec.infrastructure_ref
    if reference is None or (reference.api_group, reference.kind) != _MACHINE:
        raise Failure(f"only machines of the kind {MACHINES.kind} are updated in place")
    name, namespace = desired.machine.name, desired.machine.namespace
    try:
        machine = await client.find(Machine, name, namespace)
        infrastructure = await client.find(MACHINES, reference.name or "", namespace)
    except ClientError as error:
        raise Failure(f"the Machine {name} cannot be read: {error}") from None
    if machine is None or infrastructure is None:
        raise Failure(f"the Machine {name} does not exist")
    node = machine.status.node_info
    kubelet = node.kubelet_version if node else None
    return update_answer(desired.machine.spec.version, infrastructure, kubelet)


def update_answer(
    version: str | None, infrastructure: Unstructured, kubelet: str | None
) -> Response:
    """The state of an update.

    Args:
        version: The desired version of the Machine.
        infrastructure: The CapelinMachine as it is.
        kubelet: The version that its Node reports.

    Raises:
        Failure: The update has failed.
    """
    conditions: list[Unstructured] = infrastructure.get("status", {}).get("conditions", [])
    nothing: Unstructured = {}
    ready = next((it for it in conditions if it["type"] == READY), nothing)
    if ready.get("reason") == "UpdateFailed":
        raise Failure(f"the update failed: {_DETAILS}. Delete the Machine")
    generation = infrastructure["metadata"].get("generation", 0)
    is_observed = ready.get("observedGeneration", 0) >= generation
    if ready.get("status") == "True" and is_observed and kubelet == version:
        return proceed()
    return retry_after(_SECONDS, f"the host is being updated: {_DETAILS}")


def _is_updatable(template: Unstructured) -> bool:
    """Whether the machines of a template are hosts on which programs can be installed."""
    if template.get("kind") != f"{MACHINES.kind}Template":
        return False
    if str(template.get("apiVersion", "")).partition("/")[0] != MACHINES.group:
        return False
    spec = _machine_spec(template)
    return spec.get("backend") == "Hosts" and _hosts(template).get("profile") in _PROFILES


def _is_next(before: str | None, after: str | None) -> bool:
    """Whether kubeadm reaches a version in one step."""
    if before is None or after is None or before == after:
        return False
    try:
        return upgrade_problem(before, after) is None
    except ValueError:
        return False


def _others(hosts: Unstructured) -> Unstructured:
    return {name: value for name, value in hosts.items() if name not in _INSTALLATION}


def _hosts(template: Unstructured) -> Unstructured:
    return _machine_spec(template).get("hosts") or {}


def _machine_spec(template: Unstructured) -> Unstructured:
    return template.get("spec", {}).get("template", {}).get("spec", {})


def _replacing(path: str, value: Any) -> Patch:
    operation = {"op": "replace", "path": path, "value": value}
    return Patch(patch_type="JSONPatch", patch=orjson.dumps([operation]))
