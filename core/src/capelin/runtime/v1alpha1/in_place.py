"""The hooks that change machines instead of replacing them."""

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
    """A machine with its infrastructure machine and bootstrap config, without status."""

    machine_json: Annotated[
        Unstructured,
        Field(validation_alias="machine", serialization_alias="machine"),
        Go("sigs.k8s.io/cluster-api/api/core/v1beta2.Machine"),
    ]
    """The Machine as Cluster API sent it."""
    infrastructure_machine: RawExtension
    bootstrap_config: RawExtension | None = None

    _machine: Machine | None = PrivateAttr(default=None)

    @property
    def machine(self) -> Machine:
        """The Machine, typed. Changing it has no effect on the caller."""
        if self._machine is None:
            self._machine = Machine.read(self.machine_json)
        return self._machine


class CanUpdateMachineRequestObjects(MachineObjects):
    """One side of a comparison of machines."""


class CanUpdateMachineRequest(Request):
    """The current and the desired machine."""

    current: CanUpdateMachineRequestObjects
    desired: CanUpdateMachineRequestObjects


class CanUpdateMachineResponse(Response):
    """The changes that are possible in place, as patches of the current objects."""

    machine_patch: Patch | None = None
    infrastructure_machine_patch: Patch | None = None
    bootstrap_config_patch: Patch | None = None


@CLUSTER_API.hook(
    API_VERSION,
    tag=_TAG,
    summary="Lists the changes of a Machine that are possible in place",
    exclusive=True,
    pure=True,
)
class CanUpdateMachine(Hook[CanUpdateMachineRequest, CanUpdateMachineResponse]):
    """Called when a control plane plans a rollout. Changes without a patch replace the machine."""


class CanUpdateMachineSetRequestObjects(Part):
    """A MachineSet with the templates of its machines, without status."""

    machine_set_json: Annotated[
        Unstructured,
        Field(validation_alias="machineSet", serialization_alias="machineSet"),
        Go("sigs.k8s.io/cluster-api/api/core/v1beta2.MachineSet"),
    ]
    """The MachineSet as Cluster API sent it."""
    infrastructure_machine_template: RawExtension
    bootstrap_config_template: RawExtension | None = None

    _machine_set: MachineSet | None = PrivateAttr(default=None)

    @property
    def machine_set(self) -> MachineSet:
        """The MachineSet, typed. Changing it has no effect on the caller."""
        if self._machine_set is None:
            self._machine_set = MachineSet.read(self.machine_set_json)
        return self._machine_set


class CanUpdateMachineSetRequest(Request):
    """The current and the desired MachineSet."""

    current: CanUpdateMachineSetRequestObjects
    desired: CanUpdateMachineSetRequestObjects


class CanUpdateMachineSetResponse(Response):
    """The changes that are possible in place, as patches of the current objects."""

    machine_set_patch: Patch | None = None
    infrastructure_machine_template_patch: Patch | None = None
    bootstrap_config_template_patch: Patch | None = None


@CLUSTER_API.hook(
    API_VERSION,
    tag=_TAG,
    summary="Lists the changes of a MachineSet that are possible in place",
    exclusive=True,
    pure=True,
)
class CanUpdateMachineSet(Hook[CanUpdateMachineSetRequest, CanUpdateMachineSetResponse]):
    """Called when a MachineDeployment plans a rollout. Changes without a patch replace machines."""


class UpdateMachineRequestObjects(MachineObjects):
    """The desired machine."""


class UpdateMachineRequest(Request):
    """A machine to change."""

    desired: UpdateMachineRequestObjects


class UpdateMachineResponse(RetryResponse):
    """`retryAfterSeconds` during the update, 0 after it, `Failure` if it failed."""


@CLUSTER_API.hook(API_VERSION, tag=_TAG, summary="Changes a machine in place", exclusive=True)
class UpdateMachine(Hook[UpdateMachineRequest, UpdateMachineResponse]):
    """Called repeatedly until it reports success or failure."""
