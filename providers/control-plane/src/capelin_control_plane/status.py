"""What to say of a control plane: status and conditions from what is wanted and what was seen."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from capelin.api import Condition
from capelin.contract.conditions import AVAILABLE, DELETING, ConditionSpec, is_true, update
from capelin.contract.labels import CLUSTER_NAME_LABEL
from capelin.versions import Version

from capelin_control_plane.api import CapelinControlPlane, Initialization, Status, VersionCount
from capelin_control_plane.backends import Observed, Part, Problem
from capelin_control_plane.desired import ControlPlane
from capelin_control_plane.plan import Component

CERTIFICATES_AVAILABLE = "CertificatesAvailable"
"""Whether every authority, key and certificate is there and good."""
ETCD_CLUSTER_AVAILABLE = "EtcdClusterAvailable"
"""Whether etcd has a quorum."""
API_SERVERS_AVAILABLE = "APIServersAvailable"
CONTROLLER_MANAGER_AVAILABLE = "ControllerManagerAvailable"
SCHEDULER_AVAILABLE = "SchedulerAvailable"
WORKLOAD_OBJECTS_AVAILABLE = "WorkloadObjectsAvailable"
"""Whether the workload cluster has what machines need to join it, and its add-ons."""
ROLLING_OUT = "RollingOut"
SCALING_UP = "ScalingUp"
SCALING_DOWN = "ScalingDown"
REMEDIATING = "Remediating"

# Reasons, besides X, NotX and the problems that backends report.
WAITING_FOR_OWNER = "WaitingForOwnerCluster"
WAITING_FOR_API_SERVER = "WaitingForAPIServer"
NOT_INITIALIZED = "NotInitialized"
STARTING = "Starting"
QUORUM_LOST = "QuorumLost"
ETCD_CLUSTER_DEGRADED = "EtcdClusterDegraded"
API_SERVERS_DEGRADED = "APIServersDegraded"
NOT_APPLIED = "NotApplied"
NO_REPLICAS = "NoReplicas"
INVALID_SPEC = "InvalidSpec"
WORKERS_REMAIN = "WaitingForWorkersDeletion"

_COMPONENTS: dict[str, Component] = {
    CONTROLLER_MANAGER_AVAILABLE: "kube-controller-manager",
    SCHEDULER_AVAILABLE: "kube-scheduler",
}


def status(
    control_plane: CapelinControlPlane,
    wanted: ControlPlane,
    seen: Observed,
    *,
    paused: ConditionSpec,
    certificates: ConditionSpec,
    workload: ConditionSpec,
    now: datetime,
) -> Status:
    """The status of a control plane that is there or coming."""
    before = control_plane.status or Status()
    seen = _told_by_version(seen, wanted)
    initialized = bool(before.initialization.control_plane_initialized) or seen.answers
    servers = seen.of("kube-apiserver")
    ready = sum(part.ready for part in servers)
    current = sum(bool(part.current) for part in servers)
    ill = ailing(control_plane, seen) if initialized else ()
    versions = running_versions(seen) if initialized else []
    aspects = [
        available(wanted, seen, initialized=initialized),
        certificates,
        etcd_available(wanted, seen),
        api_servers_available(wanted, seen),
        *(component_available(type_, seen) for type_ in _COMPONENTS),
        workload,
        rolling_out(wanted, seen, initialized=initialized),
        scaling_up(wanted, seen, ill),
        scaling_down(wanted, seen),
        remediating(ill),
        ConditionSpec(DELETING, "False", "NotDeleting"),
        paused,
    ]
    return Status(
        conditions=_conditions(control_plane, aspects, now),
        initialization=Initialization(control_plane_initialized=initialized),
        observed_generation=control_plane.metadata.generation,
        external_managed_control_plane=True,
        selector=f"{CLUSTER_NAME_LABEL}={wanted.cluster}",
        replicas=len(servers),
        ready_replicas=ready,
        available_replicas=ready,
        up_to_date_replicas=current,
        versions=versions,
        version=versions[0].version if versions else None,
        initialized=initialized,
        ready=seen.answers,
        updated_replicas=current,
        unavailable_replicas=max(0, wanted.replicas - ready),
    )


def waiting(
    control_plane: CapelinControlPlane,
    aspects: list[ConditionSpec],
    problem: Problem,
    now: datetime,
) -> Status:
    """The status of a control plane about which nothing can be done now; what was true stays."""
    before = control_plane.status or Status()
    blocked = ConditionSpec(AVAILABLE, "Unknown", problem.reason, problem.message)
    if not before.initialization.control_plane_initialized:
        blocked = ConditionSpec(AVAILABLE, "False", problem.reason, problem.message)
    kept = [ConditionSpec.of(condition) for condition in before.conditions]
    said = {aspect.type: aspect for aspect in [*kept, blocked, *aspects]}
    return before.model_copy(
        update={
            "conditions": _conditions(control_plane, list(said.values()), now),
            "observed_generation": control_plane.metadata.generation,
            "external_managed_control_plane": True,
        }
    )


def paused_status(
    control_plane: CapelinControlPlane, paused: ConditionSpec, now: datetime
) -> Status:
    """The status of a control plane that is left alone: only that it is."""
    before = control_plane.status or Status()
    kept = [
        ConditionSpec.of(condition) for condition in before.conditions if condition.type != "Paused"
    ]
    return before.model_copy(
        update={"conditions": _conditions(control_plane, [*kept, paused], now)}
    )


def deleting(
    control_plane: CapelinControlPlane, reason: str, message: str, now: datetime
) -> Status:
    """The status of a control plane that is going."""
    before = control_plane.status or Status()
    kept = [ConditionSpec.of(one) for one in before.conditions if one.type != DELETING]
    going = ConditionSpec(DELETING, "True", reason, message)
    return before.model_copy(update={"conditions": _conditions(control_plane, [*kept, going], now)})


def available(wanted: ControlPlane, seen: Observed, *, initialized: bool) -> ConditionSpec:
    """Whether the API can be used, even if something about it is being changed or mended."""
    if wanted.replicas == 0:
        return ConditionSpec(
            AVAILABLE, "False", NO_REPLICAS, "spec.replicas is 0: no API server runs"
        )
    etcd = etcd_available(wanted, seen)
    if initialized and etcd.status != "True":
        return ConditionSpec(AVAILABLE, "False", "NotAvailable", etcd.message)
    if seen.answers:
        return ConditionSpec(AVAILABLE, "True", "Available")
    reason = "NotAvailable" if initialized else NOT_INITIALIZED
    problem = seen.problem.message if seen.problem else _troubles(seen.of("kube-apiserver"))
    return ConditionSpec(AVAILABLE, "False", reason, problem or "no API server is ready yet")


def etcd_available(wanted: ControlPlane, seen: Observed) -> ConditionSpec:
    """Whether more than half of the members are up."""
    members = seen.of("etcd")
    up = sum(member.ready for member in members)
    needed = wanted.etcd_replicas // 2 + 1
    if up == wanted.etcd_replicas:
        return ConditionSpec(ETCD_CLUSTER_AVAILABLE, "True", ETCD_CLUSTER_AVAILABLE)
    troubles = _troubles(members)
    if up >= needed:
        return ConditionSpec(
            ETCD_CLUSTER_AVAILABLE, "True", ETCD_CLUSTER_DEGRADED, f"a quorum is up; {troubles}"
        )
    reason = QUORUM_LOST if any(member.ready for member in members) else STARTING
    missing = troubles or f"{wanted.etcd_replicas} members are to be started"
    return ConditionSpec(ETCD_CLUSTER_AVAILABLE, "False", reason, missing)


def api_servers_available(wanted: ControlPlane, seen: Observed) -> ConditionSpec:
    """Whether every API server that is wanted is ready."""
    servers = [*seen.of("kube-apiserver"), *seen.of("relay")]
    troubles = _troubles(servers)
    ready = sum(part.ready for part in seen.of("kube-apiserver"))
    if wanted.replicas and ready >= wanted.replicas and not troubles:
        return ConditionSpec(API_SERVERS_AVAILABLE, "True", API_SERVERS_AVAILABLE)
    if seen.answers:
        return ConditionSpec(API_SERVERS_AVAILABLE, "True", API_SERVERS_DEGRADED, troubles)
    missing = troubles or "no API server runs yet"
    return ConditionSpec(API_SERVERS_AVAILABLE, "False", STARTING, missing)


def component_available(type_: str, seen: Observed) -> ConditionSpec:
    """Whether a component of which there is one is up."""
    parts = seen.of(_COMPONENTS[type_])
    if not parts:
        return ConditionSpec(
            type_, "False", WAITING_FOR_API_SERVER, "it starts after the API server"
        )
    if all(part.ready for part in parts):
        return ConditionSpec(type_, "True", type_)
    return ConditionSpec(type_, "False", STARTING, _troubles(parts))


def rolling_out(wanted: ControlPlane, seen: Observed, *, initialized: bool) -> ConditionSpec:
    """Whether something runs that is to be replaced, and what keeps it from being replaced."""
    outdated = [part for part in seen.parts if not part.current]
    if not initialized or (seen.problem is None and not outdated):
        return ConditionSpec(ROLLING_OUT, "False", f"Not{ROLLING_OUT}")
    if seen.problem is not None:
        if _versions(seen) == {wanted.version}:
            return ConditionSpec(ROLLING_OUT, "False", f"Not{ROLLING_OUT}")
        return ConditionSpec(ROLLING_OUT, "True", seen.problem.reason, seen.problem.message)
    names = ", ".join(part.name for part in outdated)
    coming = _troubles([part for part in seen.parts if part.current])
    message = f"to be replaced, one by one: {names}" + (f"; {coming}" if coming else "")
    return ConditionSpec(ROLLING_OUT, "True", ROLLING_OUT, message)


def scaling_up(wanted: ControlPlane, seen: Observed, ill: Sequence[Part]) -> ConditionSpec:
    """Whether API servers are coming that were not there before."""
    servers = seen.of("kube-apiserver")
    there = sum(part.ready or part in ill for part in servers)
    # Those that come while others are outdated replace these: another condition's matter.
    replacing = any(not part.current for part in servers)
    if seen.problem is not None or replacing or there >= wanted.replicas:
        return ConditionSpec(SCALING_UP, "False", f"Not{SCALING_UP}")
    return ConditionSpec(
        SCALING_UP, "True", SCALING_UP, f"from {there} to {wanted.replicas} API servers"
    )


def scaling_down(wanted: ControlPlane, seen: Observed) -> ConditionSpec:
    """Whether there are more API servers than are wanted."""
    there = sum(bool(part.current) for part in seen.of("kube-apiserver"))
    if seen.problem is not None or there <= wanted.replicas:
        return ConditionSpec(SCALING_DOWN, "False", f"Not{SCALING_DOWN}")
    message = f"from {there} to {wanted.replicas} API servers"
    return ConditionSpec(SCALING_DOWN, "True", SCALING_DOWN, message)


def ailing(control_plane: CapelinControlPlane, seen: Observed) -> tuple[Part, ...]:
    """What ran before and is being started again, until it is ready."""
    mending = is_true((control_plane.status or Status()).conditions, REMEDIATING)
    return tuple(
        part
        for part in seen.parts
        if part.current and not part.ready and (part.failure or (mending and seen.complete))
    )


def remediating(ill: Sequence[Part]) -> ConditionSpec:
    """Whether something that ran before is being started again."""
    if not ill:
        return ConditionSpec(REMEDIATING, "False", f"Not{REMEDIATING}")
    return ConditionSpec(REMEDIATING, "True", REMEDIATING, _troubles(ill))


def running_versions(seen: Observed) -> list[VersionCount]:
    """The versions in use, the oldest first.

    A version counts until nothing of it is left: a controller manager that is still to be replaced
    keeps an upgrade from being over, without being a replica.
    """
    servers = seen.of("kube-apiserver")
    counted = [part for part in servers if part.ready] or list(servers)
    counts: dict[str, int] = {part.version: 0 for part in seen.parts if _is_versioned(part)}
    for part in counted:
        counts[part.version] = counts.get(part.version, 0) + 1
    return [
        VersionCount(version=version, replicas=counts[version])
        if counts[version]
        else VersionCount(version=version)
        for version in sorted(counts, key=Version.parse)
        if counts[version] or version in {part.version for part in _followers(seen)}
    ]


def _told_by_version(seen: Observed, wanted: ControlPlane) -> Observed:
    """What was seen, with its version to tell what is current where nothing else is known of it."""
    parts = (
        replace(part, current=part.version == wanted.version) if part.current is None else part
        for part in seen.parts
    )
    return replace(seen, parts=tuple(parts))


def _followers(seen: Observed) -> list[Part]:
    return [*seen.of("kube-controller-manager"), *seen.of("kube-scheduler")]


def _is_versioned(part: Part) -> bool:
    return part.component in {"kube-apiserver", "kube-controller-manager", "kube-scheduler"}


def _versions(seen: Observed) -> set[str]:
    return {part.version for part in seen.parts if _is_versioned(part)}


def _troubles(parts: Sequence[Part]) -> str:
    return "; ".join(_trouble(part) for part in parts if not part.ready)


def _trouble(part: Part) -> str:
    return f"{part.name} {part.failure}" if part.failure else f"{part.name} is starting"


def _conditions(
    control_plane: CapelinControlPlane, aspects: list[ConditionSpec], now: datetime
) -> list[Condition]:
    before = (control_plane.status or Status()).conditions
    return update(before, aspects, now=now, generation=control_plane.metadata.generation)
