"""What the supervisor of an environment tells everybody else, in a file."""

from typing import Literal

from capelin.api import Model, Time

StepName = Literal["api-server", "installation", "controllers", "extensions"]
StepState = Literal["Waiting", "Running", "Done", "Failed"]


class Step(Model):
    """A part of the way up."""

    name: StepName
    state: StepState = "Waiting"
    seconds: float | None = None
    message: str = ""


class ProcessStatus(Model):
    """One process of the environment."""

    name: str
    phase: str
    pid: int | None = None
    restarts: int = 0
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
        return all(step.state == "Done" for step in self.steps)
