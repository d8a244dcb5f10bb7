"""The target kind: `capelin up` makes a kind cluster for an environment, `down` removes it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from capelin.errors import BusyError, InvalidInputError, MissingError
from capelin_embedded.management import Environment, UpRequest
from capelin_embedded.processes import private_folder, write_private

from capelin_cli.environments.kubeconfigs import kubeconfig_file
from capelin_cli.kind import KindCommands, KindConfig, NodeContainer, cluster_config
from capelin_cli.terminal.checklist import Checklist
from capelin_cli.terminal.waiting import Deadline

_NOTE: Final = "kind-cluster"
"""The file in an environment's folder with the name of its kind cluster."""


@dataclass(frozen=True, slots=True)
class KindOptions:
    """The options of `capelin up --target kind`."""

    node_image: str | None = None
    """Image of the nodes. None is kind's own, or the one that the cluster has."""


def kind_cluster_of(environment: Environment) -> str | None:
    """The name of an environment's kind cluster, if it has one."""
    try:
        return (environment.folder / _NOTE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


@asynccontextmanager
async def in_kind_cluster(
    environment: Environment,
    request: UpRequest,
    options: KindOptions | None,
    checklist: Checklist,
    deadline: Deadline,
    *,
    commands: KindCommands | None = None,
) -> AsyncGenerator[UpRequest]:
    """The request for the environment's kind cluster, which runs.

    Without `options`, which are those of a new kind cluster, an environment that has none gets the
    request unchanged. The caller holds the environment's lock.
    """
    if options is None and kind_cluster_of(environment) is None:
        yield request
        return
    commands = commands or KindCommands()
    name = kind_cluster_of(environment) or f"capelin-{environment.name}"
    nodes = await commands.nodes(name)
    if environment.exists:
        _check(environment, name, nodes)
    with checklist.step(f"kind cluster {name}") as line:
        show = checklist.showing(line)
        if environment.exists:
            await commands.start(name, nodes, deadline.left, show)
        else:
            if nodes:
                await _remove_unfinished(environment, name, commands)
            private_folder(environment.folder)
            write_private(environment.folder / _NOTE, name.encode())
            image = None if options is None else options.node_image
            config = cluster_config(KindConfig(name=name, image=image))
            await commands.create(config, deadline.left, show)
        line.detail = ""
    with kubeconfig_file(await commands.kubeconfig(name)) as file:
        yield replace(request, target="existing", kubeconfig=file)


async def remove_kind_cluster(name: str, commands: KindCommands | None = None) -> None:
    """Remove a kind cluster with all its contents. It may be gone already."""
    await (commands or KindCommands()).delete(name)


def _check(environment: Environment, name: str, nodes: Sequence[NodeContainer]) -> None:
    """Reject an environment with another target, or whose kind cluster is gone."""
    remove = f"capelin down -e {environment.name}"
    settings = environment.settings()
    if kind_cluster_of(environment) is None and settings is not None:
        raise InvalidInputError(
            f"Environment {environment.name} has the target {settings.target}.",
            reason="Its objects are in that API server, and nothing takes them to another.",
            hint="Leave out --target, choose another environment with -e, or remove it first: "
            f"{remove}.",
        )
    if not nodes:
        raise MissingError(
            f"The kind cluster {name} of environment {environment.name} is gone.",
            reason="Its contents are gone too.",
            hint=f"Remove the rest with {remove}, then start again.",
        )


async def _remove_unfinished(environment: Environment, name: str, commands: KindCommands) -> None:
    """Remove the rest of an interrupted run: kind cannot continue it."""
    if kind_cluster_of(environment) is None:
        raise BusyError(
            f"There is a kind cluster {name} already.",
            reason=f"It does not belong to environment {environment.name}.",
            hint=f"Choose another environment with -e, or remove it with kind delete cluster "
            f"--name {name}.",
        )
    await commands.delete(name)
