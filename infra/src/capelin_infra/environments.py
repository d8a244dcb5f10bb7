"""Bringing environments up and down, as people watch it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capelin.api.views.core import Secret
from capelin.embedded.binaries import (
    KNOWN_KUBERNETES,
    Binaries,
    Progress,
    ProgressEvent,
    check_kubernetes_version,
)
from capelin.embedded.management import control
from capelin.embedded.management.components import gather, programs
from capelin.embedded.management.environment import (
    Environment,
    Settings,
    Target,
    all_named,
    named,
)
from capelin.embedded.management.existing import Found, check_vacant, configuration, examine
from capelin.embedded.management.manifests import MARK
from capelin.embedded.management.providers import upstream
from capelin.embedded.management.status import Status
from capelin.embedded.processes import private_folder, write_private
from capelin.errors import InvalidInputError, MissingError, WaitTimeoutError
from rich.console import Console

from capelin_infra.connection import client_of, clusters_of, obstacle_of, the_environment
from capelin_infra.demo import bring_up_demo, demo_manifests
from capelin_infra.lifecycle import the_cluster
from capelin_infra.progress import Checklist, Line

TITLES: Final = {
    "api-server": "etcd and the API server",
    "installation": "kinds, roles and webhooks",
    "controllers": "controllers",
    "extensions": "extensions",
}
_UP_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What `capelin up` was told."""

    name: str
    kubernetes_version: str | None = None
    providers: tuple[str, ...] = ()
    workers: int = 3
    control_plane_replicas: int = 1
    demo: bool = True
    durable: bool = True
    target: Target | None = None
    kubeconfig: Path | None = None
    context: str | None = None


async def bring_up(wish: Wish, console: Console | None = None) -> None:
    """From nothing, or whatever there is, to an environment in which everything runs.

    Raises:
        UserError: if something asked for cannot be, or did not come up.
    """
    console = console or Console()
    environment = named(wish.name)
    # The machines of the demo cluster are told by it how to join.
    providers = (*wish.providers, *(("kubeadm-bootstrap",) if wish.demo else ()))
    upstream(providers)
    before = environment.settings()
    version = wish.kubernetes_version or (
        before.kubernetes_version if before else KNOWN_KUBERNETES[-1]
    )
    check_kubernetes_version(version)
    found = await _found(environment, wish, before)
    settings = control.wanted(
        environment,
        kubernetes_version=version,
        providers=providers,
        durable=wish.durable,
        existing=found and found.existing,
    )
    control.check_fixed_ports(environment, settings)
    with environment.being_changed("up"), Checklist(console).shown() as checklist:
        await _get_programs(checklist, settings)
        if found is not None:
            await check_vacant(found, await gather(settings.providers, Binaries()))
        await control.start(environment, settings, found and found.config)
        await _follow(checklist, environment)
        if wish.demo:
            async with client_of(environment) as client:
                await bring_up_demo(
                    checklist, client, version, wish.control_plane_replicas, wish.workers
                )
    _say_what_next(console, environment, demo=wish.demo and bool(demo_manifests()))


async def _found(environment: Environment, wish: Wish, before: Settings | None) -> Found | None:
    """The API server that is there already, if that is the target, and can be used."""
    if control.target_of(environment, wish.target) == "existing":
        config = configuration(environment, wish.kubeconfig, wish.context)
        return await examine(config, environment, before and before.existing)
    if wish.kubeconfig is not None or wish.context is not None:
        raise InvalidInputError(
            "--kubeconfig and --context lead to an API server that is there already.",
            reason=f"Environment {environment.name} has, or gets, one of its own.",
            hint="Add --target existing, or leave them out.",
        )
    return None


async def take_down(name: str | None, agreed: Callable[[str], bool]) -> None:
    """Remove one environment, or all of them.

    Raises:
        MissingError: if there is no such environment.
    """
    console = Console()
    environments = all_named() if name is None else [the_environment(name)]
    if not environments:
        console.print("There is no environment.")
    for environment in environments:
        obstacle = await obstacle_of(environment)
        if (question := await _question(environment, obstacle)) and not agreed(question):
            console.print(f"Environment {environment.name} stays.")
            continue
        found = control.found_in(environment)
        with (
            environment.being_changed("down"),
            Checklist(console).shown() as checklist,
            checklist.step(f"environment {environment.name} removed"),
        ):
            await control.remove(environment, there=obstacle is None)
        if obstacle is not None:
            label = MARK if found is None else f"{MARK}={found.mark}"
            text = f"Whatever was put into an existing API server stays there, labelled {label}."
            console.print(text, highlight=False, markup=False, soft_wrap=True)


async def _question(environment: Environment, obstacle: str | None) -> str | None:
    """What to ask before an environment is removed, if anything."""
    if obstacle is not None:
        return (
            f"{obstacle} Remove the environment here, and leave in an existing API server "
            "whatever was put into it?"
        )
    clusters = await clusters_of(environment)
    names = ", ".join(cluster.name for cluster in clusters)
    if not clusters:
        return None
    return f"Environment {environment.name} has workload clusters: {names}. Remove them with it?"


async def kubeconfig_of(name: str, cluster: str | None, namespace: str) -> Path:
    """The file of a kubeconfig: the environment's own, or a workload cluster's.

    Raises:
        MissingError: if there is no such environment or cluster, or it has no kubeconfig yet.
    """
    environment = the_environment(name)
    if cluster is None:
        return environment.kubeconfig
    async with client_of(environment) as client:
        secret = await client.find(Secret, f"{cluster}-kubeconfig", namespace)
        if secret is None:
            await the_cluster(client, cluster, namespace)
            raise MissingError(
                f"Cluster {cluster} has no kubeconfig yet.",
                reason="Its control plane makes it when it is initialized.",
                hint="Wait for it: capelin status --watch.",
            )
    folder = private_folder(environment.folder / "kubeconfigs")
    path = folder / f"{namespace}.{cluster}"
    write_private(path, secret.data["value"])
    return path


def show_on(checklist: Checklist, line: Line) -> Progress:
    """Show on one line how programs are being downloaded or built."""

    def show(event: ProgressEvent) -> None:
        put = checklist.tell if event.kind == "advanced" else checklist.note
        put(line, str(event).splitlines()[0])

    return show


async def _get_programs(checklist: Checklist, settings: Settings) -> None:
    wanted = programs(settings.kubernetes_version, settings.providers, target=settings.target)
    with checklist.step("programs") as line:
        await Binaries(progress=show_on(checklist, line)).fetch(wanted)
        line.detail = f"Kubernetes {settings.kubernetes_version}"


async def _follow(checklist: Checklist, environment: Environment) -> None:
    """Cross off what the supervisor has done."""
    lines: dict[str, Line] = {}
    try:
        async with asyncio.timeout(_UP_SECONDS):
            async for status in control.follow(environment):
                _cross_off(checklist, lines, status)
    except TimeoutError:
        raise WaitTimeoutError(
            f"Environment {environment.name} is not up after {_UP_SECONDS:.0f} s.",
            reason=_unready(environment),
            hint=f"Its supervisor goes on trying; see capelin logs --name {environment.name}.",
        ) from None


def _cross_off(checklist: Checklist, lines: dict[str, Line], status: Status) -> None:
    for step in status.steps:
        if step.state == "Waiting":
            continue
        line = lines.get(step.name) or checklist.begin(TITLES[step.name])
        lines[step.name] = line
        if step.state == "Done" and line.state == "running":
            checklist.end(line, seconds=step.seconds)
        elif line.state == "running":
            checklist.tell(line, step.message or waiting_for(status))


def waiting_for(status: Status) -> str:
    """What the first process that is not ready says."""
    unready = [each for each in status.processes if each.phase != "Running" and each.message]
    return f"{unready[0].name}: {unready[0].message}" if unready else ""


def _unready(environment: Environment) -> str:
    status = control.status(environment)
    return (status and waiting_for(status)) or "It does not say what it waits for."


def _say_what_next(console: Console, environment: Environment, *, demo: bool) -> None:
    option = "" if environment.name == "default" else f" --name {environment.name}"
    console.print()
    console.print(f"Environment [bold]{environment.name}[/] is up. Next:")
    for what, verb in (
        ("look at it", f"capelin status{option}"),
        ("use it", f"export KUBECONFIG=$(capelin kubeconfig{option})"),
        *([("use the cluster", f"capelin kubeconfig demo{option}")] if demo else []),
        ("remove it", f"capelin down{option}"),
    ):
        console.print(f"  {what:<16} [cyan]{verb}[/]", highlight=False, soft_wrap=True)
