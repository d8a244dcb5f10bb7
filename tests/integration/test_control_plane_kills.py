"""SIGKILL hits the provider again and again while it creates, changes and deletes a control plane.

`CAPELIN_TEST_KILLS=200 CAPELIN_TEST_SEED=7` sets the number and the moments of the kills.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from capelin.api.core import ConfigMap, Secret
from capelin.client import Client, Config
from capelin.contract import ASLEEP, find_condition
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.desired.control_plane import RENEW_ANNOTATION, RESTORE_ANNOTATION
from capelin_control_plane.operations.sleep import SLEEP_ANNOTATION, WAKE_ANNOTATION
from capelin_control_plane.provider import provider
from capelin_embedded.apiserver import ApiServer
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.processes import Process, kill_all, marked_processes

from tests.load import Load
from tests.support.authority_secrets import AUTHORITIES, AuthoritySecrets
from tests.support.control_planes import ControlPlane
from tests.support.mortal_provider import Mortal, mortal_provider

OLD, NEW = TESTED_KUBERNETES[0], TESTED_KUBERNETES[-1]
KILLS = int(os.environ.get("CAPELIN_TEST_KILLS", "100"))
"""The minimum number of kills."""
SEED = int(os.environ.get("CAPELIN_TEST_SEED", "1"))
ETCD = 3 if SEED % 2 == 0 else 1
"""With three members, one loses its data during the test."""
NAME = "shoal"
QUIET = ("RollingOut", "ScalingUp", "ScalingDown", "Remediating")

pytestmark = [
    pytest.mark.timeout(240 + 10 * KILLS),
    pytest.mark.needs_programs(
        *(
            f"kube-{name}@{version}"
            for name in ("apiserver", "controller-manager", "scheduler")
            for version in (OLD, NEW)
        )
    ),
]


@dataclass
class Shoal:
    """A control plane and its mortal provider."""

    mine: ControlPlane
    state: Path
    mortal: Mortal
    random: Random
    authorities: AuthoritySecrets

    async def through_kills(
        self, done: Callable[[], Awaitable[bool]], kills: int, *, within: float = 110
    ) -> None:
        """Kill the provider again and again, then let it finish."""
        for _ in range(kills):
            changes = self.random.randrange(1, 40)
            await self.mortal.live(changes, self.random.uniform(0.3, 3.0))
            await self.authorities.check()
        async with self.mortal.undisturbed():
            await until(done, within=within)
        await self.authorities.check()

    async def settled(self) -> bool:
        """Whether everything matches the spec."""
        if await self.mine.unsettled():
            return False
        conditions = await self.mine.conditions()
        replicas = (await self.mine.get()).spec.replicas
        return (
            all(status == "True" for type_, status in conditions.items() if "Available" in type_)
            and all(conditions[type_] == "False" for type_ in QUIET)
            and self.running() == sorted(self.expected(replicas))
        )

    async def is_restored(self) -> bool:
        """Whether no restore is requested any more, and everything matches the spec."""
        return not await self.mine.is_restore_requested() and await self.settled()

    @staticmethod
    def expected(replicas: int) -> list[str]:
        """Components of the desired processes."""
        others = ("kube-controller-manager", "kube-scheduler", "relay")
        return [*others, *["etcd"] * ETCD, *["kube-apiserver"] * replicas]

    def running(self) -> list[str]:
        if not self.state.exists():
            return []
        folders = [path / "run" for path in self.state.iterdir() if (path / "run").exists()]
        return sorted(
            one.name.rpartition("-")[0] for each in folders for one in marked_processes(each)
        )

    async def lose(self, member: str) -> None:
        """Delete the data of an etcd member and kill it."""
        (place,) = self.state.iterdir()
        process = Process.adopt(place / "run", member)
        assert process is not None
        await asyncio.to_thread(shutil.rmtree, place / member)
        process.signal(signal.SIGKILL)
        await process.wait()

    def certificates(self) -> dict[str, bytes]:
        """Certificates of the control plane without CAs."""
        return {path.name: path.read_bytes() for path in self.state.glob("*/pki/*.pem")}


@pytest.fixture
async def shoal(
    api_server: ApiServer,
    client: Client,
    namespace: str,
    install_crds: Callable[..., None],
    tmp_path: Path,
) -> AsyncGenerator[Shoal]:
    """A future control plane and its provider."""
    install_crds(provider())
    state, backups = tmp_path / "control-planes", tmp_path / "backups"
    backups.mkdir()
    arguments = [
        f"--kubeconfig={api_server.kubeconfig}",
        f"--namespace={namespace}",
        f"--state-folder={state}",
        f"--backup-folder={backups}",
        "--metrics-address=0",
        "--health-address=0",
    ]
    mine = ControlPlane(client, namespace, NAME, "Processes")
    async with mortal_provider(arguments, tmp_path / "provider.log") as mortal:
        yield Shoal(mine, state, mortal, Random(SEED), AuthoritySecrets(mine))  # noqa: S311
    for place in state.iterdir() if state.exists() else ():
        await kill_all(place / "run")


async def test_a_control_plane_survives_kills_of_its_provider_without_leftovers(
    shoal: Shoal,
) -> None:
    each = -(-KILLS // 6)
    mine = shoal.mine
    await mine.create(OLD, etcd={"replicas": ETCD})
    await shoal.through_kills(shoal.settled, each)
    assert set(shoal.authorities.keys) == set(AUTHORITIES)
    writer = Load(Config.from_kubeconfig(await mine.kubeconfig()), pause=0.05)
    writing = asyncio.create_task(writer.run())

    await mine.change(replicas=2)
    await shoal.through_kills(shoal.settled, each)
    await mine.change(version=NEW)
    await shoal.through_kills(shoal.settled, each)

    if ETCD > 1:
        await shoal.lose("etcd-1")
        await shoal.through_kills(shoal.settled, each)

    before = shoal.certificates() | {"kubeconfig": await mine.kubeconfig()}
    moment = datetime.now(UTC) + timedelta(seconds=1)
    await asyncio.sleep(1)
    await mine.annotate(RENEW_ANNOTATION, moment.isoformat())

    async def renewed() -> bool:
        now = shoal.certificates() | {"kubeconfig": await mine.kubeconfig()}
        renewed = {name for name in before if now[name] != before[name]}
        return renewed == before.keys() - {"ca-signing.pem"} and await shoal.settled()

    await shoal.through_kills(renewed, each)
    await mine.change(replicas=1)
    await shoal.through_kills(shoal.settled, each)

    writing.cancel()
    with suppress(asyncio.CancelledError):
        await writing
    assert writer.failed == [], shoal.mortal.lives
    assert len(writer.written) > 50
    async with mine.workload() as workload:
        kept = {one.name for one in (await workload.list(ConfigMap, "default")).items}
    assert writer.written <= kept

    await mine.client.delete(CapelinControlPlane, NAME, mine.namespace)
    await shoal.through_kills(mine.is_gone, each)
    assert shoal.running() == []
    assert list(shoal.state.iterdir()) == []
    assert shoal.mortal.kills >= KILLS


async def test_a_restore_survives_kills_of_its_provider(shoal: Shoal) -> None:
    mine = shoal.mine
    await mine.client.create(Secret.of("backup-key", mine.namespace, data={"key": b"k" * 32}))
    backup = {"destination": {"folder": "etcd"}, "encryptionKey": {"name": "backup-key"}}
    await mine.create(OLD, etcd={"replicas": ETCD, "backup": backup})
    async with shoal.mortal.undisturbed():
        await until(shoal.settled)
        async with mine.workload() as workload:
            await workload.create(ConfigMap.of("before", "default"))
        requested = await mine.request_backup()
        backed_up = await until(lambda: mine.backup_since(requested))
        async with mine.workload() as workload:
            await workload.create(ConfigMap.of("after", "default"))
    await shoal.authorities.check()
    await mine.annotate(RESTORE_ANNOTATION, backed_up)
    await shoal.through_kills(shoal.is_restored, -(-KILLS // 6))

    async with mine.workload() as workload:
        names = {found.name for found in (await workload.list(ConfigMap, "default")).items}
    assert "before" in names, shoal.mortal.lives
    assert "after" not in names, shoal.mortal.lives
    (folder,) = shoal.state.iterdir()
    assert not list(folder.glob("restore-*"))
    for index in range(ETCD):
        assert len(list(folder.glob(f"etcd-{index}.before-restore-*"))) == 1, shoal.mortal.lives


async def test_a_sleep_survives_kills_of_its_provider(shoal: Shoal) -> None:
    mine, each = shoal.mine, -(-KILLS // 10)
    await mine.create(OLD, replicas=2, etcd={"replicas": ETCD})
    async with shoal.mortal.undisturbed():
        await until(shoal.settled)
        async with mine.workload() as workload:
            await workload.create(ConfigMap.of("kept", "default"))
    await shoal.authorities.check()

    async def message() -> str | None:
        """The message of a sleep that is complete."""
        found = await mine.get()
        asleep = find_condition(found.status.conditions, ASLEEP) if found.status else None
        is_current = asleep and asleep.observed_generation == found.metadata.generation
        return asleep.message if asleep and is_current and asleep.reason == ASLEEP else None

    async def is_asleep() -> bool:
        return await message() is not None and shoal.running() == []

    await mine.annotate(SLEEP_ANNOTATION, datetime.now(UTC).isoformat())
    await shoal.through_kills(is_asleep, each)
    # It stays asleep, and the request waits.
    await mine.change(version=NEW)
    await shoal.through_kills(is_asleep, each)
    assert f"the upgrade to {NEW}" in str(await message())
    await mine.annotate(WAKE_ANNOTATION, datetime.now(UTC).isoformat())
    await shoal.through_kills(shoal.settled, each)
    async with mine.workload() as workload:
        assert await workload.find(ConfigMap, "kept", "default") is not None
