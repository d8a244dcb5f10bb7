"""Status and conditions of a control plane, from its desired and its observed state. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from capelin.contract import (
    ASLEEP,
    AVAILABLE,
    WAKING,
    ConditionSpec,
    find_condition,
    is_condition_true,
    update_conditions,
)
from capelin.provider import Blocked, ControlPlaneInitialization, VersionCount
from capelin.versions import Version

from capelin_control_plane.api import CapelinControlPlane, Status
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backends.pods import Names
from capelin_control_plane.desired.control_plane import Component, ControlPlane
from capelin_control_plane.desired.instances import InstanceStatus, Observed
from capelin_control_plane.etcd.rules import quorum
from capelin_control_plane.operations.backup import BackupState
from capelin_control_plane.operations.encryption import EncryptionReport
from capelin_control_plane.operations.move_phases import MOVING

CERTIFICATES_AVAILABLE = "CertificatesAvailable"
"""Whether every CA, key and certificate exists and is valid."""
ETCD_CLUSTER_AVAILABLE = "EtcdClusterAvailable"
"""Whether etcd has a quorum."""
API_SERVERS_AVAILABLE = "APIServersAvailable"
CONTROLLER_MANAGER_AVAILABLE = "ControllerManagerAvailable"
SCHEDULER_AVAILABLE = "SchedulerAvailable"
WORKLOAD_OBJECTS_AVAILABLE = "WorkloadObjectsAvailable"
"""Whether the workload cluster has add-ons and the objects that machines need to join it."""
ROLLING_OUT = "RollingOut"
SCALING_UP = "ScalingUp"
SCALING_DOWN = "ScalingDown"
REMEDIATING = "Remediating"

_COMPONENTS: dict[str, Component] = {
    CONTROLLER_MANAGER_AVAILABLE: "kube-controller-manager",
    SCHEDULER_AVAILABLE: "kube-scheduler",
}
_STOPPED: Final = (
    ETCD_CLUSTER_AVAILABLE,
    API_SERVERS_AVAILABLE,
    CONTROLLER_MANAGER_AVAILABLE,
    SCHEDULER_AVAILABLE,
    WORKLOAD_OBJECTS_AVAILABLE,
)
_ACTIVITIES: Final = (SCALING_UP, SCALING_DOWN, REMEDIATING, ROLLING_OUT)
_TEXT: Final = "the control plane sleeps: no component runs, and its data stays"


def running_status(
    control_plane: CapelinControlPlane,
    desired: ControlPlane,
    observed: Observed,
    *,
    backup: BackupState | None = None,
    space: ConditionSpec | None = None,
    encryption: EncryptionReport | None = None,
    accepted_move: str | None = None,
) -> Status:
    """The status of a control plane that runs or starts, without the frame's own fields."""
    before = control_plane.status or Status()
    observed = _compared_by_version(observed, desired)
    # A new control plane that is restored first has no data for its users before.
    is_usable = observed.answers and desired.restore is None
    initialized = bool(before.initialization.control_plane_initialized) or is_usable
    servers = observed.of("kube-apiserver")
    ready = sum(instance.ready for instance in servers)
    current = sum(bool(instance.current) for instance in servers)
    unhealthy = unhealthy_instances(control_plane, observed) if initialized else ()
    versions = running_versions(observed) if initialized else []
    conditions = [
        after_sleep(available(desired, observed, initialized=initialized), before),
        certificates_available(),
        etcd_available(desired, observed),
        api_servers_available(desired, observed),
        *(component_available(type_, observed) for type_ in _COMPONENTS),
        rolling_out(desired, observed, initialized=initialized),
        scaling_up(desired, observed, unhealthy),
        scaling_down(desired, observed),
        remediating(unhealthy),
        *([] if backup is None else [backup.condition]),
        *([] if space is None else [space]),
        *([] if encryption is None or encryption.condition is None else [encryption.condition]),
    ]
    return Status(
        backup=None if backup is None else backup.newest,
        encryption=None if encryption is None else encryption.status,
        accepted_move=accepted_move,
        conditions=update_conditions(
            before.conditions,
            conditions,
            now=desired.now,
            generation=control_plane.metadata.generation,
        ),
        initialization=ControlPlaneInitialization(control_plane_initialized=initialized),
        observed_generation=control_plane.metadata.generation,
        external_managed_control_plane=True,
        selector=_selector(control_plane),
        replicas=len(servers),
        ready_replicas=ready,
        available_replicas=ready,
        up_to_date_replicas=current,
        versions=versions,
        version=versions[0].version if versions else None,
    )


def asleep_status(
    control_plane: CapelinControlPlane,
    desired: ControlPlane,
    observed: Observed,
    waiting: tuple[str, ...],
) -> Status:
    """The status of a control plane that sleeps or falls asleep."""
    before = control_plane.status or Status()
    text = f"{_TEXT}. Until it wakes, these wait: {', '.join(waiting)}" if waiting else _TEXT
    asleep = ConditionSpec(ASLEEP, "True", Reason.ASLEEP, text)
    if observed.alive:
        message = "the components of the control plane stop"
        asleep = ConditionSpec(ASLEEP, "True", Reason.FALLING_ASLEEP, message)
    own = [
        ConditionSpec(AVAILABLE, "False", Reason.ASLEEP, text),
        asleep,
        certificates_available(),
        *(ConditionSpec(type_, "False", Reason.ASLEEP) for type_ in _STOPPED),
        *(ConditionSpec(type_, "False", f"Not{type_}") for type_ in _ACTIVITIES),
    ]
    # A move that was abandoned leaves its condition.
    types = {MOVING, *(spec.type for spec in own)}
    # Those of backups, of encryption and the like describe data that does not change.
    kept = [ConditionSpec.of(it) for it in before.conditions if it.type not in types]
    return before.model_copy(
        update={
            "accepted_move": None,
            "conditions": update_conditions(
                before.conditions,
                [*own, *kept],
                now=desired.now,
                generation=control_plane.metadata.generation,
            ),
            "observed_generation": control_plane.metadata.generation,
            "replicas": 0,
            "ready_replicas": 0,
            "available_replicas": 0,
            "up_to_date_replicas": 0,
            "versions": [VersionCount(version=count.version) for count in before.versions],
        }
    )


def _selector(control_plane: CapelinControlPlane) -> str:
    """The label selector of the API servers' pods. On processes it matches nothing."""
    names = Names(control_plane.namespace or "", control_plane.name)
    labels = names.labels("kube-apiserver")
    return ",".join(f"{label}={value}" for label, value in sorted(labels.items()))


def available_while_paused(
    control_plane: CapelinControlPlane, ended: Collection[str]
) -> ConditionSpec | None:
    """The condition of a paused control plane. None if nothing has ended: it stays as it is."""
    if ended:
        names = ", ".join(sorted(ended))
        message = f"the control plane is paused, and its ended components start again: {names}"
        return ConditionSpec(AVAILABLE, "Unknown", Reason.ENDED_WHILE_PAUSED, message)
    last = find_condition((control_plane.status or Status()).conditions, AVAILABLE)
    if last is None or last.reason != str(Reason.ENDED_WHILE_PAUSED):
        return None
    message = "all components run again. Nothing checks them while the control plane is paused"
    return ConditionSpec(AVAILABLE, "Unknown", Reason.PAUSED, message)


def certificates_available(blocked: Blocked | None = None) -> ConditionSpec:
    if blocked is None:
        return ConditionSpec(CERTIFICATES_AVAILABLE, "True", CERTIFICATES_AVAILABLE)
    return ConditionSpec(CERTIFICATES_AVAILABLE, "False", blocked.reason, str(blocked))


def available(desired: ControlPlane, observed: Observed, *, initialized: bool) -> ConditionSpec:
    """Whether the API can be used, even while something is changed or restarted."""
    if desired.replicas == 0:
        return ConditionSpec(
            AVAILABLE, "False", Reason.NO_REPLICAS, "spec.replicas is 0: no API server runs"
        )
    etcd = etcd_available(desired, observed)
    if initialized and etcd.status != "True":
        return ConditionSpec(AVAILABLE, "False", "NotAvailable", etcd.message)
    if observed.answers:
        return ConditionSpec(AVAILABLE, "True", "Available")
    reason = "NotAvailable" if initialized else Reason.NOT_INITIALIZED
    message = (
        str(observed.blocked) if observed.blocked else _failures(observed.of("kube-apiserver"))
    )
    return ConditionSpec(AVAILABLE, "False", reason, message or "no API server is ready yet")


def after_sleep(available: ConditionSpec, before: Status) -> ConditionSpec:
    """The condition `Available`. A control plane that wakes has not failed."""
    last = find_condition(before.conditions, AVAILABLE)
    if available.status == "True" or last is None or last.reason not in {ASLEEP, WAKING}:
        return available
    return replace(available, reason=Reason.WAKING)


def etcd_available(desired: ControlPlane, observed: Observed) -> ConditionSpec:
    """Whether more than half of the members are ready."""
    members = observed.of("etcd")
    learners = {member.name for member in observed.plan.of("etcd") if member.is_learner}
    up = sum(member.ready for member in members if member.name not in learners)
    if up == len(members) == desired.etcd_replicas:
        return ConditionSpec(ETCD_CLUSTER_AVAILABLE, "True", ETCD_CLUSTER_AVAILABLE)
    absent = max(0, desired.etcd_replicas - len(members))
    missing = f"members to be started: {absent}" if absent else ""
    surplus = max(0, len(members) - desired.etcd_replicas)
    ending = ", ".join(observed.ending_servers)
    # They may still use the members that leave.
    until = f" after the end of {ending}" if ending else ""
    leaving = f"members to be removed{until}: {surplus}" if surplus else ""
    problems = "; ".join(filter(None, (_failures(members), missing, leaving)))
    # The number of members that vote differs from the desired one while it changes.
    if up >= quorum(observed.voters or desired.etcd_replicas):
        return ConditionSpec(
            ETCD_CLUSTER_AVAILABLE,
            "True",
            Reason.ETCD_CLUSTER_DEGRADED,
            f"a quorum is up: {problems}",
        )
    # A member that lost its data does not start, and keeps the others from finding a leader.
    is_lost = any(member.ready for member in members) or bool(observed.losses)
    reason = Reason.QUORUM_LOST if is_lost else Reason.STARTING
    return ConditionSpec(ETCD_CLUSTER_AVAILABLE, "False", reason, problems)


def api_servers_available(desired: ControlPlane, observed: Observed) -> ConditionSpec:
    servers = [*observed.of("kube-apiserver"), *observed.of("relay")]
    failures = _failures(servers)
    ready = sum(instance.ready for instance in observed.of("kube-apiserver"))
    if desired.replicas and ready >= desired.replicas and not failures:
        return ConditionSpec(API_SERVERS_AVAILABLE, "True", API_SERVERS_AVAILABLE)
    if observed.answers:
        return ConditionSpec(API_SERVERS_AVAILABLE, "True", Reason.API_SERVERS_DEGRADED, failures)
    missing = failures or "no API server runs yet"
    return ConditionSpec(API_SERVERS_AVAILABLE, "False", Reason.STARTING, missing)


def component_available(type_: str, observed: Observed) -> ConditionSpec:
    """Whether a component with one instance is ready."""
    instances = observed.of(_COMPONENTS[type_])
    if not instances:
        return ConditionSpec(
            type_, "False", Reason.WAITING_FOR_API_SERVER, "it starts after the API server"
        )
    if all(instance.ready for instance in instances):
        return ConditionSpec(type_, "True", type_)
    return ConditionSpec(type_, "False", Reason.STARTING, _failures(instances))


def rolling_out(desired: ControlPlane, observed: Observed, *, initialized: bool) -> ConditionSpec:
    """Whether an outdated instance runs, and why it is not replaced yet."""
    outdated = [instance for instance in observed.statuses if not instance.current]
    if not initialized or (observed.blocked is None and not outdated):
        return ConditionSpec(ROLLING_OUT, "False", f"Not{ROLLING_OUT}")
    if observed.blocked is not None:
        if {it.version for it in observed.statuses if _is_versioned(it)} == {desired.version}:
            return ConditionSpec(ROLLING_OUT, "False", f"Not{ROLLING_OUT}")
        return ConditionSpec(ROLLING_OUT, "True", observed.blocked.reason, str(observed.blocked))
    names = ", ".join(instance.name for instance in outdated)
    failures = _failures([instance for instance in observed.statuses if instance.current])
    message = f"to be replaced one by one: {names}" + (f"; {failures}" if failures else "")
    return ConditionSpec(ROLLING_OUT, "True", ROLLING_OUT, message)


def scaling_up(
    desired: ControlPlane, observed: Observed, unhealthy: Sequence[InstanceStatus]
) -> ConditionSpec:
    servers = observed.of("kube-apiserver")
    count = sum(instance.ready or instance in unhealthy for instance in servers)
    # The extra replicas of a rollout are reported by RollingOut, not by ScalingUp.
    replacing = any(not instance.current for instance in servers)
    if observed.blocked is not None or replacing or count >= desired.replicas:
        return ConditionSpec(SCALING_UP, "False", f"Not{SCALING_UP}")
    return ConditionSpec(
        SCALING_UP, "True", SCALING_UP, f"from {count} to {desired.replicas} API servers"
    )


def scaling_down(desired: ControlPlane, observed: Observed) -> ConditionSpec:
    count = sum(bool(instance.current) for instance in observed.of("kube-apiserver"))
    if observed.blocked is not None or count <= desired.replicas:
        return ConditionSpec(SCALING_DOWN, "False", f"Not{SCALING_DOWN}")
    message = f"from {count} to {desired.replicas} API servers"
    return ConditionSpec(SCALING_DOWN, "True", SCALING_DOWN, message)


def unhealthy_instances(
    control_plane: CapelinControlPlane, observed: Observed
) -> tuple[InstanceStatus, ...]:
    """The instances that ran before and are being restarted, until they are ready."""
    was_remediating = is_condition_true((control_plane.status or Status()).conditions, REMEDIATING)
    return tuple(
        instance
        for instance in observed.statuses
        if instance.current
        and not instance.ready
        and (instance.failure or (was_remediating and observed.complete))
    )


def remediating(unhealthy: Sequence[InstanceStatus]) -> ConditionSpec:
    if not unhealthy:
        return ConditionSpec(REMEDIATING, "False", f"Not{REMEDIATING}")
    return ConditionSpec(REMEDIATING, "True", REMEDIATING, _failures(unhealthy))


def running_versions(observed: Observed) -> list[VersionCount]:
    """The versions in use, the oldest first.

    An upgrade is not over while a controller manager or scheduler of the old version runs, so that
    version is listed too, without replicas.
    """
    servers = observed.of("kube-apiserver")
    counted = [instance for instance in servers if instance.ready] or list(servers)
    counts: dict[str, int] = {
        instance.version: 0 for instance in observed.statuses if _is_versioned(instance)
    }
    for instance in counted:
        counts[instance.version] += 1
    controllers = (*observed.of("kube-controller-manager"), *observed.of("kube-scheduler"))
    running = {instance.version for instance in controllers}
    return [
        VersionCount(version=version, replicas=counts[version])
        if counts[version]
        else VersionCount(version=version)
        for version in sorted(counts, key=Version.parse)
        if counts[version] or version in running
    ]


def _compared_by_version(observed: Observed, desired: ControlPlane) -> Observed:
    """Decide by version which instances are current, if nothing else is available."""
    statuses = tuple(
        replace(status, current=status.version == desired.version)
        if status.current is None
        else status
        for status in observed.statuses
    )
    return replace(observed, statuses=statuses)


def _is_versioned(instance: InstanceStatus) -> bool:
    return instance.component in {"kube-apiserver", "kube-controller-manager", "kube-scheduler"}


def _failures(instances: Sequence[InstanceStatus]) -> str:
    return "; ".join(
        f"{instance.name} {_failure(instance)}" for instance in instances if not instance.ready
    )


def _failure(instance: InstanceStatus) -> str:
    if instance.unready:
        return f"is not ready any more ({instance.unready})"
    return instance.failure or "is starting"
