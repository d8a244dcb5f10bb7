"""`capelin up`: an environment and its demo cluster, as people watch them come up."""

import asyncio
import shlex
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from capelin.embedded.binaries import KNOWN_KUBERNETES, Binaries, Progress, ProgressEvent
from capelin.embedded.management import (
    Environment,
    FetchPrograms,
    FetchProviderPrograms,
    Status,
    Step,
    UpRequest,
    UpView,
    carry_out,
    current_status,
    environment_named,
    observe,
    plan_up,
    workload_programs,
)
from capelin.errors import WaitTimeoutError
from rich.console import Console

from capelin_infra.clusters.demo import NAME, ClusterRequest, DemoOptions, bring_up_cluster
from capelin_infra.environments.connection import client_of
from capelin_infra.environments.kind_target import KindOptions, in_kind_cluster, kind_cluster_of
from capelin_infra.environments.kubeconfigs import workload_kubeconfig
from capelin_infra.environments.kubernetes_versions import parse_version
from capelin_infra.terminal.checklist import Checklist, Line
from capelin_infra.terminal.invocation import command_name, environment_option
from capelin_infra.terminal.waiting import Deadline

STAGE_TITLES: Final = {
    "api-server": "etcd and the API server",
    "installation": "kinds, roles and webhooks",
    "controllers": "controllers",
    "extensions": "extensions",
}
UP_SECONDS: Final = 900.0
"""How long `up` waits for the environment and its clusters, without the time of builds."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `capelin up`."""

    name: str
    request: UpRequest = field(default_factory=UpRequest)
    demo: DemoOptions | None = field(default_factory=DemoOptions)
    """The demo cluster; none with `--management-only`."""
    clusters: Sequence[ClusterRequest] = ()
    """Clusters that a file describes."""
    within: float = UP_SECONDS
    kind: KindOptions | None = None
    """For the target `kind`: how its cluster is made, if it has to be."""


async def bring_up(options: UpOptions, console: Console | None = None) -> None:
    """From nothing, or whatever there is, to an environment in which everything runs.

    Raises:
        UserError: if something asked for is not possible, or did not come up.
    """
    console = console or Console()
    began = time.monotonic()
    deadline = Deadline(options.within)
    environment = environment_named(options.name)
    request = options.request
    if request.kubernetes_version is not None:
        version = parse_version(request.kubernetes_version, KNOWN_KUBERNETES)
        request = replace(request, kubernetes_version=version)
    if options.demo is not None or options.clusters:
        # Its machines join with the kubeadm bootstrap provider's data.
        request = replace(request, providers=(*request.providers, "kubeadm-bootstrap"))
    if options.kind is not None or kind_cluster_of(environment) is not None:
        with environment.locked("up"), Checklist(console).shown() as checklist:
            async with in_kind_cluster(
                environment, request, options.kind, checklist, deadline
            ) as on_kind:
                steps = plan_up(on_kind, await observe(environment, on_kind))
    else:
        steps = plan_up(request, await observe(environment, request))
    with environment.locked("up"), Checklist(console).shown() as checklist:
        for version in {cluster.options.version or "" for cluster in options.clusters} - {""}:
            with deadline.paused():
                await fetch_workload_programs(checklist, version)
        await _follow_steps(environment, steps, checklist, deadline)
        settings = environment.settings()
        version = settings.kubernetes_version if settings else ""
        clusters = list(options.clusters)
        if options.demo is not None:
            clusters.append(ClusterRequest(NAME, "default", options.demo))
        async with client_of(environment) as client:
            await asyncio.gather(
                *(
                    bring_up_cluster(
                        checklist,
                        client,
                        version,
                        cluster,
                        deadline,
                        environment=environment.name,
                    )
                    for cluster in clusters
                )
            )
    await _print_next_steps(
        console, environment, clusters, f"is up after {time.monotonic() - began:.0f} s"
    )


async def bring_up_environment(
    environment: Environment, request: UpRequest, checklist: Checklist, deadline: Deadline
) -> None:
    """Bring an environment up without a demo cluster; the caller holds its lock.

    Raises:
        UserError: if something asked for is not possible, or did not come up.
    """
    steps = plan_up(request, await observe(environment, request))
    await _follow_steps(environment, steps, checklist, deadline)


async def _follow_steps(
    environment: Environment, steps: Sequence[Step], checklist: Checklist, deadline: Deadline
) -> None:
    view = _ChecklistView(checklist, deadline)
    *preparation, last = steps
    await carry_out(environment, preparation, view)
    try:
        async with asyncio.timeout(deadline.left):
            await carry_out(environment, [last], view)
    except TimeoutError:
        raise WaitTimeoutError(
            f"Environment {environment.name} is not up after {deadline.within:.0f} s.",
            reason=waiting_for(current_status(environment)) or "It does not say why.",
            hint=f"Its supervisor goes on trying; see capelin logs -e {environment.name}.",
        ) from None


async def fetch_workload_programs(checklist: Checklist, version: str) -> None:
    """Get the programs of a version while somebody watches: the provider would do it unseen."""
    programs = workload_programs(version)
    if await Binaries().has(programs):
        return
    with checklist.step("programs of clusters") as line:
        await Binaries(progress=show_progress_on(checklist, line)).fetch(programs)
        line.detail = f"Kubernetes {version}"


def show_progress_on(checklist: Checklist, line: Line) -> Progress:
    """Show on one line of a checklist how programs are downloaded or built."""

    def show(event: ProgressEvent) -> None:
        put = checklist.update if event.kind == "advanced" else checklist.note
        put(line, str(event).splitlines()[0])

    return show


class _ChecklistView(UpView):
    """Crosses off what the supervisor has done."""

    def __init__(self, checklist: Checklist, deadline: Deadline) -> None:
        self._checklist = checklist
        self._deadline = deadline
        self._lines: dict[str, Line] = {}

    @contextmanager
    def fetching(self, step: FetchPrograms | FetchProviderPrograms) -> Generator[Binaries]:
        title = "programs" if isinstance(step, FetchPrograms) else "programs of providers"
        with self._deadline.paused(), self._checklist.step(title) as line:
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
    """What the first process that is not ready says, or else what it does."""
    processes = status.processes if status is not None else []
    unready = [process for process in processes if process.phase != "Running"]
    # One that says why comes first: the others may only wait for it.
    unready.sort(key=lambda process: not process.message)
    return f"{unready[0].name}: {unready[0].message or unready[0].phase}" if unready else ""


async def _print_next_steps(
    console: Console, environment: Environment, clusters: Sequence[ClusterRequest], text: str
) -> None:
    command = command_name()
    option = environment_option(environment.name)
    files = [("use it", environment.kubeconfig)]
    for cluster in clusters:
        file = await workload_kubeconfig(environment, cluster.name, cluster.namespace)
        files.append((f"use {cluster.name}", file))
    console.print()
    console.print(f"Environment [bold]{environment.name}[/] {text}.", highlight=False)
    if clusters:
        console.print(
            "Control planes are real; machines are simulated: pods are scheduled, and no container "
            "runs.",
            highlight=False,
            soft_wrap=True,
        )
    console.print("Next:")
    for title, line in (
        ("look at it", f"{command} status{option}"),
        # The file itself: where the command is not found, $(...) would leave KUBECONFIG empty, and
        # kubectl would talk to whatever cluster it knows otherwise.
        *((title, f"export KUBECONFIG={shlex.quote(str(path))}") for title, path in files),
        ("or for kubectl", f"{command} kubeconfig --merge{option}"),
        *(
            ("upgrade a cluster", f"{command} upgrade cluster {_options_of(cluster)}{option}")
            for cluster in clusters[:1]
        ),
        ("pause it", f"{command} stop{option}"),
        ("remove it", f"{command} down{option}"),
    ):
        console.print(f"  {title:<17} [cyan]{line}[/]", highlight=False, soft_wrap=True)


def _options_of(cluster: ClusterRequest) -> str:
    """How a command names a cluster."""
    namespace = "" if cluster.namespace == "default" else f" -n {cluster.namespace}"
    return f"{cluster.name}{namespace}"
