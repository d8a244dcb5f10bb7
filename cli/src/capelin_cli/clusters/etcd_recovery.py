"""Recovers a cluster from its only etcd member while its control plane is paused."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from capelin.client import Client
from capelin.contract import PAUSED_ANNOTATION
from capelin.controller import ObjectKey
from capelin.errors import BusyError
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.backends.processes import recover
from capelin_embedded.management import Environment
from rich.console import Console

from capelin_cli.clusters.operations import find_control_plane
from capelin_cli.environments.connection import ClusterName, client_of, find_environment
from capelin_cli.status.readiness import follow_until_ready
from capelin_cli.terminal.checklist import Checklist, Line

_STATE: Final = "control-plane-capelin"
_SECONDS_TO_PAUSE: Final = 30.0
_MARK: Final = "capelin-recover"
"""The value of the annotation that pauses."""


async def recover_cluster(which: ClusterName, data: Path | None, within: float) -> None:
    """Recover the etcd of a Cluster's control plane, and wait until the Cluster is ready again."""
    environment = find_environment(which.environment)
    async with client_of(environment) as client:
        control_plane = await find_control_plane(client, which)
        key = ObjectKey(which.namespace, control_plane.name)
        with Checklist(Console()).shown() as checklist:
            with checklist.step("etcd recovered") as line:
                async with paused(client, key):
                    survivor = await _recover(environment, key, data, checklist, line)
                line.detail = f"from {data or survivor}, with the other data set aside"
            await follow_until_ready(checklist, client, which.name, which.namespace, within)


async def _recover(
    environment: Environment, key: ObjectKey, data: Path | None, checklist: Checklist, line: Line
) -> str:
    report = checklist.showing(line)
    # The provider needs a moment to release the control plane.
    deadline = time.monotonic() + _SECONDS_TO_PAUSE
    while True:
        try:
            return await recover(environment.workloads / _STATE, key, data=data, report=report)
        except BusyError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.5)


@asynccontextmanager
async def paused(client: Client, key: ObjectKey) -> AsyncGenerator[None]:
    """Pause a control plane, unless a user has paused it already.

    The pause of a recovery that was killed has a mark, and ends with the next one.
    """
    control_plane = await client.get(CapelinControlPlane, key.name, key.namespace)
    if control_plane.metadata.annotations.get(PAUSED_ANNOTATION, _MARK) != _MARK:
        yield
        return
    await _annotate(client, key, _MARK)
    try:
        yield
    finally:
        # Wherever a recovery ends, a provider starts no member without its data.
        await _annotate(client, key, None)


async def _annotate(client: Client, key: ObjectKey, value: str | None) -> None:
    patch = {"metadata": {"annotations": {PAUSED_ANNOTATION: value}}}
    await client.patch(CapelinControlPlane, key.name, key.namespace, patch)
