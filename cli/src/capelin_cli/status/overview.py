"""Environments, their processes and their clusters, gathered and shown."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from capelin.api.capi import Cluster
from capelin.client import ClientError, NotServed
from capelin.errors import NotReadyError
from capelin_embedded.management import (
    Environment,
    Prefetch,
    ProcessStatus,
    Status,
    all_environments,
    current_status,
    read_status,
)
from capelin_embedded.processes import Phase, Process
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from capelin_cli.environments.connection import ClusterName, client_of, find_environment
from capelin_cli.status.cluster_tree import Node, State, build_tree, read_graph, with_children
from capelin_cli.status.condition_messages import hook_reasons
from capelin_cli.status.policies import read_results, reason_nodes
from capelin_cli.terminal.tables import Format, plain, print_data
from capelin_cli.terminal.text import as_invoked, printable

_LOOK_SECONDS: Final = 1.0
_STYLES: Final[dict[State, str]] = {
    "good": "green",
    "bad": "red",
    "waiting": "yellow",
    "unknown": "dim",
    "asleep": "blue",
}
_MARKS: Final[dict[State, str]] = {
    "good": "✔",
    "bad": "✘",
    "waiting": "…",
    "unknown": "·",
    "asleep": "z",
}


@dataclass(frozen=True, slots=True)
class EnvironmentOverview:
    """One environment as it is now."""

    environment: Environment
    status: Status | None
    target: str
    version: str
    clusters: Sequence[Node]
    trouble: str = ""
    unsupervised: Sequence[ProcessStatus] = ()
    """The processes, if some of them run without their supervisor."""

    @property
    def state(self) -> str:
        """In one word."""
        if self.status is None:
            return "unsupervised" if self.unsupervised else "stopped"
        return "up" if self.status.is_up else "not ready"

    @property
    def processes(self) -> Sequence[ProcessStatus]:
        """The processes that run or should run."""
        return self.unsupervised if self.status is None else self.status.processes

    @property
    def is_good(self) -> bool:
        """Whether it is up, and every cluster in it is as it should be."""
        return self.state == "up" and all(cluster.is_good for cluster in self.clusters)

    def dump(self) -> dict[str, Any]:
        """The overview for programs."""
        return {
            "name": self.environment.name,
            "state": self.state,
            "target": self.target,
            "kubernetesVersion": self.version,
            "kubeconfig": str(self.environment.kubeconfig),
            "processes": [
                process.model_dump(mode="json", by_alias=True) for process in self.processes
            ],
            "clusters": [cluster.dump() for cluster in self.clusters],
            "message": self.trouble,
        }


async def show(
    name: str | None, *, output: Format = "text", watch: bool, console: Console | None = None
) -> bool:
    """Print environments, once or until Ctrl-C. Returns whether all are as they should be."""
    console = console or Console()
    if not watch:
        overviews = await observe_environments(name, whole=output == "wide")
        if output in {"json", "yaml"}:
            print_data([overview.dump() for overview in overviews], output)
        else:
            console.print(rendered(overviews))
        return all(overview.is_good for overview in overviews)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            overviews = await observe_environments(name, whole=output == "wide")
            live.update(rendered(overviews, folded=True), refresh=True)
            await asyncio.sleep(_LOOK_SECONDS)


async def observe_environments(
    name: str | None, *, whole: bool = False
) -> list[EnvironmentOverview]:
    """One environment, or all of them, as they are now. `whole` shows every Machine."""
    environments = all_environments() if name is None else [find_environment(name)]
    return list(
        await asyncio.gather(*(_observe(environment, whole=whole) for environment in environments))
    )


def rendered(overviews: Sequence[EnvironmentOverview], *, folded: bool = False) -> RenderableType:
    """The text for people. `folded` counts running processes instead of listing them."""
    if not overviews:
        return Text(as_invoked("No environment exists. Start one with capelin up."))
    parts = (_rendered(overview, folded=folded) for overview in overviews)
    return Group(*(line for part in parts for line in (part, Text(""))))


async def _observe(environment: Environment, *, whole: bool) -> EnvironmentOverview:
    status = current_status(environment)
    settings = environment.settings()
    target, version = (settings.target, settings.server_version) if settings else ("", "")
    unsupervised: list[ProcessStatus] = []
    if status is None:
        unsupervised = _unsupervised_processes(environment)
        if not unsupervised:
            return EnvironmentOverview(environment, None, target, version, ())
    clusters, trouble = await _read_clusters(environment, whole=whole)
    return EnvironmentOverview(
        environment, status, target, version, clusters, trouble, unsupervised
    )


def _unsupervised_processes(environment: Environment) -> list[ProcessStatus]:
    """The processes of an environment whose supervisor ended. Empty if none of them runs."""
    last = read_status(environment.status_file)
    processes: list[ProcessStatus] = []
    for known in last.processes if last is not None else ():
        # The supervisor's last status may be old: only the existence of the process is known.
        process = ProcessStatus(name=known.name, phase=Phase.RUNNING, log=known.log)
        if (running := Process.adopt(environment.processes, known.name)) is None:
            process.phase, process.message = Phase.FAILED, "ended"
        else:
            process.pid = running.pid
        processes.append(process)
    return processes if any(process.pid for process in processes) else []


async def _read_clusters(environment: Environment, *, whole: bool) -> tuple[list[Node], str]:
    """The clusters of an environment, or why they cannot be read."""
    try:
        async with asyncio.timeout(10), client_of(environment) as client:
            clusters = (await client.list(Cluster)).items
            results = await read_results(client)
            nodes = [
                with_children(
                    build_tree(await read_graph(client, cluster, whole=True), whole=whole),
                    reason_nodes(hook_reasons(cluster, results)),
                )
                for cluster in clusters
            ]
            return nodes, ""
    except NotServed:
        # The API server is up, and the kinds are not installed yet.
        return [], ""
    except (ClientError, TimeoutError, NotReadyError) as error:
        return [], str(error) or "its API server does not answer"


def _rendered(overview: EnvironmentOverview, *, folded: bool) -> RenderableType:
    title = Text.assemble(
        ("Environment ", ""),
        (overview.environment.name, "bold"),
        (f"  {overview.state}", "green" if overview.state == "up" else "yellow"),
        (f"  Kubernetes {overview.version}", "dim"),
        (", existing" if overview.target == "existing" else "", "dim"),
    )
    name = overview.environment.name
    if overview.state == "stopped":
        return Group(title, Text(as_invoked(f"  Continue with capelin start -e {name}."), "dim"))
    parts: list[RenderableType] = [title]
    if overview.state == "unsupervised":
        count = sum(process.pid is not None for process in overview.unsupervised)
        text = f"  {count} processes run, and nothing restarts them: their supervisor does not run."
        parts.append(Text(as_invoked(f"{text} Start it with capelin up -e {name}."), "yellow"))
    # If the screen is too small, the processes are cut off first.
    parts += [_tree(cluster) for cluster in overview.clusters]
    waiting = next((cluster for cluster in overview.clusters if not cluster.is_good), None)
    if waiting is not None:
        _, _, cluster = waiting.title.partition("/")
        why = ClusterName(cluster, waiting.namespace or "default", name).command("explain")
        parts.append(plain(as_invoked(f"  Why it waits: {why}"), "dim"))
    parts.append(_processes(overview.processes, folded=folded))
    if overview.status is not None and (prefetch := overview.status.prefetch) is not None:
        parts.append(plain(f"  {prefetch_text(prefetch)}", "dim"))
    if overview.trouble:
        parts.append(plain(f"  {overview.trouble}", "red"))
    return Group(*parts)


def prefetch_text(prefetch: Prefetch) -> str:
    """For example `Kubernetes v1.36.3 for upgrades: go build: 12 of 2094 packages`."""
    if prefetch.state == "Done":
        return f"Kubernetes {prefetch.version} for upgrades: ready"
    text = f"Kubernetes {prefetch.version} for upgrades: {prefetch.state.lower()}"
    return f"{text}: {prefetch.message}" if prefetch.message else text


def _processes(processes: Sequence[ProcessStatus], *, folded: bool) -> Table:
    table = Table.grid(padding=(0, 2))
    quiet = [
        process for process in processes if process.phase == "Running" and not process.restarts
    ]
    if folded and quiet:
        table.add_row(Text(f"  {_MARKS['good']}", _STYLES["good"]), f"{len(quiet)} processes run")
    for process in processes:
        if folded and process in quiet:
            continue
        state: State = "good" if process.phase == "Running" else "waiting"
        table.add_row(
            Text(f"  {_MARKS[state]}", _STYLES[state]),
            process.name,
            str(process.phase),
            Text(f"pid {process.pid}" if process.pid else "", "dim"),
            Text("; ".join(filter(None, (process.message, _restarts(process)))), "dim"),
        )
    return table


def _restarts(process: ProcessStatus) -> str:
    if not process.restarts:
        return ""
    times = "once" if process.restarts == 1 else f"{process.restarts} times"
    return as_invoked(f"restarted {times}: {process.last_end}")


def _tree(node: Node) -> Tree:
    tree_of = Tree(_label(node), guide_style="dim")
    for child in node.children:
        tree_of.add(_tree(child))
    return tree_of


def _label(node: Node) -> Text:
    return Text.assemble(
        (f"{_MARKS[node.state]} ", _STYLES[node.state]),
        (printable(node.title), ""),
        (f"  {node.counts}" if node.counts else "", "bold"),
        (f"  {printable(node.version)}" if node.version else "", "cyan"),
        (f"  namespace {node.namespace}" if node.namespace else "", "dim"),
        (f"  {printable(node.message)}" if node.message else "", _STYLES[node.state]),
    )
