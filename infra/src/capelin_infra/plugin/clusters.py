"""Clusters behind kubeconfigs: their identity, and their outages."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from capelin.api.core import Namespace
from capelin.client import Client, ClientOptions, Config, ConfigError
from capelin.errors import NotReadyError

FORGET: Final = "PULUMI_K8S_DELETE_UNREACHABLE"
"""The variable by which users of pulumi-kubernetes give up clusters that do not answer."""
_MANAGER: Final = "capelin-pulumi"
_ANSWER_SECONDS: Final = 10.0


@asynccontextmanager
async def connected(kubeconfig: str) -> AsyncGenerator[Client]:
    """A client of a cluster."""
    options = ClientOptions(connect_timeout=_ANSWER_SECONDS)
    config = Config.from_kubeconfig(kubeconfig.encode())
    async with Client(config, manager=_MANAGER, options=options) as client:
        yield client


async def cluster_uid(kubeconfig: str, before: str | None = None, uid: str = "") -> str:
    """The UID of a cluster. It has not changed if the kubeconfig leads to the cluster `before`."""
    if uid and before is not None and not is_another_server(before, kubeconfig):
        return uid
    async with connected(kubeconfig) as client:
        return (await client.get(Namespace, "kube-system")).uid


def is_another_server(old: str | None, new: str | None) -> bool:
    """Whether two kubeconfigs lead to two clusters: each cluster has a CA of its own."""
    if old is None or new is None:
        return old is not new
    return old != new and _authority(old) != _authority(new)


def accept_outage(reason: str) -> None:
    """Continue without a cluster that does not answer, if the user has given it up.

    Raises:
        NotReadyError: It may answer again, and what runs in it would be forgotten.
    """
    if os.environ.get(FORGET) != "true":
        raise NotReadyError(
            "The management cluster does not answer.",
            reason=reason,
            hint=f"Start it again. If it was deleted, run the command with {FORGET}=true: "
            "Pulumi then forgets everything that was in it.",
        )


def _authority(kubeconfig: str) -> object:
    try:
        server = Config.from_kubeconfig(kubeconfig.encode()).server
    except ConfigError:
        return None
    return server.ca or server.address
