"""Status and conditions of hosts."""

import ipaddress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from capelin.contract import DELETING, READY, ConditionSpec
from capelin.provider import MachineAddress

from capelin_machine_pool.api import NodeInfo
from capelin_machine_pool.bootstrap import (
    BootstrapStep,
    CleanStep,
    CloudConfig,
    FailureKind,
    HostState,
    UpdateStep,
    bootstrap_message,
    clean_message,
    differences_message,
    update_message,
)
from capelin_machine_pool.hosts.api import (
    BASELINE_ANNOTATION,
    CLEAN_AGAIN_ANNOTATION,
    RENEW_BASELINE_ANNOTATION,
    CapelinHost,
    HostStatus,
    Phase,
)
from capelin_machine_pool.hosts.facts import HostFacts, problems
from capelin_machine_pool.hosts.plan import (
    CLEAN,
    REACHABLE,
    UPDATED,
    Visit,
    failed_update,
    is_bootstrapped,
    own_status,
)
from capelin_machine_pool.reasons import Reason

BOOTSTRAPPED: Final = "Bootstrapped"
FIT: Final = "Fit"
POWER_CYCLED: Final = "PowerCycled"

_SOON: Final = 2.0
_RETRY: Final = 30.0
"""Seconds until the next attempt to reach a host."""
_SETTLED: Final = 600.0
"""Seconds between two looks at a host at which nothing happens."""
_CONTACTS: Final = timedelta(minutes=10)
"""Between two times of a contact: a host that bootstraps answers every two seconds."""
_CONFIRM: Final = f"then set the annotation {CLEAN_AGAIN_ANNOTATION}"
_REASONS: Final[dict[FailureKind, Reason]] = {
    "unreachable": Reason.HOST_UNREACHABLE,
    "host key": Reason.HOST_KEY_MISMATCH,
    "login": Reason.LOGIN_REJECTED,
    "command": Reason.HOST_COMMAND_FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitResult:
    """The result of a visit to a host."""

    visit: Visit
    failure: tuple[Reason, str] | None = None
    """Why it could not be completed."""
    state: HostState | None = None
    step: BootstrapStep | CleanStep | UpdateStep | None = None
    version: str = ""
    """The Kubernetes version of an update."""
    facts: HostFacts | None = None
    clock: float = 0.0
    """Seconds since 1970 by the provider's clock, when the facts were read."""
    host_key: str | None = None
    """The key that the host showed."""
    config: CloudConfig | None = field(default_factory=CloudConfig, repr=False)
    """The bootstrap data, whose secrets no message may contain. None if they are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The consequences of a visit."""

    phase: Phase
    conditions: tuple[ConditionSpec, ...]
    ends_claim: bool = False
    """Whether the host no longer belongs to its machine."""
    ends_request: bool = False
    """Whether the annotation for another clean-up was carried out."""
    baseline: str | None = None
    """Digest of the baseline to record for the host, which ends a request to renew it."""
    again_after: float = _SETTLED


def failed_visit(visit: Visit, kind: FailureKind, message: str) -> VisitResult:
    """The result of a visit that a host, its key or its credentials prevented."""
    return VisitResult(visit=visit, failure=(_REASONS[kind], message))


def begun(host: CapelinHost, visit: Visit) -> Outcome | None:
    """The state of a host while its first visit for a purpose continues. None changes nothing."""
    phase = host.status.phase if host.status else None
    if visit is Visit.BOOTSTRAP and phase not in {"Ready", "Bootstrapping"}:
        return _outcome("Bootstrapping", Reason.BOOTSTRAPPING, "the bootstrap begins", BOOTSTRAPPED)
    if visit is Visit.UPDATE and phase != "Updating":
        return _outcome("Updating", Reason.UPDATING, "the update begins", UPDATED)
    if visit in {Visit.CLEAN, Visit.CLEAN_AGAIN} and phase not in {"Cleaning", "Broken"}:
        return _outcome("Cleaning", Reason.CLEANING, "the clean-up begins", CLEAN)
    if phase is None:
        return _outcome("Unavailable", Reason.NOT_CHECKED, "", REACHABLE)
    return None


def claimed() -> Outcome:
    """The state of a host that a machine has claimed but not recorded yet."""
    message = "a machine has claimed the host"
    return _outcome("Claimed", Reason.BOOTSTRAPPING, message, BOOTSTRAPPED)


def broken(reason: Reason, message: str) -> Outcome:
    """The state of a host that only an administrator can release."""
    return Outcome(phase="Broken", conditions=(_false(READY, reason, message),))


def outcome(host: CapelinHost, result: VisitResult) -> Outcome:
    """The consequences of a visit."""
    if result.visit is Visit.POWER_CYCLE:
        return _power_cycle(host, result)
    if result.failure is not None:
        return _unreached(host, *result.failure)
    return _observed(host, result)


def _observed(host: CapelinHost, result: VisitResult) -> Outcome:
    if result.visit is Visit.LEARN_KEY or result.state is None:
        its = _outcome("Unavailable", Reason.NOT_CHECKED, "", REACHABLE)
        # A key does not undo a bootstrap, and cleans nothing.
        phase = host.status.phase if host.status else None
        is_kept = is_bootstrapped(host) or phase == "Broken"
        return replace(its, phase=phase) if phase is not None and is_kept else its
    if result.visit is Visit.BOOTSTRAP:
        return _bootstrap(host, result, result.state)
    if result.visit is Visit.UPDATE:
        return _update(result, result.state)
    if result.visit in {Visit.CHECK, Visit.RENEW_BASELINE}:
        return _check(host, result, result.state)
    return _clean(result, result.state)


def _power_cycle(host: CapelinHost, result: VisitResult) -> Outcome:
    """The next visit shows the state of the host. Until then, its conditions stay."""
    message = "" if result.failure is None else result.failure[1]
    cycled = _false(POWER_CYCLED, Reason.POWER_FAILED, message) if message else _true(POWER_CYCLED)
    before = host.status.conditions if host.status else []
    kept = (ConditionSpec.kept(it) for it in before if it.type not in {POWER_CYCLED, DELETING})
    phase: Phase = (host.status.phase if host.status else None) or "Unavailable"
    if host.spec.claim is None and phase == "Free":
        # It restarts, and no visit has checked it with its present spec.
        phase = "Unavailable"
    return Outcome(phase=phase, conditions=(*kept, cycled), again_after=_SOON)


def host_status(
    host: CapelinHost, result: VisitResult | None, phase: Phase, now: datetime
) -> HostStatus:
    """The status of a host without its conditions. Facts stay until they are read again."""
    status = host.status or HostStatus()
    update: dict[str, object] = {
        "phase": phase,
        "claim": None if host.spec.claim is None else host.spec.claim.id,
        "observed_generation": host.metadata.generation,
        "addresses": _addresses(host, result),
        "updated_version": _updated_version(host, result),
        "last_contact_at": _last_contact(status, result, now),
    }
    if result is not None and result.state is not None:
        update["host_name"] = result.state.hostname[:256]
    if result is not None and result.facts is not None:
        facts = result.facts
        update |= {
            "capacity": facts.capacity,
            "node_info": NodeInfo(architecture=facts.architecture, operating_system="linux"),
            "operating_system_image": facts.operating_system or None,
            "kernel_version": facts.kernel or None,
            "kubelet_version": facts.kubelet or None,
        }
    return status.model_copy(update=update)


def _last_contact(status: HostStatus, result: VisitResult | None, now: datetime) -> datetime | None:
    """The time of this visit, unless a visit shortly before has written its own."""
    last = status.last_contact_at
    if result is None or result.failure is not None or result.visit is Visit.POWER_CYCLE:
        return last
    return now if last is None or now - last >= _CONTACTS else last


def _check(host: CapelinHost, result: VisitResult, state: HostState) -> Outcome:
    if host.spec.claim is not None:
        if state.marker != host.spec.claim.id:
            message = "the host has lost the marker of its machine"
            return _outcome("Ready", Reason.HOST_CHANGED, message)
        done = (BOOTSTRAPPED, UPDATED) if host.spec.claim.update_version else (BOOTSTRAPPED,)
        return Outcome(phase="Ready", conditions=(*_READY_CONDITIONS, *map(_true, done)))
    fit = _fitness(result)
    was_broken = host.status is not None and host.status.phase == "Broken"
    remains = _remains(state)
    if remains or was_broken:
        message = remains or "an earlier clean-up failed, or the host was not clean"
        unclean = _false(CLEAN, Reason.HOST_NOT_CLEAN, f"{message}; clean it, {_CONFIRM}")
        ready = _false(READY, Reason.HOST_NOT_CLEAN, unclean.message)
        return Outcome(phase="Broken", conditions=(ready, _true(REACHABLE), unclean, *fit))
    known = host.metadata.annotations.get(BASELINE_ANNOTATION)
    renews = result.visit is Visit.RENEW_BASELINE
    recorded = state.baseline if known is None or renews else None
    checked = _compared(state, recorded or known, fit) or _usable(host, state, fit)
    return replace(checked, baseline=recorded)


def _compared(
    state: HostState, baseline: str | None, fit: tuple[ConditionSpec, ...]
) -> Outcome | None:
    """The consequences of differences from the host's baseline. None if there are none."""
    message = differences_message(state)
    if state.baseline != baseline:
        message = "the baseline on the host is not the one from before its first use"
    if not message:
        return None
    hint = f"correct it, or accept it with the annotation {RENEW_BASELINE_ANNOTATION}"
    unclean = _false(CLEAN, Reason.HOST_NOT_CLEAN, f"{message}; {hint}")
    ready = _false(READY, Reason.HOST_NOT_CLEAN, unclean.message)
    return Outcome(phase="Unavailable", conditions=(ready, _true(REACHABLE), unclean, *fit))


def _usable(host: CapelinHost, state: HostState, fit: tuple[ConditionSpec, ...]) -> Outcome:
    if state.missing:
        message = f"the host lacks the programs {', '.join(state.missing)}"
        ready = _false(READY, Reason.HOST_UNFIT, message)
        return Outcome(phase="Unavailable", conditions=(ready, _true(REACHABLE), *fit))
    if host.spec.maintenance:
        ready = _false(READY, Reason.MAINTENANCE, "spec.maintenance is true")
        return Outcome(phase="Unavailable", conditions=(ready, _true(REACHABLE), *fit))
    return Outcome(phase="Free", conditions=(*_READY_CONDITIONS, _true(CLEAN), *fit))


def _bootstrap(host: CapelinHost, result: VisitResult, state: HostState) -> Outcome:
    step, claim = result.step, host.spec.claim
    is_own = claim is not None and state.marker == claim.id
    message = ""
    if isinstance(step, BootstrapStep):
        message = bootstrap_message(step, state, result.config)
    match step:
        case BootstrapStep.SUCCEEDED:
            conditions = (*_READY_CONDITIONS, _true(BOOTSTRAPPED))
            return Outcome(phase="Ready", conditions=conditions)
        case BootstrapStep.FAILED | BootstrapStep.INTERRUPTED:
            return _outcome("Bootstrapping", Reason.BOOTSTRAP_FAILED, message, BOOTSTRAPPED)
        case BootstrapStep.DIRTY if not is_own:
            # The bootstrap did not begin, so the machine can have another host.
            # The next check shows whether the difference remains.
            phase: Phase = "Unavailable" if state.differences else "Broken"
            conditions = _outcome(phase, Reason.HOST_NOT_CLEAN, message, CLEAN).conditions
            return Outcome(phase=phase, conditions=conditions, ends_claim=True)
        case BootstrapStep.UNFIT:
            unfit = _outcome("Unavailable", Reason.HOST_UNFIT, message).conditions
            return Outcome(phase="Unavailable", conditions=unfit, ends_claim=True)
        case _:
            running = _outcome("Bootstrapping", Reason.BOOTSTRAPPING, message, BOOTSTRAPPED)
            return replace(running, again_after=_SOON)


def _update(result: VisitResult, state: HostState) -> Outcome:
    if not isinstance(result.step, UpdateStep):
        running = _outcome("Updating", Reason.UPDATING, "the update waits", UPDATED)
        return replace(running, again_after=_SOON)
    message = update_message(result.step, state, result.version)
    match result.step:
        case UpdateStep.SUCCEEDED:
            done = (*_READY_CONDITIONS, _true(BOOTSTRAPPED), _true(UPDATED))
            return Outcome(phase="Ready", conditions=done, again_after=_SOON)
        case UpdateStep.FAILED | UpdateStep.INTERRUPTED:
            return _outcome("Updating", Reason.UPDATE_FAILED, message, UPDATED)
        case UpdateStep.OTHER:
            return _outcome("Updating", Reason.HOST_CHANGED, message, UPDATED)
        case _:
            running = _outcome("Updating", Reason.UPDATING, message, UPDATED)
            return replace(running, again_after=_SOON)


def _updated_version(host: CapelinHost, result: VisitResult | None) -> str | None:
    """The version of the last update for the present claim."""
    if result is not None and result.step is UpdateStep.SUCCEEDED:
        return result.version
    status = own_status(host)
    return None if status is None else status.updated_version


def _clean(result: VisitResult, state: HostState) -> Outcome:
    again = result.visit is Visit.CLEAN_AGAIN
    match result.step:
        case CleanStep.CLEAN | CleanStep.OTHER:
            cleaned = _outcome("Cleaning", Reason.CLEANING, "the host is clean", CLEAN)
            return Outcome(
                phase="Cleaning",
                conditions=cleaned.conditions,
                ends_claim=True,
                ends_request=again,
                again_after=_SOON,
            )
        case CleanStep.FAILED:
            message = f"{clean_message(state)}; correct it, {_CONFIRM}"
            conditions = _outcome("Broken", Reason.HOST_NOT_CLEAN, message, CLEAN).conditions
            return Outcome(
                phase="Broken",
                conditions=conditions,
                ends_request=again,
                again_after=_SOON if again else _SETTLED,
            )
        case _:
            running = _outcome("Cleaning", Reason.CLEANING, "it is running", CLEAN)
            return replace(running, again_after=_SOON)


def _unreached(host: CapelinHost, reason: Reason, message: str) -> Outcome:
    phase: Phase = (host.status.phase if host.status else None) or "Unavailable"
    if host.spec.claim is None and phase != "Broken":
        phase = "Unavailable"
    reachable: tuple[ConditionSpec, ...] = ()
    if reason is Reason.HOST_COMMAND_FAILED:
        reachable = (_true(REACHABLE),)
    elif reason in _REASONS.values():
        reachable = (_false(REACHABLE, reason, message),)
    if (failed := failed_update(host)) is not None:
        # The pool must not begin another update only because this host is off.
        kept = _false(UPDATED, Reason.UPDATE_FAILED, failed.message)
        ready = _false(READY, Reason.UPDATE_FAILED, f"{failed.message}; now: {message}")
        return Outcome(phase=phase, conditions=(ready, kept, *reachable), again_after=_RETRY)
    conditions = (_false(READY, reason, message), *reachable)
    return Outcome(phase=phase, conditions=conditions, again_after=_RETRY)


def _fitness(result: VisitResult) -> tuple[ConditionSpec, ...]:
    if result.facts is None:
        return ()
    found = problems(result.facts, result.clock)
    return (_false(FIT, Reason.HOST_UNFIT, "; ".join(found)),) if found else (_true(FIT),)


def _remains(state: HostState) -> str:
    if state.marker is not None:
        return "the host has the marker of another machine"
    if state.node_files:
        return f"the host is a node already: it has {', '.join(state.node_files)}"
    return ""


def _addresses(host: CapelinHost, result: VisitResult | None) -> list[MachineAddress]:
    address = host.spec.address
    try:
        ipaddress.ip_address(address)
    except ValueError:
        configured = MachineAddress(type="InternalDNS", address=address[:256])
    else:
        configured = MachineAddress(type="InternalIP", address=address)
    known = host.status.host_name if host.status else None
    name = known if result is None or result.state is None else result.state.hostname
    names = [MachineAddress(type="Hostname", address=name[:256])] if name else []
    return [*names, configured]


def _outcome(phase: Phase, reason: Reason, message: str, *types: str) -> Outcome:
    specs = tuple(_false(type_, reason, message) for type_ in (READY, *types))
    return Outcome(phase=phase, conditions=specs)


def _true(type_: str) -> ConditionSpec:
    return ConditionSpec(type_, "True", type_)


def _false(type_: str, reason: Reason, message: str) -> ConditionSpec:
    return ConditionSpec(type_, "False", reason, message)


_READY_CONDITIONS: Final = (_true(READY), _true(REACHABLE))
