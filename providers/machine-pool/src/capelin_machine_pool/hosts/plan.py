"""Decides what happens on a host next. The claim and the machine's record of it decide."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from capelin.api import Condition
from capelin.contract import find_condition

from capelin_machine_pool.api import CapelinMachine
from capelin_machine_pool.hosts.api import (
    CLEAN_AGAIN_ANNOTATION,
    RENEW_BASELINE_ANNOTATION,
    CapelinHost,
    HostClaim,
    HostStatus,
)
from capelin_machine_pool.reasons import Reason

REACHABLE: Final = "Reachable"
CLEAN: Final = "Clean"
UPDATED: Final = "Updated"
"""The condition of an update in place."""


class Visit(Enum):
    """The work of the provider on a host."""

    LEARN_KEY = auto()
    """Read the key of its SSH server, to trust it from now on."""
    CHECK = auto()
    """Read its state. Without a baseline, record it."""
    RENEW_BASELINE = auto()
    """Record the baseline again, because an administrator requests it."""
    BOOTSTRAP = auto()
    """Execute the bootstrap data of the machine that has claimed it."""
    UPDATE = auto()
    """Install another version of Kubernetes, and update the node in place."""
    CLEAN = auto()
    """Undo the bootstrap."""
    CLEAN_AGAIN = auto()
    """Undo it again after a failure, because an administrator requests it."""
    POWER_CYCLE = auto()
    """Switch it off and on."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing yet."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Release:
    """Release the claim: the machine has another host, or an administrator confirms its end."""


@dataclass(frozen=True, slots=True)
class Orphaned:
    """The machine no longer exists, and did not release the host."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class RejectRequest:
    """Remove a request that does not apply: it is not for the present claim."""

    message: str
    annotation: str = CLEAN_AGAIN_ANNOTATION


HostStep = Visit | Wait | Release | Orphaned | RejectRequest

_RECORD_SECONDS = 1.0
"""How soon to look whether a machine has recorded its claim."""


def next_host_step(host: CapelinHost, machine: CapelinMachine | None) -> HostStep:
    """The next step for a host.

    Args:
        host: The host.
        machine: The machine that its claim names, if it exists.
    """
    claim, spec = host.spec.claim, host.spec
    renews = RENEW_BASELINE_ANNOTATION in host.metadata.annotations
    if renews and (obstacle := _keeps_baseline(host)):
        return RejectRequest(obstacle, RENEW_BASELINE_ANNOTATION)
    request = host.metadata.annotations.get(CLEAN_AGAIN_ANNOTATION)
    if claim is not None and claim.released_at is None:
        return _step_in_use(host, claim, machine, request)
    if not spec.host_keys and not spec.host_authorities:
        return Visit.LEARN_KEY
    if request is not None:
        return Visit.CLEAN_AGAIN
    if claim is not None:
        return Visit.CLEAN
    return Visit.RENEW_BASELINE if renews else Visit.CHECK


def _keeps_baseline(host: CapelinHost) -> str:
    """Why the baseline of a host cannot be renewed. Empty if it can."""
    if host.spec.claim is not None:
        return f"the machine {host.spec.claim.machine} has the host: renew the baseline after it"
    if host.status is not None and host.status.phase == "Broken":
        return f"the host is Broken: set the annotation {CLEAN_AGAIN_ANNOTATION} first"
    return ""


def _step_in_use(
    host: CapelinHost, claim: HostClaim, machine: CapelinMachine | None, request: str | None
) -> HostStep:
    """The next step for a host that no machine has released."""
    if machine is None or not _has_claimed(machine, claim):
        # It may be in another management cluster, so its node is not cleaned.
        if request is None:
            message = (
                f"the machine {claim.machine} of cluster {claim.cluster} no longer exists, but it"
                f" did not release the host; {_confirmation(claim)}"
            )
            return Orphaned(Reason.MACHINE_MISSING, message)
        message = f"no machine released the host: {_confirmation(claim)}"
        return Release() if request == claim.id else RejectRequest(message)
    if request is not None:
        # Left in place, it would confirm the end of a machine that is moved, or of a later one.
        return RejectRequest(f"the machine {claim.machine} uses the host: delete its Machine")
    recorded = machine.spec.host
    if recorded is None:
        return Wait(_RECORD_SECONDS)
    return _own_visit(host, claim) if recorded.name == host.name else Release()


def _has_claimed(machine: CapelinMachine, claim: HostClaim) -> bool:
    """Whether a claim is that of this machine, and not of an earlier one with its name."""
    recorded = machine.spec.host
    own = machine.uid if recorded is None else recorded.claim
    return machine.spec.backend == "Hosts" and own == claim.id


def _own_visit(host: CapelinHost, claim: HostClaim) -> Visit:
    if not host.spec.host_keys and not host.spec.host_authorities:
        return Visit.LEARN_KEY
    if not is_bootstrapped(host):
        return Visit.BOOTSTRAP
    return Visit.CHECK if is_updated(host, claim) else Visit.UPDATE


def is_updated(host: CapelinHost, claim: HostClaim) -> bool:
    """Whether a host has no pending update in place. Without a status, a visit shows it again."""
    updated = host.status.updated_version if host.status else None
    return claim.update_version is None or claim.update_version == updated


def own_status(host: CapelinHost) -> HostStatus | None:
    """The status of a host, if it is about the present claim."""
    status, claim = host.status, host.spec.claim
    is_own = status is not None and claim is not None and status.claim == claim.id
    return status if is_own else None


def failed_update(host: CapelinHost) -> Condition | None:
    """The condition of the last update in place, if that has failed."""
    status = own_status(host)
    updated = find_condition(status.conditions, UPDATED) if status else None
    is_failure = updated is not None and updated.reason == str(Reason.UPDATE_FAILED)
    return updated if is_failure else None


def is_bootstrapped(host: CapelinHost) -> bool:
    """Whether the bootstrap of the present claim has succeeded.

    Without the status, for example after a move, the marker on the host shows it again.
    """
    status = own_status(host)
    return status is not None and status.phase in {"Ready", "Updating"}


def _confirmation(claim: HostClaim) -> str:
    annotation = f"{CLEAN_AGAIN_ANNOTATION}={claim.id}"
    return f"if no cluster uses the host, set the annotation {annotation} to clean it"
