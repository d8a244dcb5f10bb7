"""A control plane on pods whose provider is a process that dies at its writes."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Secret
from capelin.client import Config
from capelin.contract import MOVE_LABEL
from capelin.controller import ObjectKey
from capelin.testing.waiting import until
from capelin_control_plane.backends.pods import Names
from capelin_control_plane.backends.pods.own_objects import CLAIMS

from tests.faults.http2 import Http2Load
from tests.s3.versitygw import SECRET_DATA, S3Server
from tests.support.authority_secrets import AuthoritySecrets
from tests.support.mortal_provider import Mortal, mortal_provider

from .hosted import Hosted, met_the_end_of_a_leader

KILLS = int(os.environ.get("CAPELIN_TEST_KILLS", "8"))
"""The most kills in each operation."""
SEED = int(os.environ.get("CAPELIN_TEST_SEED", "1"))
KEY = b"k" * 32
"""Encrypts backups."""
_MOST_CHANGES = 16
_IDLE_SECONDS = 90.0
"""The longest life. Only a provider that has nothing to write lives so long."""
_STEP_SECONDS = 400.0
_PAUSE_SECONDS = 0.1


@dataclass
class Killed:
    """A control plane with its mortal provider and the clients that write to it."""

    hosted: Hosted
    mortal: Mortal
    backups: Path
    authorities: AuthoritySecrets
    random: Random
    deaths: list[str] = field(default_factory=list[str])
    """The changes at which the provider died."""
    loads: list[Http2Load] = field(default_factory=list[Http2Load])
    lost: set[str] = field(default_factory=set[str])
    """The writes between a backup and its restore."""

    async def create(self, version: str, **spec: Any) -> None:
        """Create the control plane, without kills."""
        async with self.mortal.undisturbed():
            await self.hosted.create(version, **spec)
            await self.hosted.settles()
        await self.authorities.check()

    async def through_kills(
        self, done: Callable[[], Awaitable[bool]], *, steps: int = 1, successors: int = 0
    ) -> None:
        """Kill the provider again and again, then let it finish.

        Args:
            done: Whether the step is complete.
            steps: The number of steps of the operation, which share the kills.
            successors: How many successors each CA and key may have.
        """
        for _ in range(-(-KILLS // steps)):
            if await done():
                break
            changes = self.random.randrange(1, _MOST_CHANGES)
            end = await self.mortal.live(changes, _IDLE_SECONDS, done)
            if end.change:
                self.deaths.append(end.change)
            await self.authorities.check(successors)
        async with self.mortal.undisturbed():
            await until(done, within=_STEP_SECONDS)
        await self.authorities.check(successors)

    @asynccontextmanager
    async def writer(self) -> AsyncGenerator[Http2Load]:
        """A client that writes and reads within the context."""
        config = Config.from_kubeconfig(await self.hosted.kubeconfig())
        load = Http2Load(config, _PAUSE_SECONDS, keeps=True, prefix=f"written-{uuid4().hex[:6]}")
        self.loads.append(load)
        writing = asyncio.create_task(load.run())
        try:
            await load.reaches(20)
            yield load
            answered = len(load.written)
            await until(lambda: len(load.written) > answered + 5, within=60)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def settled(self) -> bool:
        """Whether everything matches the spec, and nothing else runs."""
        return not await self.problems()

    async def problems(self) -> Sequence[str]:
        """Differences from the spec in status and pods."""
        problems = await self.hosted.unsettled()
        if await self.hosted.is_remediating():
            problems.append("it is remediating")
        spec = (await self.hosted.get()).spec
        components = Counter(
            pod.metadata.labels["app.kubernetes.io/component"] for pod in await self.hosted.pods()
        )
        controllers = {"kube-controller-manager": 1, "kube-scheduler": 1}
        expected = {"etcd": spec.etcd.replicas, "kube-apiserver": spec.replicas, **controllers}
        if components != expected:
            problems.append(f"{dict(components)} run, to be {expected}")
        names = Names.of(ObjectKey(self.hosted.namespace, self.hosted.name))
        claims = (await self.hosted.client.list(CLAIMS, self.hosted.namespace)).items
        volumes = sorted(claim["metadata"]["name"] for claim in claims)
        if volumes != [names.claim(index) for index in range(spec.etcd.replicas)]:
            problems.append(f"{spec.etcd.replicas} members of etcd have volumes {volumes}")
        return problems

    async def check_writes(self, *, interrupts: bool) -> None:
        """Check that all acknowledged writes exist, and that no request failed.

        Args:
            interrupts: Whether the operation stops the API for some time.
        """
        async with self.hosted.workload() as workload:
            kept = {found.name async for found in workload.iterate(ConfigMap, "default")}
        written = {name for load in self.loads for name in load.written}
        assert written - self.lost - kept == set()
        failed = [failure for load in self.loads for failure in load.failed]
        if not interrupts:
            assert [each for each in failed if not met_the_end_of_a_leader(each)] == []

    def figures(self) -> dict[str, object]:
        """The kills and requests so far."""
        return {
            "kills": len(self.deaths),
            "different changes at which it died": len(set(self.deaths)),
            "requests": sum(load.sent for load in self.loads),
            "failed requests": sum(len(load.failed) for load in self.loads),
            "acknowledged writes": sum(len(load.written) for load in self.loads),
        }

    async def delete(self) -> None:
        """Delete the control plane, without kills."""
        async with self.mortal.undisturbed():
            await self.hosted.delete_all()
        await self.hosted.client.delete(Cluster, self.hosted.name, self.hosted.namespace)


@asynccontextmanager
async def killed(
    hosted: Hosted, server: S3Server, image: str | None, folder: Path
) -> AsyncGenerator[Killed]:
    """A future control plane, and its provider with backups to a folder and to a bucket."""
    backups = folder / "backups"
    backups.mkdir()
    for name, data in (("backup-key", {"key": KEY}), ("credentials", SECRET_DATA)):
        secret = Secret.of(name, hosted.namespace, data=data)
        secret.metadata.labels = {MOVE_LABEL: ""}
        await hosted.client.create(secret)
    arguments = [
        "--backends=pods",
        f"--kubeconfig={hosted.kind.kubeconfig}",
        f"--namespace={hosted.namespace}",
        f"--backup-folder={backups}",
        f"--backup-endpoints={server.endpoint}",
        *([] if image is None else [f"--restore-image={image}"]),
        "--metrics-address=0",
        "--health-address=0",
    ]
    async with mortal_provider(arguments, folder / "provider.log") as mortal:
        random = Random(SEED)  # noqa: S311 - it has to be repeatable
        try:
            yield Killed(hosted, mortal, backups, AuthoritySecrets(hosted), random)
        except AssertionError as error:
            lives = "\n".join(mortal.lives)
            error.add_note(f"CAPELIN_TEST_SEED={SEED} CAPELIN_TEST_KILLS={KILLS}, lives:\n{lives}")
            raise
