"""Completes environments, clusters, versions and components in the shell.

Nothing here may print or take long: a person has just pressed the tab key.
"""

import asyncio
from typing import Final

import typer

_SECONDS: Final = 2.0


def environments() -> list[str]:
    """The names of all environments."""
    from capelin_embedded.management import all_environments

    return [environment.name for environment in all_environments()]


def chosen_environment(name: str = "") -> str:
    """The environment of a command that names none: the default one, or the only one."""
    if name:
        return name
    names = environments()
    return names[0] if len(names) == 1 else "default"


def versions() -> list[str]:
    """The versions of Kubernetes, and the words that stand for some."""
    from capelin_embedded.binaries import KNOWN_KUBERNETES

    return [*KNOWN_KUBERNETES, "latest"]


def clusters(ctx: typer.Context) -> list[str]:
    """The clusters of the environment and the namespace that the command line names."""
    from capelin.api.capi import Cluster
    from capelin.client import ClientError
    from capelin.errors import UserError

    from capelin_cli.environments.connection import client_of, find_environment

    async def names() -> list[str]:
        environment = find_environment(_environment(ctx))
        async with asyncio.timeout(_SECONDS), client_of(environment) as client:
            found = await client.list(Cluster, ctx.params.get("namespace") or "default")
            return [cluster.name for cluster in found.items]

    try:
        return asyncio.run(names())
    except (UserError, ClientError, OSError, TimeoutError):
        return []


def components(ctx: typer.Context) -> list[str]:
    """The processes of the environment that the command line names."""
    from capelin.errors import UserError
    from capelin_embedded.management import environment_named

    from capelin_cli.environments.logs import log_files

    try:
        return list(log_files(environment_named(_environment(ctx))))
    except (UserError, OSError):
        return []


def clusters_and_components(ctx: typer.Context) -> list[str]:
    """Everything that has logs."""
    return [*components(ctx), *clusters(ctx)]


def providers() -> list[str]:
    """The values of `--with`."""
    from capelin_embedded.management import optional_providers

    return optional_providers()


def programs() -> list[str]:
    """The programs that can be fetched."""
    from capelin_cli.binaries import PROGRAMS

    return [*PROGRAMS, *versions()]


def _environment(ctx: typer.Context) -> str:
    return chosen_environment(ctx.params.get("environment") or "")
