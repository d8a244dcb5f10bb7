"""Status and conditions of pools, machines and the cluster infrastructure."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from capelin.api import BaseObject, Condition
from capelin.api.views.capi import Cluster
from capelin.contract.conditions import DELETING, READY, ConditionSpec, find, is_true, update
from capelin.contract.machine_pools import provider_id_list
from capelin.provider import Blocked

from capelin_machine_pool.api import (
    MAX_STATUS_INSTANCES,
    CapelinCluster,
    CapelinMachine,
    CapelinMachinePool,
    ClusterStatus,
    Initialization,
    MachinePoolStatus,
    MachineStatus,
    PoolInstance,
)
from capelin_machine_pool.backends import InstanceStatus
from capelin_machine_pool.desired import DesiredPool, has_revision

REPLICAS_READY = "ReplicasReady"
UP_TO_DATE = "UpToDate"
NODE_RUNNING = "NodeRunning"
NODE_DELETED = "NodeDeleted"
NODE_STARTING = "Starting"
INVALID_CONFIGURATION = "InvalidConfiguration"

WAITING_FOR_ENDPOINT = "WaitingForControlPlaneEndpoint"
WAITING_FOR_OWNER = "WaitingForOwner"
WAITING_FOR_VERSION = "WaitingForVersion"
WAITING_FOR_BOOTSTRAP_CONFIG = "WaitingForBootstrapConfig"
NOT_DELETING = ConditionSpec(DELETING, "False", "NotDeleting")


def cluster_status(
    infrastructure: CapelinCluster, cluster: Cluster, paused: ConditionSpec, now: datetime
) -> ClusterStatus:
    """The status of a cluster's infrastructure: provisioned as soon as there is an endpoint.

    Core connects to the endpoint as soon as the infrastructure is provisioned, and tries a failed
    connection again only after 30 s. So it is not provisioned earlier.
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
            "the control plane has no endpoint yet; if its provider never sets one, set"
            " spec.controlPlaneEndpoint",
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
    instance: InstanceStatus,
    *,
    failure_domain: str | None,
    paused: ConditionSpec,
    now: datetime,
) -> MachineStatus:
    """The status of a machine. It stays provisioned: core watches its Node from then on."""
    before = machine.status or MachineStatus()
    provisioned = bool(before.initialization.provisioned) or instance.running
    running = instance.running and not instance.lost
    reason = NODE_DELETED if instance.lost else NODE_STARTING
    node = (
        ConditionSpec(NODE_RUNNING, "True", NODE_RUNNING)
        if running
        else ConditionSpec(NODE_RUNNING, "False", reason, instance.message)
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
    desired: DesiredPool,
    machines: Sequence[CapelinMachine],
    *,
    paused: ConditionSpec,
    now: datetime,
) -> MachinePoolStatus:
    """The status of a pool.

    It is provisioned as soon as it can have machines, and stays so: core copies
    `spec.providerIDList` only while it is, and would lose sight of the Nodes otherwise.
    """
    replicas = desired.limits.replicas
    ready_machines = sum(is_ready(machine) for machine in machines)
    if ready_machines >= replicas:
        ready = ConditionSpec(READY, "True", READY)
        replicas_ready = ConditionSpec(REPLICAS_READY, "True", REPLICAS_READY)
    else:
        message = f"{ready_machines} of {replicas} machines are ready"
        ready = ConditionSpec(READY, "False", f"Not{READY}", message)
        replicas_ready = ConditionSpec(REPLICAS_READY, "False", f"Not{REPLICAS_READY}", message)
    return MachinePoolStatus(
        conditions=conditions(
            pool,
            _present(pool),
            [ready, replicas_ready, _up_to_date(desired, machines), NOT_DELETING, paused],
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
            for machine in sorted(machines, key=lambda machine: machine.name)[:MAX_STATUS_INSTANCES]
        ],
        replicas=len(provider_ids(machines)),
        ready=True,
        capacity=pool.spec.simulated.capacity,
        observed_generation=pool.metadata.generation,
    )


def provider_ids(machines: Sequence[CapelinMachine]) -> list[str]:
    """The sorted provider IDs of the machines that have a Node."""
    return provider_id_list(
        machine.spec.provider_id
        for machine in machines
        if machine.spec.provider_id and is_provisioned(machine) and not is_lost(machine)
    )


def is_provisioned(machine: CapelinMachine) -> bool:
    """Whether a machine has had a Node."""
    return bool(machine.status and machine.status.initialization.provisioned)


def is_ready(machine: CapelinMachine) -> bool:
    """Whether a machine runs."""
    return machine.status is not None and is_true(machine.status.conditions, READY)


def is_lost(machine: CapelinMachine) -> bool:
    """Whether a machine had a Node and the Node was deleted."""
    running = find(machine.status.conditions, NODE_RUNNING) if machine.status else None
    return running is not None and running.reason == NODE_DELETED


def blocked(reason: Blocked) -> ConditionSpec:
    """The condition of an object that waits for something."""
    return ConditionSpec(READY, "False", reason.reason, str(reason))


def deleting(message: str) -> ConditionSpec:
    """The condition of an object that is being deleted."""
    return ConditionSpec(DELETING, "True", DELETING, message)


def merge_conditions(obj: BaseObject, *changed: ConditionSpec, now: datetime) -> list[Condition]:
    """The conditions of an object with these changed and the others as they were."""
    present = _present(obj)
    merged: Mapping[str, ConditionSpec] = {
        **{condition.type: ConditionSpec.of(condition) for condition in present},
        **{condition.type: condition for condition in changed},
    }
    return conditions(obj, present, list(merged.values()), now)


def conditions(
    obj: BaseObject, present: Sequence[Condition], specs: Sequence[ConditionSpec], now: datetime
) -> list[Condition]:
    """Conditions with the times at which their status last changed."""
    return update(present, specs, now=now, generation=obj.metadata.generation)


def _up_to_date(desired: DesiredPool, machines: Sequence[CapelinMachine]) -> ConditionSpec:
    """Whether all machines were created from the pool's present template."""
    if desired.revision is None:
        message = (
            "the bootstrap config that the MachinePool names in"
            " spec.template.spec.bootstrap.configRef does not exist, so no machine is created or"
            " replaced; create it again, or name another one"
        )
        return ConditionSpec(UP_TO_DATE, "Unknown", WAITING_FOR_BOOTSTRAP_CONFIG, message)
    if outdated := sum(not has_revision(machine, desired.revision) for machine in machines):
        message = f"{outdated} machines are outdated"
        return ConditionSpec(UP_TO_DATE, "False", f"Not{UP_TO_DATE}", message)
    return ConditionSpec(UP_TO_DATE, "True", UP_TO_DATE)


def _present(obj: BaseObject) -> list[Condition]:
    match obj:
        case CapelinCluster() | CapelinMachine() | CapelinMachinePool():
            return obj.status.conditions if obj.status else []
        case _:
            return []
