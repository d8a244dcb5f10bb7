"""How an environment that was stopped starts again.

Its API server still has all objects that its managers need. So they start before these objects are
applied again, and Cluster API's managers last: when a workload cluster refuses their first
connection, they try again only after 30 seconds.
"""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from ipaddress import ip_address
from typing import Final

from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import Namespace, Secret
from capelin.client import Client, ClientError, Config
from capelin.contract import is_asleep
from capelin.errors import BusyError, UserError

from capelin_embedded.addresses import NETWORK
from capelin_embedded.management.environment import Environment
from capelin_embedded.management.status_file import SUPERVISOR, current_status, supervisor_process
from capelin_embedded.management.up_steps import start_supervisor
from capelin_embedded.processes import Process, recorded_names

_STATUS_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.05
_ANSWER_SECONDS: Final = 5.0
_WAIT_SECONDS: Final = 30.0
"""A cluster whose processes cannot start must not delay the others for long."""
_LOOK_SECONDS: Final = 0.1


async def revive_supervisor(environment: Environment) -> bool:
    """Restart the supervisor of an environment if it was killed. Returns whether it did.

    A supervisor that a user stopped stays stopped. So does one whose processes have also ended,
    for example after a reboot, and one of another version of Capelin: `up` changes versions.
    """
    if not was_killed(environment):
        return False
    try:
        with environment.locked("up"):
            settings = environment.settings()
            if settings is None or settings.capelin != version("capelin-core"):
                return False
            # Another command may have been faster.
            if not was_killed(environment):
                return False
            await start_supervisor(environment, settings)
            await _wait_for_status(environment)
            return True
    except (BusyError, UserError, OSError):
        # The user's command still does its own work, and `status` shows the rest.
        return False


def was_killed(environment: Environment) -> bool:
    """Whether the supervisor ended without being stopped, while some of its processes still run.

    Stopping a process removes its record, but killing it does not.
    """
    if SUPERVISOR not in recorded_names(environment.supervisor):
        return False
    return supervisor_process(environment) is None and any(
        Process.adopt(environment.processes, name) is not None
        for name in recorded_names(environment.processes)
    )


async def _wait_for_status(environment: Environment) -> None:
    """Wait until the new supervisor has written its first status, for the next command."""
    deadline = asyncio.get_running_loop().time() + _STATUS_SECONDS
    while current_status(environment) is None and supervisor_process(environment) is not None:
        if asyncio.get_running_loop().time() > deadline:
            return
        await asyncio.sleep(_POLL_SECONDS)


def installation_digest(manifests: Sequence[Unstructured]) -> str:
    """Identifies everything that an environment installs into its API server."""
    return hashlib.sha256(json.dumps(manifests, sort_keys=True).encode()).hexdigest()


def is_hosted(cluster: Cluster) -> bool:
    """Whether the control plane of a cluster runs on this machine, and should be up."""
    return (
        _is_own_address(cluster.spec.control_plane_endpoint.host)
        and not cluster.spec.paused
        and not is_asleep(cluster)
        and cluster.metadata.deletion_timestamp is None
        and bool(cluster.status.initialization.infrastructure_provisioned)
    )


async def api_answers(client: Client, cluster: Cluster) -> bool:
    """Whether the API server of a cluster answers."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            secret = await client.get(Secret, f"{cluster.name}-kubeconfig", cluster.namespace)
            async with Client(Config.from_secret(secret.data["value"])) as api:
                await api.find(Namespace, "kube-system")
    except (ClientError, KeyError, TimeoutError, ValueError):
        return False
    return True


async def wait_for_hosted_clusters(client: Client, within: float = _WAIT_SECONDS) -> None:
    """Wait until all control planes on this machine answer, but not for long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            clusters = (await client.list(Cluster)).items
            await asyncio.gather(
                *(_wait_for(client, cluster) for cluster in clusters if is_hosted(cluster))
            )


async def _wait_for(client: Client, cluster: Cluster) -> None:
    while not await api_answers(client, cluster):  # noqa: ASYNC110  nothing reports it
        await asyncio.sleep(_LOOK_SECONDS)


def _is_own_address(host: str | None) -> bool:
    try:
        return ip_address(host or "") in NETWORK
    except ValueError:
        return False
