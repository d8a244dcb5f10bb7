"""From the name of an environment to a client of its API server."""

import asyncio
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
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

from capelin_cli.terminal.text import environment_option

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


def management_client(environment: str, kubeconfig: Path | None) -> Client:
    """A client of any management cluster: the one of a kubeconfig, or else of an environment."""
    if kubeconfig is not None:
        return Client(Config.from_kubeconfig(kubeconfig), manager="capelin-cli")
    return client_of(find_environment(environment))


@dataclass(frozen=True, slots=True)
class ClusterName:
    """The cluster that a verb is for."""

    name: str
    namespace: str = "default"
    environment: str = "default"
    kubeconfig: Path | None = None
    """That of a management cluster that `capelin up` did not start, in place of an environment."""

    def client(self) -> Client:
        """A client of its management cluster."""
        return management_client(self.environment, self.kubeconfig)

    def folder(self) -> Path:
        """An existing folder with room for decrypted data, which only this user can read."""
        if self.kubeconfig is not None:
            return Path(gettempdir())
        return find_environment(self.environment).folder

    def delete_command(self) -> str:
        """The command that deletes this cluster, also in other management clusters."""
        if self.kubeconfig is None:
            return self.command("delete")
        options = ("-n", self.namespace, "--kubeconfig", str(self.kubeconfig))
        return f"kubectl {shlex.join(('delete', 'cluster', self.name, *options))}"

    def command(self, verb: str, *options: str) -> str:
        """The command that applies a verb to this cluster."""
        # Nothing else has a number to scale.
        words = [verb, self.name] if verb == "scale" else [verb, "cluster", self.name]
        namespace = [] if self.namespace == "default" else ["-n", self.namespace]
        environment = environment_option(self.environment).split()
        if self.kubeconfig is not None:
            environment = ["--kubeconfig", str(self.kubeconfig)]
        arguments = (*words, *options, *namespace, *environment)
        return f"capelin {shlex.join(arguments)}"


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
