"""From the name of an environment to a client of its API server."""

from capelin.api.views.capi import Cluster
from capelin.client import Client, ClientError, Config
from capelin.embedded.management import control
from capelin.embedded.management.environment import Environment, all_named, named
from capelin.embedded.management.problems import MissingError, NotUpError


def existing(name: str) -> Environment:
    """The environment of a name.

    Raises:
        MissingError: if there is none, with the names of those that there are.
    """
    environment = named(name)
    if not environment.folder.is_dir():
        others = ", ".join(each.name for each in all_named()) or "none"
        raise MissingError(
            f"There is no environment {name}.",
            f"Those that there are: {others}.",
            f"Start it with capelin up --name {name}.",
        )
    return environment


def client_of(environment: Environment) -> Client:
    """A client of an environment's API server, as its administrator.

    Raises:
        NotUpError: if it was never up.
    """
    if not environment.kubeconfig.exists():
        raise NotUpError(
            f"Environment {environment.name} has no API server yet.",
            "It was never brought up as far as that.",
            f"Go on with capelin up --name {environment.name}.",
        )
    return Client(Config.from_kubeconfig(environment.kubeconfig), manager="capelin-cli")


async def clusters_of(environment: Environment) -> list[Cluster]:
    """The workload clusters of an environment; none where its API server does not answer."""
    if not environment.kubeconfig.exists() or control.supervisor(environment) is None:
        return []
    async with client_of(environment) as client:
        try:
            return (await client.list(Cluster)).items
        except ClientError:
            return []
