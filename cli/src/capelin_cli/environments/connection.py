"""From the name of an environment to a client of its API server."""

import asyncio
import sys
from typing import Final

from capelin.api.capi import Cluster
from capelin.api.core import Namespace
from capelin.client import Client, ClientError, ClientOptions, Config
from capelin.errors import InvalidInputError, MissingError, NotReadyError, UserError
from capelin_embedded.management import (
    Environment,
    all_environments,
    environment_named,
    existing_server_of,
    revive_supervisor,
    supervisor_process,
)

_ANSWER_SECONDS: Final = 10.0


def find_environment(name: str) -> Environment:
    """The environment of a name."""
    environment = environment_named(name)
    if not environment.folder.is_dir():
        others = ", ".join(environment.name for environment in all_environments()) or "none"
        raise MissingError(
            f"Environment {name} does not exist.",
            reason=f"Environments: {others}.",
            hint=f"Start it with capelin up -e {name}.",
        )
    return environment


def client_of(environment: Environment) -> Client:
    """A client of an environment's API server, with its administrator's credentials."""
    if not environment.kubeconfig.exists():
        raise NotReadyError(
            f"Environment {environment.name} has no API server yet.",
            reason="It was never started completely.",
            hint=f"Continue with capelin up -e {environment.name}.",
        )
    return Client(Config.from_kubeconfig(environment.kubeconfig), manager="capelin-cli")


async def list_clusters(environment: Environment) -> list[Cluster]:
    """The workload clusters of an environment. Empty if its API server does not answer."""
    if not environment.kubeconfig.exists():
        return []
    # Our own API server seldom runs without a supervisor: asking it would take a while.
    if supervisor_process(environment) is None and existing_server_of(environment) is None:
        return []
    async with client_of(environment) as client:
        try:
            return (await client.list(Cluster)).items
        except ClientError:
            return []


async def unusable_server(environment: Environment) -> str | None:
    """Why an environment's objects stay in an existing API server. None if they need not.

    An environment with unreadable settings may have an API server of its own, or not.
    """
    try:
        settings = environment.settings()
    except UserError as error:
        return error.message
    if settings is None or settings.existing is None:
        return None
    options = ClientOptions(timeout=_ANSWER_SECONDS, connect_timeout=_ANSWER_SECONDS)
    try:
        config = Config.from_kubeconfig(environment.kubeconfig)
        async with Client(config, options=options) as client:
            cluster = (await client.get(Namespace, "kube-system")).uid
    except ClientError as error:
        reason = str(error).removesuffix(".")
    else:
        if cluster == settings.existing.cluster:
            return None
        reason = f"another cluster answers at {config.server.address}"
    return (
        f"The API server that environment {environment.name} lives in cannot be used now: {reason}."
    )


def ensure_supervised(name: str | None) -> None:
    """Start killed supervisors again, of one environment or of all, and report each."""
    try:
        environments = all_environments() if name is None else [environment_named(name)]
    except InvalidInputError:
        # The command refuses the name itself.
        return

    async def revive() -> list[bool]:
        return await asyncio.gather(*map(revive_supervisor, environments))

    for environment, revived in zip(environments, asyncio.run(revive()), strict=True):
        if revived:
            sys.stderr.write(
                f"The supervisor of environment {environment.name} was killed. It runs again.\n"
            )
