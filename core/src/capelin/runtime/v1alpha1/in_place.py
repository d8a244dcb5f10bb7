"""The hooks by which machines are changed instead of replaced."""

from typing import Annotated

from pydantic import Field, PrivateAttr

from capelin.api import Unstructured
from capelin.api.capi import Machine, MachineSet
from capelin.runtime.catalog import Hook
from capelin.runtime.messages import Go, Part, RawExtension, Request, Response, RetryResponse
from capelin.runtime.v1alpha1.common import API_VERSION, CLUSTER_API, Patch

GO_PACKAGE = "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"

_TAG = "In-Place Update Hooks"


class MachineObjects(Part):
    """A machine with what it is made from, without status."""

    machine_json: Annotated[
        Unstructured,
        Field(validation_alias="machine", serialization_alias="machine"),
        Go("sigs.k8s.io/cluster-api/api/core/v1beta2.Machine"),
    ]
    """The Machine as it came."""
    infrastructure_machine: RawExtension
    bootstrap_config: RawExtension | None = None

    _machine: Machine | None = PrivateAttr(default=None)

    @property
    def machine(self) -> Machine:
        """The Machine, typed. To change it means nothing to the caller."""
        if self._machine is None:
            self._machine = Machine.read(self.machine_json)
        return self._machine


class CanUpdateMachineRequestObjects(MachineObjects):
    """One side of a comparison of machines."""


class CanUpdateMachineRequest(Request):
    """A machine as it is and as it is wanted."""

    current: CanUpdateMachineRequestObjects
    desired: CanUpdateMachineRequestObjects


class CanUpdateMachineResponse(Response):
    """What of the difference can be done in place, as patches of what is there now."""

    machine_patch: Patch | None = None
    infrastructure_machine_patch: Patch | None = None
    bootstrap_config_patch: Patch | None = None


@CLUSTER_API.hook(
    API_VERSION,
    tag=_TAG,
    summary="Says what of a Machine can change in place",
    exclusive=True,
    pure=True,
)
class CanUpdateMachine(Hook[CanUpdateMachineRequest, CanUpdateMachineResponse]):
    """Called when a control plane plans a rollout; what no patch covers replaces the machine."""


class CanUpdateMachineSetRequestObjects(Part):
    """A MachineSet with the templates of its machines, without status."""

    machine_set_json: Annotated[
        Unstructured,
        Field(validation_alias="machineSet", serialization_alias="machineSet"),
        Go("sigs.k8s.io/cluster-api/api/core/v1beta2.MachineSet"),
    ]
    """The MachineSet as it came."""
    infrastructure_machine_template: RawExtension
    bootstrap_config_template: RawExtension | None = None

    _machine_set: MachineSet | None = PrivateAttr(default=None)

    @property
    def machine_set(self) -> MachineSet:
        """The MachineSet, typed. To change it means nothing to the caller."""
        if self._machine_set is None:
            self._machine_set = MachineSet.read(self.machine_set_json)
        return self._machine_set


class CanUpdateMachineSetRequest(Request):
    """A MachineSet as it is and as it is wanted."""

    current: CanUpdateMachineSetRequestObjects
    desired: CanUpdateMachineSetRequestObjects


class CanUpdateMachineSetResponse(Response):
    """What of the difference can be done in place, as patches of what is there now."""

    machine_set_patch: Patch | None = None
    infrastructure_machine_template_patch: Patch | None = None
    bootstrap_config_template_patch: Patch | None = None


@CLUSTER_API.hook(
    API_VERSION,
    tag=_TAG,
    summary="Says what of a MachineSet can change in place",
    exclusive=True,
    pure=True,
)
class CanUpdateMachineSet(Hook[CanUpdateMachineSetRequest, CanUpdateMachineSetResponse]):
    """Called when a MachineDeployment plans a rollout; what no patch covers replaces machines."""


class UpdateMachineRequestObjects(MachineObjects):
    """A machine as it is wanted."""


class UpdateMachineRequest(Request):
    """A machine to change."""

    desired: UpdateMachineRequestObjects


class UpdateMachineResponse(RetryResponse):
    """`retryAfterSeconds` while it goes on, 0 when it is done, `Failure` when it failed."""


@CLUSTER_API.hook(API_VERSION, tag=_TAG, summary="Changes a machine in place", exclusive=True)
class UpdateMachine(Hook[UpdateMachineRequest, UpdateMachineResponse]):
    """Called again and again until it says that it is done or has failed."""
