"""What the supervisor of an environment tells everybody else, in a file."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from capelin.api import Model, Time
from capelin.embedded.processes import Phase, State, write_private

StepName = Literal["api-server", "installation", "controllers", "extensions"]
"""A part of the way up."""

STEPS: Final[tuple[StepName, ...]] = ("api-server", "installation", "controllers", "extensions")
"""The whole way up, in its order."""

StepState = Literal["Waiting", "Running", "Done", "Failing"]


class Step(Model):
    """A part of the way up."""

    name: StepName
    state: StepState = "Waiting"
    seconds: float | None = None
    """How long it took."""
    message: str = ""
    """What it waits for, or why it does not work."""


class ProcessStatus(Model):
    """One process of the environment."""

    name: str
    phase: Phase
    pid: int | None = None
    message: str = ""
    log: str


class Status(Model):
    """An environment as its supervisor sees it."""

    supervisor_pid: int
    since: Time
    steps: list[Step]
    processes: list[ProcessStatus] = []

    @property
    def is_up(self) -> bool:
        """Whether everything that was asked for runs."""
        steps = all(step.state == "Done" for step in self.steps)
        return steps and all(each.phase is Phase.RUNNING for each in self.processes)


def processes_of(states: Mapping[str, State]) -> list[ProcessStatus]:
    """The states of a supervisor, for the file."""
    return [
        ProcessStatus(
            name=name, phase=state.phase, pid=state.pid, message=state.reason, log=str(state.log)
        )
        for name, state in states.items()
    ]


def read_status(path: Path) -> Status | None:
    """What the supervisor last said; nothing if it said nothing that can be read."""
    try:
        return Status.read_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


class Journal:
    """Keeps the file up to date with how far the way up has come."""

    def __init__(
        self, path: Path, *, pid: int, now: datetime, steps: Iterable[StepName] = STEPS
    ) -> None:
        self._path = path
        self._began: dict[StepName, datetime] = {}
        self._status = Status(
            supervisor_pid=pid, since=now, steps=[Step(name=name) for name in steps]
        )
        self._written = b""

    def running(self, name: StepName, now: datetime) -> None:
        """A step begins."""
        self._began[name] = now
        self._step(name).state = "Running"
        self._write()

    def failing(self, name: StepName, message: str) -> None:
        """A step does not work; it is tried again."""
        step = self._step(name)
        step.state, step.message = "Failing", message
        self._write()

    def done(self, name: StepName, now: datetime) -> None:
        """A step is over."""
        step = self._step(name)
        step.state, step.message = "Done", ""
        step.seconds = round((now - self._began[name]).total_seconds(), 2)
        self._write()

    def seen(self, states: Mapping[str, State]) -> None:
        """Processes as they are now."""
        self._status.processes = processes_of(states)
        self._write()

    def _step(self, name: StepName) -> Step:
        return next(step for step in self._status.steps if step.name == name)

    def _write(self) -> None:
        content = self._status.model_dump_json(indent=2).encode()
        if content != self._written:
            write_private(self._path, content)
            self._written = content
