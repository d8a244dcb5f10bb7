"""`capelin up`, `start` and `dev`: an environment and its clusters, as people watch them."""

import asyncio
import os
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from capelin.api.capi import Cluster
from capelin.client import Client
from capelin.contract import is_asleep, paused
from capelin.errors import NotReadyError, UserError
from capelin_embedded.binaries import KNOWN_KUBERNETES
from capelin_embedded.management import (
    Environment,
    Step,
    UpRequest,
    api_answers,
    code_digest,
    environment_named,
    is_hosted,
    observe,
    plan_up,
    prefetch_by_default,
    provider_modules,
    upgrades_of,
)
from rich.console import Console

from capelin_cli.clusters.demo import NAME, ClusterRequest, bring_up_cluster, on_containers
from capelin_cli.clusters.topology import ClusterOptions
from capelin_cli.environments.bring_up import UP_SECONDS, bring_up_environment, follow_steps
from capelin_cli.environments.connection import ClusterName, client_of, find_environment
from capelin_cli.environments.containers import (
    ContainerMachines,
    Machines,
    engine_of,
    find_container_machines,
    version_for,
)
from capelin_cli.environments.kind_target import KindOptions, in_kind_cluster, kind_cluster_of
from capelin_cli.environments.kubeconfigs import workload_kubeconfig
from capelin_cli.environments.kubernetes_versions import parse_version
from capelin_cli.environments.program_cache import fetch_workload_programs
from capelin_cli.status.readiness import not_ready_reason, observe_cluster
from capelin_cli.terminal.checklist import Checklist, timings_data, timings_table
from capelin_cli.terminal.tables import Format, print_data
from capelin_cli.terminal.text import as_invoked, command_name, environment_option
from capelin_cli.terminal.waiting import Deadline, wait_for

_LONGEST_WITHOUT_PROGRESS: Final = 180.0
"""In seconds. A cluster that shows the same reason for longer was not ready before the stop."""
_POLL_SECONDS: Final = 0.3
Digests = Mapping[str, str]
"""Labels of providers, and a digest of the code of each."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `capelin up`."""

    name: str
    request: UpRequest = field(default_factory=UpRequest)
    demo: ClusterOptions | None = field(default_factory=ClusterOptions)
    """The demo cluster. None with `--management-only`."""
    clusters: Sequence[ClusterRequest] = ()
    """Clusters that a file describes."""
    within: float = UP_SECONDS
    machines: Machines = "simulated"
    """The kind of the demo cluster's machines."""
    machine_image: str | None = None
    """Image of machines that are containers. None is the default."""
    kind: KindOptions | None = None
    """For the target `kind`: the options of a new cluster."""
    timings: bool = False
    """Whether to print how long each stage took, and why it waited."""
    output: Format = "text"
    """The data formats have the timings, and the progress goes to the standard error."""


async def bring_up(options: UpOptions, console: Console | None = None) -> None:
    """From nothing, or whatever there is, to an environment in which everything runs."""
    as_data = options.output in {"json", "yaml"}
    console = console or Console(stderr=as_data)
    checklist = Checklist(console)
    environment = environment_named(options.name)
    clusters = list(options.clusters)
    if options.demo is not None:
        clusters.append(ClusterRequest(NAME, "default", options.demo))
    began = time.monotonic()
    try:
        await _bring_up(environment, options, clusters, checklist)
    finally:
        # They explain a failure as well.
        seconds = time.monotonic() - began
        if as_data:
            data = {
                "environment": environment.name,
                "kubeconfig": str(environment.kubeconfig),
                "seconds": round(seconds, 2),
                "stages": timings_data(checklist.lines),
            }
            print_data(data, options.output)
        elif options.timings:
            console.print()
            console.print(timings_table(checklist.lines))
    if not as_data:
        await _print_next_steps(console, environment, clusters, f"is up after {seconds:.0f} s")


async def _bring_up(
    environment: Environment,
    options: UpOptions,
    clusters: Sequence[ClusterRequest],
    checklist: Checklist,
) -> None:
    deadline = Deadline(options.within)
    request = options.request
    if request.kubernetes_version is not None:
        version = parse_version(request.kubernetes_version, KNOWN_KUBERNETES)
        request = replace(request, kubernetes_version=version)
    if request.prefetch is None and environment.settings() is None:
        request = replace(request, prefetch=prefetch_by_default(os.environ))
    if clusters:
        # Its machines join with the kubeadm bootstrap provider's data.
        request = replace(request, providers=(*request.providers, "kubeadm-bootstrap"))
    steps: Sequence[Step] = ()
    if options.kind is None and kind_cluster_of(environment) is None:
        # Reject an impossible request before writing anything.
        steps = plan_up(request, await observe(environment, request))
    with environment.locked("up"), checklist.shown():
        machines = await find_container_machines(options.machines, options.machine_image, checklist)
        if machines is not None:
            clusters = [
                on_containers(cluster, machines, request.kubernetes_version) for cluster in clusters
            ]
            request = _for_containers(request, machines, is_new=environment.settings() is None)
            if steps:
                steps = plan_up(request, await observe(environment, request))
        for version in {cluster.options.version or "" for cluster in clusters} - {""}:
            with deadline.paused():
                await fetch_workload_programs(checklist, version)
        if not steps:
            async with in_kind_cluster(
                environment, request, options.kind, checklist, deadline
            ) as placed:
                steps = plan_up(placed, await observe(environment, placed))
        await follow_steps(environment, steps, checklist, deadline)
        settings = environment.settings()
        version = settings.kubernetes_version if settings else ""
        async with client_of(environment) as client:
            await asyncio.gather(
                *(
                    bring_up_cluster(
                        checklist, client, version, cluster, deadline, environment=environment.name
                    )
                    for cluster in clusters
                )
            )


def _for_containers(request: UpRequest, machines: ContainerMachines, *, is_new: bool) -> UpRequest:
    """The request for an environment whose provider may create containers."""
    version = request.kubernetes_version
    if is_new and version is None:
        # One version for both clusters: its programs are fetched only once.
        version = version_for(machines.kubernetes_version, None)
    variables = {**request.variables, **machines.variables(os.environ)}
    return replace(request, kubernetes_version=version, variables=variables)


async def start(name: str, *, within: float) -> None:
    """Start an environment that was stopped, and wait until its clusters are as they were."""
    environment = find_environment(name)
    if environment.settings() is None:
        raise NotReadyError(
            f"Environment {name} was never started.",
            reason="There is nothing to start.",
            hint=f"Begin with capelin up -e {name}.",
        )
    deadline = Deadline(within)
    with environment.locked("start"), Checklist(Console()).shown() as checklist:
        async with in_kind_cluster(environment, UpRequest(), None, checklist, deadline) as request:
            await bring_up_environment(environment, request, checklist, deadline)
        async with client_of(environment) as client:
            clusters = (await client.list(Cluster)).items
            await asyncio.gather(
                *(
                    _follow(client, cluster, checklist, deadline)
                    for cluster in clusters
                    if not is_asleep(cluster)
                )
            )


@dataclass(slots=True)
class Progress:
    """Why a cluster is not as before, until that does not change any more."""

    now: Callable[[], float] = time.monotonic
    reason: str | None = None
    since: float = 0.0

    def still(self, reason: str | None) -> str | None:
        """The reason to wait. None if it is ready, or was not ready before either."""
        if reason != self.reason:
            self.reason, self.since = reason, self.now()
        return None if self.now() - self.since > _LONGEST_WITHOUT_PROGRESS else reason


async def _follow(
    client: Client, cluster: Cluster, checklist: Checklist, deadline: Deadline
) -> None:
    """Wait until a cluster is as it was before the environment stopped."""
    name, namespace = cluster.name, cluster.namespace or "default"
    progress, is_paused = Progress(), paused(cluster, cluster).status == "True"

    async def problem() -> str | None:
        # Its conditions are from before the stop, until their controllers write them again.
        if is_hosted(cluster) and not await api_answers(client, cluster):
            return progress.still("its API server does not answer yet")
        if is_paused:
            return progress.still(None)
        return progress.still(not_ready_reason(await observe_cluster(client, name, namespace)))

    with checklist.step(f"cluster {name}") as line:
        await wait_for(f"cluster {name}", problem, deadline.left, checklist.showing(line))
        line.detail = "is paused" if is_paused else ""
        if progress.reason is not None:
            line.detail = f"is not ready, and others do not wait for it: {progress.reason}"


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
        machines = (
            "machines are simulated: pods are scheduled, and no container runs."
            if engine_of(environment) is None
            else "machines are containers in which pods run."
        )
        console.print(f"Control planes are real, {machines}", highlight=False, soft_wrap=True)
    upgrade: list[tuple[str, str]] = []
    if clusters and _can_be_upgraded(environment, clusters[0]):
        which = ClusterName(clusters[0].name, clusters[0].namespace, environment.name)
        upgrade = [("upgrade a cluster", as_invoked(which.command("upgrade")))]
    console.print("Next:")
    for title, line in (
        ("look at it", f"{command} status{option}"),
        # The path itself: if the shell does not find the command, $(...) leaves KUBECONFIG empty,
        # and kubectl uses its default cluster.
        *((title, f"export KUBECONFIG={shlex.quote(str(path))}") for title, path in files),
        ("or for kubectl", f"{command} kubeconfig --merge{option}"),
        *upgrade,
        ("pause it", f"{command} stop{option}"),
        ("remove it", f"{command} down{option}"),
    ):
        console.print(f"  {title:<17} [cyan]{line}[/]", highlight=False, soft_wrap=True)


def _can_be_upgraded(environment: Environment, cluster: ClusterRequest) -> bool:
    settings = environment.settings()
    version = cluster.options.version or (settings and settings.kubernetes_version)
    return version is not None and bool(upgrades_of(version))


async def develop(options: UpOptions) -> None:
    """Bring an environment up, then bring it to the code as it is after each change."""
    console = Console()
    environment = environment_named(options.name)
    settings = environment.settings()
    requested = {*options.request.providers, *(settings.providers if settings else ())}
    modules = provider_modules(requested)

    def digests() -> Digests:
        return {label: code_digest(module) for label, module in modules.items()}

    before = digests()
    await bring_up(options, console)

    async def restart(labels: Sequence[str]) -> None:
        began = time.monotonic()
        _print(console, f"Changed: {', '.join(labels)}")
        try:
            with environment.locked("dev"), Checklist(console).shown() as checklist:
                deadline = Deadline(options.within)
                await bring_up_environment(environment, UpRequest(), checklist, deadline)
        except UserError as error:
            # Code in development is often broken. The previous processes keep running.
            _print(console, "\n  ".join(filter(None, (error.message, error.reason, error.hint))))
        else:
            _print(console, f"Running the new code after {time.monotonic() - began:.1f} s.")

    _print(console, f"\nWatching the code of {', '.join(modules)}. Ctrl-C ends it.")
    await follow_code(before, digests, restart)


async def follow_code(
    current: Digests,
    digests: Callable[[], Digests],
    restart: Callable[[Sequence[str]], Awaitable[None]],
    *,
    poll: float = _POLL_SECONDS,
) -> None:
    """Restart changed providers after each change. A change during a restart starts another one.

    Args:
        current: The digests of the running code.
        digests: Returns the digests of the code as it is now.
        restart: Gets the labels of changed providers.
        poll: Seconds between looks.
    """
    while True:
        previous, current = current, await _changed(digests, current, poll)
        labels = [label for label, digest in current.items() if digest != previous.get(label)]
        restarting = asyncio.ensure_future(restart(labels))
        try:
            while not restarting.done() and digests() == current:
                await asyncio.wait({restarting}, timeout=poll)
        finally:
            if not restarting.done():
                restarting.cancel()
            await asyncio.wait({restarting})
        if not restarting.cancelled():
            restarting.result()


async def _changed(digests: Callable[[], Digests], before: Digests, poll: float) -> Digests:
    """The digests after a change, once files have stopped changing: editors write several."""
    last = before
    while True:
        await asyncio.sleep(poll)
        latest = digests()
        if latest == last != before:
            return latest
        last = latest


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
