"""Decides the next step of a bootstrap or a clean-up from the state of the machine."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto


class UnreadableStateError(ValueError):
    """The answer of a machine is not the state that the script prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A script that was started on a machine."""

    alive: bool
    exit_code: int | None = None
    """None while it runs, and for ever if it was killed."""
    sentinel: bool = False
    """Whether the file of Cluster API's contract existed at its end."""
    output: str = field(default="", repr=False)
    """The end of its output, with secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """Observed state of a machine."""

    boot_id: str
    hostname: str
    marker: str | None = None
    """The uid of the machine whose bootstrap data it executes."""
    node_files: tuple[str, ...] = ()
    """Files that show that it is a node, of any cluster."""
    missing: tuple[str, ...] = ()
    """Required programs that it does not have."""
    baseline: str | None = None
    """Digest of the recorded state from before its first use."""
    differences: tuple[str, ...] = ()
    """The differences of a machine without a marker from that state."""
    bootstrap: JobState | None = None
    update: JobState | None = None
    update_version: str | None = None
    """The Kubernetes version of the last update in place."""
    clean: JobState | None = None


class BootstrapStep(Enum):
    """The next step of a bootstrap."""

    MARK = auto()
    """Mark the machine, so that no other bootstrap begins."""
    START = auto()
    """Start the execution."""
    WAIT = auto()
    SUCCEEDED = auto()
    FAILED = auto()
    """The data were executed, and the machine did not become a node."""
    INTERRUPTED = auto()
    """The execution was killed, for instance by a reboot. It is not repeated."""
    UNFIT = auto()
    """The machine lacks programs that the scripts need."""
    DIRTY = auto()
    """The machine is another one's, is already a node, or differs from its baseline."""


class UpdateStep(Enum):
    """The next step of an update in place."""

    START = auto()
    WAIT = auto()
    SUCCEEDED = auto()
    FAILED = auto()
    INTERRUPTED = auto()
    """The execution was killed, for instance by a reboot. It is not repeated."""
    OTHER = auto()
    """The machine is another one's, or is being cleaned."""


class CleanStep(Enum):
    """The next step of a clean-up."""

    START = auto()
    WAIT = auto()
    CLEAN = auto()
    FAILED = auto()
    """It ended, and the machine is not clean."""
    OTHER = auto()
    """The machine is another one's by now: there is nothing to do."""


def next_bootstrap_step(uid: str, observed: HostState) -> BootstrapStep:
    """The next step of a bootstrap. Bootstrap data are started at most once for a uid."""
    if observed.marker is None:
        if observed.node_files or observed.differences:
            return BootstrapStep.DIRTY
        return BootstrapStep.UNFIT if observed.missing else BootstrapStep.MARK
    if observed.marker != uid or observed.clean is not None:
        return BootstrapStep.DIRTY
    job = observed.bootstrap
    if job is None:
        return BootstrapStep.START
    if job.exit_code is None:
        return BootstrapStep.WAIT if job.alive else BootstrapStep.INTERRUPTED
    # By the contract, the sentinel decides. Commands after kubeadm may have failed.
    return BootstrapStep.SUCCEEDED if job.sentinel else BootstrapStep.FAILED


def next_update_step(uid: str, version: str, observed: HostState) -> UpdateStep:
    """The next step of an update. It is started at most once for a uid and a version."""
    if observed.marker != uid or observed.clean is not None:
        return UpdateStep.OTHER
    job = observed.update
    if job is None or observed.update_version != version:
        return UpdateStep.START
    if job.exit_code is None:
        return UpdateStep.WAIT if job.alive else UpdateStep.INTERRUPTED
    return UpdateStep.SUCCEEDED if job.exit_code == 0 else UpdateStep.FAILED


def next_clean_step(uid: str, observed: HostState, *, retry: bool = False) -> CleanStep:
    """The next step of a clean-up. After a failure, only a person starts it again (`retry`)."""
    if observed.marker is None:
        return CleanStep.CLEAN
    if observed.marker != uid:
        return CleanStep.OTHER
    job = observed.clean
    if job is None or (not job.alive and job.exit_code is None):
        return CleanStep.START
    if job.exit_code is None:
        return CleanStep.WAIT
    return CleanStep.START if retry else CleanStep.FAILED


def read_host_state(output: bytes) -> HostState:
    """Read the output of the script that observes a machine.

    Raises:
        UnreadableStateError: It is not complete, or not from that script.
    """
    values: dict[str, list[str]] = {}
    for line in output.decode(errors="replace").splitlines():
        key, _, value = line.partition("=")
        values.setdefault(key, []).append(value)
    if "end" not in values or not values.get("boot"):
        raise UnreadableStateError("the machine's answer is not complete")
    return HostState(
        boot_id=values["boot"][0],
        hostname=_first(values, "hostname") or "",
        marker=_first(values, "marker"),
        node_files=tuple(values.get("node", ())),
        missing=tuple(values.get("missing", ())),
        baseline=_first(values, "baseline"),
        differences=tuple(values.get("difference", ())),
        bootstrap=_job(values, "bootstrap"),
        update=_job(values, "update"),
        update_version=_first(values, "update.version"),
        clean=_job(values, "clean"),
    )


def problems(output: str) -> Sequence[str]:
    """The findings of a clean-up's verification."""
    prefix = "problem: "
    lines = output.splitlines()
    return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]


def _job(values: dict[str, list[str]], name: str) -> JobState | None:
    alive = _first(values, f"{name}.alive")
    if alive is None:
        return None
    try:
        output = base64.b64decode(_first(values, f"{name}.output") or "").decode(errors="replace")
        code, _, reached = (_first(values, f"{name}.exit") or "").partition(" ")
        exit_code = int(code) if code else None
    except (binascii.Error, ValueError):
        raise UnreadableStateError(f"the state of {name} is unreadable") from None
    return JobState(
        alive=alive == "yes", exit_code=exit_code, sentinel=reached == "yes", output=output
    )


def _first(values: dict[str, list[str]], key: str) -> str | None:
    return next(iter(values.get(key, ())), None)
