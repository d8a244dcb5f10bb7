"""Status and conditions of pools and machines."""

from collections.abc import Sequence

from capelin.contract import (
    READY,
    ConditionSpec,
    find_condition,
    is_condition_true,
    provider_id_list,
)
from capelin.provider import Blocked, Initialization

from capelin_machine_pool.api import (
    MAX_STATUS_INSTANCES,
    CapelinCluster,
    CapelinMachine,
    CapelinMachinePool,
    MachinePoolStatus,
    PoolInstance,
)
from capelin_machine_pool.backends import InstanceStatus
from capelin_machine_pool.desired import DesiredPool, has_revision, node_info
from capelin_machine_pool.reasons import Reason

REPLICAS_READY = "ReplicasReady"
UP_TO_DATE = "UpToDate"
NODE_RUNNING = "NodeRunning"


def machine_conditions(observed: InstanceStatus) -> list[ConditionSpec]:
    if observed.updating:
        return [
            ConditionSpec(READY, "False", observed.reason, observed.message),
            ConditionSpec(NODE_RUNNING, "True", NODE_RUNNING),
        ]
    if observed.running and not (observed.lost or observed.failed):
        return [
            ConditionSpec(READY, "True", READY),
            ConditionSpec(NODE_RUNNING, "True", NODE_RUNNING),
        ]
    reason = Reason.NODE_DELETED if observed.lost else observed.reason
    return [
        ConditionSpec(READY, "False", f"Not{READY}", observed.message),
        ConditionSpec(NODE_RUNNING, "False", reason, observed.message),
    ]


def pool_status(pool: CapelinMachinePool, machines: Sequence[CapelinMachine]) -> MachinePoolStatus:
    """The status of a pool, without its conditions.

    It is provisioned as soon as it can have machines, and stays so: core copies
    `spec.providerIDList` only while it is, and would lose sight of the Nodes otherwise.
    """
    is_simulated = pool.spec.backend == "Simulated"
    return MachinePoolStatus(
        initialization=Initialization(provisioned=True),
        ready=True,
        infrastructure_machine_kind=CapelinMachine.resource.kind,
        instances=[
            PoolInstance(
                instance_name=machine.name,
                provider_id=machine.spec.provider_id,
                version=machine.spec.version,
                addresses=machine.status.addresses if machine.status else [],
                ready=is_ready(machine),
            )
            for machine in sorted(machines, key=lambda machine: machine.name)[:MAX_STATUS_INSTANCES]
        ],
        replicas=len(provider_ids(machines)),
        capacity=pool.spec.simulated.capacity if is_simulated else {},
        node_info=node_info(pool.spec.simulated) if is_simulated else None,
        observed_generation=pool.metadata.generation,
    )


def pool_conditions(
    desired: DesiredPool, machines: Sequence[CapelinMachine]
) -> list[ConditionSpec]:
    replicas = desired.limits.replicas
    ready = sum(is_ready(machine) for machine in machines)
    message = f"{ready} of {replicas} machines are ready"
    return [
        *(
            ConditionSpec(type_, "True", type_)
            if ready >= replicas
            else ConditionSpec(type_, "False", f"Not{type_}", message)
            for type_ in (READY, REPLICAS_READY)
        ),
        _up_to_date(desired, machines),
    ]


def asleep_pool(create: int, delete: int) -> ConditionSpec:
    """The condition of a pool whose cluster sleeps.

    Args:
        create: How many machines it creates when the cluster wakes.
        delete: How many it deletes.
    """
    message = "the control plane of its Cluster sleeps"
    if create or delete:
        message += f". When it wakes, machines to create: {create}, to delete: {delete}"
    return ConditionSpec(READY, "False", Reason.ASLEEP, message)


def provider_ids(machines: Sequence[CapelinMachine]) -> list[str]:
    """The sorted provider IDs of the machines that have a Node."""
    return provider_id_list(
        machine.spec.provider_id
        for machine in machines
        if machine.spec.provider_id and is_provisioned(machine) and not is_lost(machine)
    )


def is_provisioned(obj: CapelinCluster | CapelinMachine) -> bool:
    """Whether a cluster's infrastructure, or a machine, has been provisioned."""
    return bool(obj.status and obj.status.initialization.provisioned)


def is_ready(machine: CapelinMachine) -> bool:
    return machine.status is not None and is_condition_true(machine.status.conditions, READY)


def is_observed(machine: CapelinMachine) -> bool:
    """Whether the condition Ready of a machine is about its present spec."""
    ready = find_condition(machine.status.conditions, READY) if machine.status else None
    generation = machine.metadata.generation or 0
    return ready is not None and (ready.observed_generation or 0) >= generation


def _is_updating(machine: CapelinMachine) -> bool:
    """Whether a machine is being updated in place, or waits for it."""
    ready = find_condition(machine.status.conditions, READY) if machine.status else None
    reasons = {str(Reason.UPDATING), str(Reason.ARCHIVE_MISSING)}
    return is_provisioned(machine) and (
        not is_observed(machine) or (ready is not None and ready.reason in reasons)
    )


def update_failed(machine: CapelinMachine) -> bool:
    """Whether the update of a machine in place has failed."""
    ready = find_condition(machine.status.conditions, READY) if machine.status else None
    return ready is not None and ready.reason == str(Reason.UPDATE_FAILED)


def is_lost(machine: CapelinMachine) -> bool:
    """Whether a machine had a Node and the Node was deleted."""
    running = find_condition(machine.status.conditions, NODE_RUNNING) if machine.status else None
    return running is not None and running.reason == str(Reason.NODE_DELETED)


def _up_to_date(desired: DesiredPool, machines: Sequence[CapelinMachine]) -> ConditionSpec:
    """Whether all machines were created from the pool's present template."""
    if desired.revision is None:
        why = desired.unreadable or Blocked(Reason.WAITING_FOR_BOOTSTRAP_CONFIG, "")
        return ConditionSpec(UP_TO_DATE, "Unknown", why.reason, str(why))
    if failed := next(filter(update_failed, machines), None):
        message = (
            f"the update of the machine {failed.name} failed, and no other one is updated: read its"
            " condition Ready"
        )
        return ConditionSpec(UP_TO_DATE, "False", Reason.UPDATE_FAILED, message)
    updates = desired.revision_of_version is not None
    if updates and (updating := sum(map(_is_updating, machines))):
        message = f"{updating} machines are being updated in place"
        return ConditionSpec(UP_TO_DATE, "False", Reason.UPDATING, message)
    if outdated := sum(not has_revision(machine, desired.revision) for machine in machines):
        message = f"{outdated} machines are outdated"
        return ConditionSpec(UP_TO_DATE, "False", f"Not{UP_TO_DATE}", message)
    return ConditionSpec(UP_TO_DATE, "True", UP_TO_DATE)
