"""What to say of pools, machines and what is around them: status and conditions."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from capelin.api import BaseObject, Condition
from capelin.api.views.capi import Cluster
from capelin.contract.conditions import DELETING, READY, ConditionSpec, find, is_true, update
from capelin.contract.machine_pools import provider_id_list

from capelin_machine_pool.api import (
    MOST_INSTANCES,
    CapelinCluster,
    CapelinMachine,
    CapelinMachinePool,
    ClusterStatus,
    Initialization,
    MachineStatus,
    PoolStatus,
)
from capelin_machine_pool.api import Instance as PoolInstance
from capelin_machine_pool.backends import Instance

REPLICAS_READY = "ReplicasReady"
UP_TO_DATE = "UpToDate"
NODE_RUNNING = "NodeRunning"
LOST = "Lost"
REFUSED = "Refused"

WAITING_FOR_ENDPOINT = "WaitingForControlPlaneEndpoint"
WAITING_FOR_OWNER = "WaitingForOwner"
WAITING_FOR_INFRASTRUCTURE = "WaitingForClusterInfrastructureReady"
WAITING_FOR_VERSION = "WaitingForVersion"
WAITING_FOR_BOOTSTRAP_CONFIG = "WaitingForBootstrapConfig"
WAITING_FOR_BOOTSTRAP_DATA = "WaitingForBootstrapData"
WAITING_FOR_CONTROL_PLANE = "WaitingForControlPlaneInitialized"
NOT_DELETING = ConditionSpec(DELETING, "False", "NotDeleting")


def cluster_status(
    infrastructure: CapelinCluster, cluster: Cluster, paused: ConditionSpec, now: datetime
) -> ClusterStatus:
    """The status of what is around machines: nothing could be missing but the API's endpoint.

    Core connects to the API as soon as the infrastructure is provisioned; where that fails, it
    tries again 30 s later.
    """
    before = infrastructure.status or ClusterStatus()
    endpoint = infrastructure.spec.control_plane_endpoint or cluster.spec.control_plane_endpoint
    provisioned = bool(before.initialization.provisioned) or bool(endpoint.host)
    ready = (
        ConditionSpec(READY, "True", READY)
        if provisioned
        else ConditionSpec(
            READY,
            "False",
            WAITING_FOR_ENDPOINT,
            "the control plane has not said yet where the API answers; if its provider never does,"
            " say it in spec.controlPlaneEndpoint",
        )
    )
    return ClusterStatus(
        conditions=conditions(
            infrastructure, before.conditions, [ready, NOT_DELETING, paused], now
        ),
        initialization=Initialization(provisioned=provisioned),
        failure_domains=infrastructure.spec.failure_domains,
        ready=provisioned,
        observed_generation=infrastructure.metadata.generation,
    )


def machine_status(
    machine: CapelinMachine,
    instance: Instance,
    *,
    failure_domain: str | None,
    paused: ConditionSpec,
    now: datetime,
) -> MachineStatus:
    """The status of a machine. Once provisioned, it stays so: core watches its node from then."""
    before = machine.status or MachineStatus()
    provisioned = bool(before.initialization.provisioned) or instance.running
    running = instance.running and not instance.lost
    node = (
        ConditionSpec(NODE_RUNNING, "True", NODE_RUNNING)
        if running
        else ConditionSpec(
            NODE_RUNNING, "False", LOST if instance.lost else "Starting", instance.message
        )
    )
    ready = ConditionSpec(READY, node.status, READY if running else f"Not{READY}", node.message)
    return MachineStatus(
        conditions=conditions(machine, before.conditions, [ready, node, NOT_DELETING, paused], now),
        initialization=Initialization(provisioned=provisioned),
        addresses=list(instance.addresses) or before.addresses,
        failure_domain=failure_domain,
        ready=provisioned,
        observed_generation=machine.metadata.generation,
    )


def pool_status(
    pool: CapelinMachinePool,
    machines: Sequence[CapelinMachine],
    *,
    replicas: int,
    up_to_date: int | None,
    paused: ConditionSpec,
    now: datetime,
) -> PoolStatus:
    """The status of a pool; `up_to_date` is None while its bootstrap config is not there.

    It is provisioned as soon as it can have machines, and stays so: core copies the list of its
    machines only while it is, and would lose sight of them otherwise.
    """
    ready = sum(is_ready(machine) for machine in machines)
    missing = f"{ready} of {replicas} machines are ready"
    here = (
        ConditionSpec(REPLICAS_READY, "True", REPLICAS_READY)
        if ready >= replicas
        else ConditionSpec(REPLICAS_READY, "False", f"Not{REPLICAS_READY}", missing)
    )
    whole = ConditionSpec(
        READY, here.status, READY if here.status == "True" else f"Not{READY}", here.message
    )
    return PoolStatus(
        conditions=conditions(
            pool,
            _before(pool),
            [whole, here, _currency(len(machines), up_to_date), NOT_DELETING, paused],
            now,
        ),
        initialization=Initialization(provisioned=True),
        infrastructure_machine_kind=CapelinMachine.resource.kind,
        instances=[
            PoolInstance(
                instance_name=machine.name,
                provider_id=machine.spec.provider_id,
                version=machine.spec.version,
                ready=is_ready(machine),
            )
            for machine in sorted(machines, key=lambda machine: machine.name)[:MOST_INSTANCES]
        ],
        replicas=len(provider_ids(machines)),
        ready=True,
        capacity=pool.spec.simulated.capacity,
        observed_generation=pool.metadata.generation,
    )


def provider_ids(machines: Sequence[CapelinMachine]) -> list[str]:
    """The machines that have become nodes and still are, as core wants to see them."""
    return provider_id_list(
        machine.spec.provider_id
        for machine in machines
        if machine.spec.provider_id and is_provisioned(machine) and not is_lost(machine)
    )


def is_provisioned(machine: CapelinMachine) -> bool:
    """Whether a machine has become a node once."""
    return bool(machine.status and machine.status.initialization.provisioned)


def is_ready(machine: CapelinMachine) -> bool:
    """Whether a machine runs now."""
    return machine.status is not None and is_true(machine.status.conditions, READY)


def is_lost(machine: CapelinMachine) -> bool:
    """Whether a machine had become a node, and the node is gone."""
    running = find(machine.status.conditions, NODE_RUNNING) if machine.status else None
    return running is not None and running.reason == LOST


def deleting(message: str) -> ConditionSpec:
    """What to say of an object that is to go and cannot yet."""
    return ConditionSpec(DELETING, "True", DELETING, message)


def said(obj: BaseObject, *aspects: ConditionSpec, now: datetime) -> list[Condition]:
    """The conditions of an object with these changed, and all else as it was."""
    before = _before(obj)
    merged: Mapping[str, ConditionSpec] = {
        **{condition.type: ConditionSpec.of(condition) for condition in before},
        **{aspect.type: aspect for aspect in aspects},
    }
    return conditions(obj, before, list(merged.values()), now)


def conditions(
    obj: BaseObject, before: Sequence[Condition], aspects: Sequence[ConditionSpec], now: datetime
) -> list[Condition]:
    """Conditions with the times at which they changed."""
    return update(before, aspects, now=now, generation=obj.metadata.generation)


def _currency(machines: int, up_to_date: int | None) -> ConditionSpec:
    """Whether a pool's machines are of the wanted making."""
    if up_to_date is None:
        message = (
            "the bootstrap config that its MachinePool names in"
            " spec.template.spec.bootstrap.configRef is not there, so no machine is made or"
            " replaced; make it again, or name another"
        )
        return ConditionSpec(UP_TO_DATE, "Unknown", WAITING_FOR_BOOTSTRAP_CONFIG, message)
    if outdated := machines - up_to_date:
        message = f"{outdated} machines are outdated"
        return ConditionSpec(UP_TO_DATE, "False", f"Not{UP_TO_DATE}", message)
    return ConditionSpec(UP_TO_DATE, "True", UP_TO_DATE)


def _before(obj: BaseObject) -> list[Condition]:
    match obj:
        case CapelinCluster() | CapelinMachine() | CapelinMachinePool():
            return obj.status.conditions if obj.status else []
        case _:
            return []
