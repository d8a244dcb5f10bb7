"""`capelin up`: an environment and its demo cluster, as people watch them come up."""

import asyncio
import os
import shlex
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from capelin.embedded.binaries import KNOWN_KUBERNETES, Binaries, Progress, ProgressEvent
from capelin.embedded.management import (
    Environment,
    Settings,
    Status,
    Step,
    UpRequest,
    UpView,
    carry_out,
    current_status,
    environment_named,
    observe,
    plan_up,
)
from capelin.errors import WaitTimeoutError
from rich.console import Console

from capelin_infra.connection import client_of
from capelin_infra.demo import NAME, DemoOptions, bring_up_demo
from capelin_infra.kubeconfigs import workload_kubeconfig
from capelin_infra.progress import Checklist, Line
from capelin_infra.versions import parse_version

STAGE_TITLES: Final = {
    "api-server": "etcd and the API server",
    "installation": "kinds, roles and webhooks",
    "controllers": "controllers",
    "extensions": "extensions",
}
_UP_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `capelin up`."""

    name: str
    request: UpRequest = field(default_factory=UpRequest)
    demo: DemoOptions | None = field(default_factory=DemoOptions)
    """The demo cluster; none with `--management-only`."""


async def bring_up(options: UpOptions, console: Console | None = None) -> None:
    """From nothing, or whatever there is, to an environment in which everything runs.

    Raises:
        UserError: if something asked for is not possible, or did not come up.
    """
    console = console or Console()
    environment = environment_named(options.name)
    request = options.request
    if request.kubernetes_version is not None:
        version = parse_version(request.kubernetes_version, KNOWN_KUBERNETES)
        request = replace(request, kubernetes_version=version)
    if options.demo is not None:
        # Its machines join with the kubeadm bootstrap provider's data.
        request = replace(request, providers=(*request.providers, "kubeadm-bootstrap"))
    steps = plan_up(request, await observe(environment, request))
    with environment.locked("up"), Checklist(console).shown() as checklist:
        await _follow_steps(environment, steps, checklist)
        if options.demo is not None:
            settings = environment.settings()
            async with client_of(environment) as client:
                version = settings.kubernetes_version if settings else ""
                await bring_up_demo(checklist, client, version, options.demo)
    await _print_next_steps(console, environment, demo=options.demo is not None)


async def bring_up_environment(
    environment: Environment, request: UpRequest, checklist: Checklist
) -> None:
    """Bring an environment up without a demo cluster; the caller holds its lock.

    Raises:
        UserError: if something asked for is not possible, or did not come up.
    """
    steps = plan_up(request, await observe(environment, request))
    await _follow_steps(environment, steps, checklist)


async def _follow_steps(
    environment: Environment, steps: Sequence[Step], checklist: Checklist
) -> None:
    view = _ChecklistView(checklist)
    *preparation, last = steps
    await carry_out(environment, preparation, view)
    try:
        async with asyncio.timeout(_UP_SECONDS):
            await carry_out(environment, [last], view)
    except TimeoutError:
        raise WaitTimeoutError(
            f"Environment {environment.name} is not up after {_UP_SECONDS:.0f} s.",
            reason=_waiting_for(current_status(environment)) or "It does not say why.",
            hint=f"Its supervisor goes on trying; see capelin logs -e {environment.name}.",
        ) from None


def show_progress_on(checklist: Checklist, line: Line) -> Progress:
    """Show on one line of a checklist how programs are downloaded or built."""

    def show(event: ProgressEvent) -> None:
        put = checklist.update if event.kind == "advanced" else checklist.note
        put(line, str(event).splitlines()[0])

    return show


class _ChecklistView(UpView):
    """Crosses off what the supervisor has done."""

    def __init__(self, checklist: Checklist) -> None:
        self._checklist = checklist
        self._lines: dict[str, Line] = {}

    @contextmanager
    def fetching(self, settings: Settings) -> Generator[Binaries]:
        with self._checklist.step("programs") as line:
            yield Binaries(progress=show_progress_on(self._checklist, line))
            line.detail = f"Kubernetes {settings.kubernetes_version}"

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
                self._checklist.update(line, stage.message or _waiting_for(status))


def _waiting_for(status: Status | None) -> str:
    """What the first process that is not ready says."""
    processes = status.processes if status is not None else []
    unready = [each for each in processes if each.phase != "Running" and each.message]
    return f"{unready[0].name}: {unready[0].message}" if unready else ""


async def _print_next_steps(console: Console, environment: Environment, *, demo: bool) -> None:
    command = command_name()
    option = "" if environment.name == "default" else f" -e {environment.name}"
    files = [("use it", environment.kubeconfig)]
    if demo:
        files.append(("use the cluster", await workload_kubeconfig(environment, NAME, "default")))
    console.print()
    console.print(f"Environment [bold]{environment.name}[/] is up. Next:")
    for title, line in (
        ("look at it", f"{command} status{option}"),
        # The file itself: where the command is not found, $(...) would leave KUBECONFIG empty, and
        # kubectl would talk to whatever cluster it knows otherwise.
        *((title, f"export KUBECONFIG={shlex.quote(str(path))}") for title, path in files),
        ("remove it", f"{command} down{option}"),
    ):
        console.print(f"  {title:<16} [cyan]{line}[/]", highlight=False, soft_wrap=True)


def command_name(variables: Mapping[str, str] = os.environ) -> str:
    """How the user calls the command: alone, or by way of uv."""
    return "uv run capelin" if "UV_RUN_RECURSION_DEPTH" in variables else "capelin"
