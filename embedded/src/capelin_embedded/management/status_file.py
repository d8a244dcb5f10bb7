"""The status of an environment: its supervisor writes it to a file for all readers."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from capelin.api import Model, Time
from capelin.errors import NotReadyError
from pydantic import ValidationError

from capelin_embedded.management.environment import Environment
from capelin_embedded.management.next_version import Prefetch
from capelin_embedded.processes import CAUSE_UNKNOWN, Phase, Process, ProcessState, write_private

SUPERVISOR: Final = "supervisor"
"""The name of the supervisor's own process."""

_POLL_SECONDS: Final = 0.05

_log = logging.getLogger(__name__)

StageName = Literal["api-server", "installation", "controllers", "extensions"]
"""A stage of bringing an environment up."""

STAGES: Final[tuple[StageName, ...]] = ("api-server", "installation", "controllers", "extensions")
"""All stages, in their order."""

StageState = Literal["Waiting", "Running", "Done", "Failing"]


class Stage(Model):
    name: StageName
    state: StageState = "Waiting"
    seconds: float | None = None
    """Its duration."""
    message: str = ""
    """The reason for waiting or failing."""


class ProcessStatus(Model):
    name: str
    phase: Phase
    pid: int | None = None
    message: str = ""
    restarts: int = 0
    """The number of unplanned restarts since `up` or `start` first ran it."""
    last_end: str = ""
    """The reason of its last end."""
    log: str


class Status(Model):
    """The state of an environment, as observed by its supervisor."""

    supervisor_pid: int
    since: Time
    stages: list[Stage]
    processes: list[ProcessStatus] = []
    prefetch: Prefetch | None = None
    """The programs of the next version, if they are built in the background."""

    @property
    def is_up(self) -> bool:
        """Whether everything that the user requested runs."""
        ready = all(stage.state == "Done" for stage in self.stages)
        return ready and all(process.phase is Phase.RUNNING for process in self.processes)


def process_statuses(states: Mapping[str, ProcessState], environment: str) -> list[ProcessStatus]:
    """The states of an environment's supervisor, for the file."""
    return [
        ProcessStatus(
            name=name,
            phase=state.phase,
            pid=state.pid,
            message=state.reason,
            restarts=state.restarts,
            last_end=_last_end(name, state, environment),
            log=str(state.log),
        )
        for name, state in states.items()
    ]


def _last_end(name: str, state: ProcessState, environment: str) -> str:
    """The reason of a process's end, with a hint if the supervisor could not find it."""
    if not state.last_end.endswith(CAUSE_UNKNOWN):
        return state.last_end
    return f"{state.last_end} (see capelin logs {name} -e {environment})"


def read_status(path: Path) -> Status | None:
    """The status in a file, or None if it is missing or unreadable."""
    try:
        return Status.read_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


class StatusFile:
    """Writes the progress of bringing an environment up to the file."""

    def __init__(
        self, path: Path, *, pid: int, now: datetime, stages: Iterable[StageName] = STAGES
    ) -> None:
        self._path = path
        self._began: dict[StageName, datetime] = {}
        self._status = Status(
            supervisor_pid=pid, since=now, stages=[Stage(name=name) for name in stages]
        )
        self._written = b""

    def stage_running(self, name: StageName, now: datetime) -> None:
        self._began.setdefault(name, now)
        self._stage(name).state = "Running"
        self.write()

    def stage_waiting(self, name: StageName, message: str) -> None:
        """Set the reason for waiting. A failing stage keeps its error until it is done."""
        stage = self._stage(name)
        if stage.state != "Failing":
            stage.message = message
            self.write()

    def stage_failing(self, name: StageName, message: str) -> None:
        stage = self._stage(name)
        stage.state, stage.message = "Failing", message
        self.write()

    def stage_done(self, name: StageName, now: datetime) -> None:
        stage = self._stage(name)
        stage.state, stage.message = "Done", ""
        stage.seconds = round((now - self._began[name]).total_seconds(), 2)
        self.write()

    def processes_changed(self, states: Mapping[str, ProcessState]) -> None:
        self._status.processes = process_statuses(states, self._path.parent.name)
        self.write()

    def prefetching(self, prefetch: Prefetch) -> None:
        self._status.prefetch = prefetch
        self.write()

    def _stage(self, name: StageName) -> Stage:
        return next(stage for stage in self._status.stages if stage.name == name)

    def write(self) -> None:
        """Write the status if it has changed.

        After a failed write, for example on a full disk, the next change writes it.
        """
        content = self._status.model_dump_json(indent=2).encode()
        if content != self._written:
            try:
                write_private(self._path, content)
            except OSError as error:
                _log.warning("the status cannot be written to %s: %s", self._path, error)
            else:
                self._written = content


def supervisor_process(environment: Environment) -> Process | None:
    """The supervisor of an environment, if it runs."""
    return Process.adopt(environment.supervisor, SUPERVISOR)


def current_status(environment: Environment) -> Status | None:
    """The status of an environment, if its supervisor runs."""
    process, status = supervisor_process(environment), read_status(environment.status_file)
    runs = process is not None and status is not None and status.supervisor_pid == process.pid
    return status if runs else None


async def follow_status(environment: Environment) -> AsyncGenerator[Status, None]:
    """The status, after each change, until the environment is up.

    Raises:
        NotReadyError: The supervisor ends.
    """
    process = supervisor_process(environment)
    last: Status | None = None
    while process is not None:
        # Check the process before the status, so as not to skip its last status.
        runs = process.is_running
        status = read_status(environment.status_file)
        if status is not None and status.supervisor_pid == process.pid and status != last:
            last = status
            yield status
            if status.is_up:
                return
        if not runs:
            break
        await asyncio.sleep(_POLL_SECONDS)
    reason = "does not run" if process is None else (await process.wait()).reason
    raise NotReadyError(
        f"Environment {environment.name} did not come up.",
        reason=f"Its supervisor {reason}.",
        hint=f"Read {environment.supervisor / 'supervisor.log'}, then try again.",
    )
