"""Brings an environment up, without clusters, while people watch."""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

from capelin.errors import WaitTimeoutError
from capelin_embedded.binaries import Binaries
from capelin_embedded.management import (
    Environment,
    FetchPrograms,
    FetchProviderPrograms,
    Status,
    Step,
    UpRequest,
    UpView,
    carry_out,
    current_status,
    observe,
    plan_up,
)

from capelin_cli.environments.program_cache import show_progress_on
from capelin_cli.terminal.checklist import Checklist, Line
from capelin_cli.terminal.waiting import Deadline

STAGE_TITLES: Final = {
    "api-server": "etcd and the API server",
    "installation": "kinds, roles and webhooks",
    "controllers": "controllers",
    "extensions": "extensions",
}
UP_SECONDS: Final = 900.0
"""How long `up` waits for the environment and its clusters, without the time of builds."""


async def bring_up_environment(
    environment: Environment, request: UpRequest, checklist: Checklist, deadline: Deadline
) -> None:
    """Bring an environment up without a demo cluster. The caller holds its lock."""
    steps = plan_up(request, await observe(environment, request))
    await follow_steps(environment, steps, checklist, deadline)


async def follow_steps(
    environment: Environment, steps: Sequence[Step], checklist: Checklist, deadline: Deadline
) -> None:
    """Carry out a plan of `up`."""
    view = _ChecklistView(checklist, deadline)
    *preparation, last = steps
    await carry_out(environment, preparation, view)
    try:
        async with asyncio.timeout(deadline.left):
            await carry_out(environment, [last], view)
    except TimeoutError:
        raise WaitTimeoutError(
            f"Environment {environment.name} is not up after {deadline.within:.0f} s.",
            reason=waiting_for(current_status(environment)) or "It reports no reason.",
            hint=f"Its supervisor keeps trying. See capelin logs -e {environment.name}.",
        ) from None


class _ChecklistView(UpView):
    def __init__(self, checklist: Checklist, deadline: Deadline) -> None:
        self._checklist = checklist
        self._deadline = deadline
        self._lines: dict[str, Line] = {}

    @contextmanager
    def fetching(self, step: FetchPrograms | FetchProviderPrograms) -> Generator[Binaries]:
        title = "programs" if isinstance(step, FetchPrograms) else "programs of providers"
        with self._deadline.paused(), self._checklist.step(title) as line:
            if isinstance(step, FetchProviderPrograms):
                self._checklist.update(line, "packages of providers are loaded")
            yield Binaries(progress=show_progress_on(self._checklist, line))
            line.detail = f"Kubernetes {step.settings.kubernetes_version}"

    def progressed(self, status: Status) -> None:
        for stage in status.stages:
            if stage.state == "Waiting":
                continue
            line = self._lines.get(stage.name)
            if line is None:
                line = self._lines[stage.name] = self._checklist.begin(STAGE_TITLES[stage.name])
            if stage.state == "Done" and line.state == "running":
                self._checklist.end(line, seconds=stage.seconds)
            elif line.state == "running":
                self._checklist.update(line, stage.message or waiting_for(status))


def waiting_for(status: Status | None) -> str:
    """The message of the first process that is not ready, or its phase."""
    processes = status.processes if status is not None else []
    unready = [process for process in processes if process.phase != "Running"]
    # A process with a message comes first: the others may only wait for it.
    unready.sort(key=lambda process: not process.message)
    return f"{unready[0].name}: {unready[0].message or unready[0].phase}" if unready else ""
