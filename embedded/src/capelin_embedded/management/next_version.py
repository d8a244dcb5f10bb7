"""Gets the programs of the next Kubernetes version in the background: upgrades then start at once.

It runs after the clusters of an environment are up, at the lowest priority, and no failure of it
affects anything else. A process that needs the same programs takes over.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

from capelin.api import Model
from capelin.api.capi import Cluster
from capelin.client import Client, ClientError
from capelin.contract import is_condition_true, upgrade_problem
from capelin.versions import Version

from capelin_embedded.binaries import (
    KNOWN_KUBERNETES,
    Binaries,
    BinariesError,
    ProgressEvent,
    WantedByAnotherError,
)
from capelin_embedded.management.providers import workload_programs

_LOOK_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 60.0

_log = logging.getLogger(__name__)

PrefetchState = Literal["Waiting", "Running", "Done", "Failed"]


class Prefetch(Model):
    """The programs of the next Kubernetes version."""

    version: str
    state: PrefetchState
    message: str = ""


def prefetch_by_default(variables: Mapping[str, str]) -> bool:
    """Whether a new environment prefetches. CI runs each step once, and has no time for it."""
    return variables.get("CI", "").lower() in {"", "0", "false"}


def upgrades_of(version: str, known: Sequence[str] = KNOWN_KUBERNETES) -> list[str]:
    """The versions to which a cluster can be upgraded next, oldest first."""
    return [
        candidate
        for candidate in sorted(known, key=Version.parse)
        if Version.parse(candidate) > Version.parse(version)
        and upgrade_problem(version, candidate) is None
    ]


def upgradable_version(clusters: Iterable[Cluster]) -> str | None:
    """The version of the first cluster that is Available, and so has no more use for all CPUs."""
    for cluster in clusters:
        topology = cluster.spec.topology
        if topology is not None and is_condition_true(cluster.status.conditions, "Available"):
            return topology.version
    return None


async def prefetch_next_version(client: Client, report: Callable[[Prefetch], None]) -> None:
    """Wait for a cluster, then get the programs of the version after its own. Never fails."""
    while (version := await _version_to_get(client)) is None:  # noqa: ASYNC110  seldom, so no watch
        await asyncio.sleep(_LOOK_SECONDS)
    programs = workload_programs(version)

    def show(event: ProgressEvent) -> None:
        report(Prefetch(version=version, state="Running", message=str(event).splitlines()[0]))

    while True:
        try:
            await Binaries(progress=show, background=True).fetch(programs)
        except WantedByAnotherError as error:
            report(Prefetch(version=version, state="Waiting", message=str(error)))
            await asyncio.sleep(_AGAIN_SECONDS)
        except (BinariesError, OSError) as error:
            _log.warning("the programs of %s were not prefetched: %s", version, error)
            message = str(error).splitlines()[0]
            report(Prefetch(version=version, state="Failed", message=message))
            return
        else:
            report(Prefetch(version=version, state="Done"))
            return


async def _version_to_get(client: Client) -> str | None:
    try:
        version = upgradable_version((await client.list(Cluster)).items)
    except (ClientError, OSError):
        return None
    return None if version is None else next(reversed(upgrades_of(version)), None)
