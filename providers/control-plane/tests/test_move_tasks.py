"""Moves by providers that are killed after each of their writes, with a simulated backend."""

import hashlib
import logging
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from capelin.api.capi import Cluster, MachineDeployment, MachinePool
from capelin.api.core import Secret
from capelin.client import Client, Config
from capelin.contract import (
    BLOCK_MOVE_ANNOTATION,
    CLUSTER_NAME_LABEL,
    MOVE_LABEL,
    find_condition,
)
from capelin.controller import After, Context, ObjectKey, Recorder
from capelin.testing.fake_client import FakeClient, cluster
from capelin.testing.waiting import until
from capelin_control_plane.api import BackupDestination, CapelinControlPlane, EtcdBackup, Spec
from capelin_control_plane.backends import ReadSnapshot
from capelin_control_plane.backends.pods import PodsBackend
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.backup.files import read_backups
from capelin_control_plane.backup.stores import Store
from capelin_control_plane.desired.control_plane import (
    MOVE_ANNOTATION,
    MOVED_FROM_ANNOTATION,
    RESTORE_ANNOTATION,
    ControlPlane,
)
from capelin_control_plane.desired.instances import Endpoint, Observed, Remains
from capelin_control_plane.etcd.api import Change, EtcdApi, MembershipError, MemberStatus
from capelin_control_plane.keys.certificates import Authorities
from capelin_control_plane.keys.secrets import ensure_authorities
from capelin_control_plane.operations import move as move_tasks
from capelin_control_plane.operations.move import Moves, MovingBackend, check_move
from capelin_control_plane.operations.move_phases import MOVABLE
from capelin_control_plane.operations.situation import Situation
from capelin_control_plane.operations.sleep import SLEEP_ANNOTATION
from capelin_control_plane.reconciler import CapelinControlPlaneReconciler

from tests.support.kills import KilledError, Life, MortalServer

from .factories import desired_control_plane

KEY = ObjectKey("default", "one")
LABELS = {MOVE_LABEL: ""}
WRITES = 14
"""How often the provider writes in a move."""
MOST_LIVES = 60


@dataclass
class World:
    """A simulated control plane, which outlives its providers. Clients write while they run."""

    life: Life = field(default_factory=Life)
    clients: list[str] = field(default_factory=lambda: ["kube-apiserver-0", "kube-apiserver-1"])
    others: list[str] = field(default_factory=lambda: ["etcd-0", "service"])
    revision: int = 100
    """The last acknowledged write."""
    lagging: bool = True
    """Whether the member that answers has not received the last write yet."""
    late: list[str] = field(default_factory=list[str])
    """Writers that appear during a backup: `client`, which stays, `write` or `expiry`."""
    changes: list[Change] = field(default_factory=list[Change])
    """Their changes."""
    snapshots: int = 0

    def tick(self) -> None:
        if self.clients:
            self.revision += 1
            self.lagging = True

    @property
    def received(self) -> int:
        return self.revision - self.lagging

    async def own_hosts(self, key: ObjectKey) -> frozenset[str]:
        assert key == KEY
        return frozenset({"192.0.2.1"})

    async def remains(self, key: ObjectKey) -> Remains:
        assert key == KEY
        self.tick()
        return Remains(bool(self.clients), bool(self.others))

    async def stop_clients(self, key: ObjectKey) -> None:
        assert key == KEY
        self.tick()
        if self.clients:
            self.clients.pop()
            self.life.write()

    async def stop(self, key: ObjectKey) -> None:
        assert key == KEY
        for left in (self.clients, self.others):
            if left:
                left.pop()
                self.life.write()

    async def allocate(
        self, key: ObjectKey, desired: ControlPlane, authorities: Authorities, address: str | None
    ) -> Endpoint:
        assert (key, address, bool(authorities.ca)) == (KEY, None, True)
        return Endpoint("here", "api.example.com", desired.port)

    async def observe(self, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane) -> Observed:
        assert (key, endpoint.port) == (KEY, desired.port)
        return Observed()

    @asynccontextmanager
    async def etcd(self, key: ObjectKey, index: int | None = None) -> AsyncGenerator[EtcdApi]:
        assert (key, index) == (KEY, None)
        if "etcd-0" not in self.others:
            raise MembershipError("no etcd member is ready")
        yield cast("EtcdApi", SimulatedMember(self))

    # Not used by moves.

    async def apply(
        self, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane, observed: Observed
    ) -> bool:
        raise AssertionError(key, endpoint, desired, observed)

    async def keep_running(self, key: ObjectKey, address: str) -> None:
        raise AssertionError(key, address)

    async def release(self, key: ObjectKey) -> None:
        raise AssertionError(key)

    async def start_again(self, key: ObjectKey, address: str) -> frozenset[str]:
        raise AssertionError(key, address)

    async def allocated(self) -> set[ObjectKey]:
        return {KEY}

    async def delete(self, key: ObjectKey) -> None:
        raise AssertionError(key)

    async def close(self) -> None:
        pass

    async def prepare_restore(
        self, key: ObjectKey, desired: ControlPlane, read: ReadSnapshot, *, bump: int
    ) -> None:
        raise AssertionError(key, desired, read, bump)

    def client_config(self, endpoint: Endpoint) -> Config:
        raise AssertionError(endpoint)


@dataclass
class SimulatedMember:
    world: World

    async def status(self) -> MemberStatus:
        return MemberStatus(1, has_leader=True, revision=self.world.received, version="3.6.8")

    async def last_revision(self) -> int:
        self.world.lagging = False
        return self.world.revision

    async def changes(self, first: int) -> AsyncGenerator[list[Change]]:
        yield [change for change in self.world.changes if change.revision >= first]

    async def snapshot(self) -> AsyncGenerator[bytes]:
        content = f"{self.world.received}".encode().ljust(512)
        self.world.snapshots += 1
        for writer in self.world.late:
            self.world.revision += 1
            key = b"/registry/events/default/one" if writer == "expiry" else b"/registry/pods/one"
            value = None if writer == "expiry" else "dg=="
            encoded = b64encode(key).decode()
            self.world.changes.append(Change(self.world.revision, encoded, value))
            if writer == "client":
                self.world.clients.append("kube-apiserver-2")
        self.world.late.clear()
        yield content
        yield hashlib.sha256(content).digest()


@dataclass
class MortalStore:
    """A store whose provider is killed after one of its writes."""

    store: Store
    life: Life

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def create(self, name: str) -> "MortalUpload":
        upload = await self.store.create(name)
        try:
            self.life.write()
        except KilledError:
            await upload.abort()
            raise
        return MortalUpload(upload, self.life)

    async def delete(self, name: str) -> None:
        await self.store.delete(name)
        self.life.write()


@dataclass
class MortalUpload:
    upload: Any
    life: Life

    def __getattr__(self, name: str) -> Any:
        return getattr(self.upload, name)

    async def finish(self) -> None:
        await self.upload.finish()
        self.life.write()


class MortalStores(Stores):
    def __init__(self, root: Path, life: Life) -> None:
        super().__init__(root)
        self.life = life

    @asynccontextmanager
    async def open(
        self, client: Client, destination: BackupDestination, namespace: str, cluster: str
    ) -> AsyncGenerator[Store]:
        async with super().open(client, destination, namespace, cluster) as store:
            yield cast("Store", MortalStore(store, self.life))


@dataclass
class Rig:
    """A paused control plane whose move was requested."""

    client: FakeClient
    stores: MortalStores
    world: World
    recorder: Recorder
    woken: list[ObjectKey] = field(default_factory=list[ObjectKey])
    reasons: list[str] = field(default_factory=list[str])
    """The reported reasons of `Moving`."""

    @classmethod
    async def create(cls, folder: Path) -> "Rig":
        server = MortalServer()
        client = FakeClient(CapelinControlPlane, MachineDeployment, MachinePool, server=server)
        fields = {
            "version": "v1.34.4",
            "etcd": {
                "backup": {
                    "destination": {"folder": "etcd"},
                    "encryptionKey": {"name": "backup-key"},
                }
            },
        }
        mine = CapelinControlPlane.of("one", "default", spec=Spec.model_validate(fields))
        requested = datetime.now(UTC) - timedelta(minutes=1)
        mine.metadata.annotations = {
            MOVE_ANNOTATION: requested.isoformat(),
            BLOCK_MOVE_ANNOTATION: "true",
        }
        client.add(cluster("one"))
        await client.create(mine)
        await client.create(Secret.of("backup-key", "default", data={"key": b"k" * 32}))
        await ensure_authorities(
            client, await cls._read(client), desired_control_plane("v1.34.4"), may_create=True
        )
        recorder = Recorder(client, "test", "test", now=lambda: datetime.now(UTC))
        server.life = life = Life()
        return cls(client, MortalStores(folder, life), World(life), recorder)

    @staticmethod
    async def _read(client: Client) -> CapelinControlPlane:
        return await client.get(CapelinControlPlane, "one", "default")

    async def mine(self) -> CapelinControlPlane:
        return await self._read(self.client)

    @property
    def ctx(self) -> Context:
        return Context(client=self.client, log=logging.getLogger(), recorder=self.recorder)

    async def lives(self, writes: int | None = None) -> bool:
        """A provider that is killed after some writes. Returns whether it completes the move."""
        self.world.life.writes = writes

        def wake(key: ObjectKey) -> None:
            self.woken.append(key)
            if (run := moves.last(key)) is not None and run.condition:
                self.reasons.append(run.condition.reason)

        moves = Moves(self.stores, wake)

        async def prepare() -> tuple[ControlPlane, Authorities]:
            desired = desired_control_plane("v1.34.4")
            mine = await self.mine()
            keys = await ensure_authorities(self.client, mine, desired, may_create=False)
            return desired, keys

        mine = await self.mine()
        moves.reconcile(self.ctx, mine, self.world, prepare)
        # The next reconcile, after the task has reported a phase.
        run = moves.last(KEY)
        assert run is not None
        assert run.task is not None
        try:
            await run.task
        except KilledError:
            return False
        moving, available = moves.reconcile(self.ctx, mine, self.world, prepare)
        assert (moving.status, moving.reason) == ("True", "ReadyForMove")
        assert (available.type, available.status) == ("Available", "False")
        return True

    async def check_moved(self) -> None:
        """The final backup has all acknowledged writes, and nothing else exists any more."""
        mine = await self.mine()
        annotations = mine.metadata.annotations
        assert annotations[MOVED_FROM_ANNOTATION] == mine.uid
        assert not {BLOCK_MOVE_ANNOTATION, MOVE_ANNOTATION} & annotations.keys()
        assert (self.world.clients, self.world.others) == ([], [])
        name = annotations[RESTORE_ANNOTATION]
        backup = mine.spec.etcd.backup
        assert backup is not None
        async with self.stores.open(self.client, backup.destination, "default", "one") as store:
            listed = await read_backups(store)
        manifest = next(each for each in listed.manifests if each.name == name)
        assert manifest.revision == self.world.revision
        assert not listed.damaged


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_tasks, "_POLL_SECONDS", 0)
    monkeypatch.setattr(move_tasks, "_RETRY_SECONDS", 0)


@pytest.fixture
async def rig(tmp_path: Path) -> Rig:
    return await Rig.create(tmp_path)


async def test_a_paused_control_plane_stops_and_names_its_final_backup(rig: Rig) -> None:
    assert await rig.lives()
    await rig.check_moved()
    assert set(rig.woken) == {KEY}
    assert rig.world.life.count == WRITES


@pytest.mark.parametrize("writes", range(WRITES))
async def test_a_provider_killed_after_every_write_loses_no_acknowledged_write(
    rig: Rig, writes: int
) -> None:
    if not await rig.lives(writes):
        assert await rig.lives()
    await rig.check_moved()


@pytest.mark.parametrize("writes", [1, 2, 3])
async def test_providers_that_are_killed_again_and_again_complete_a_move(
    rig: Rig, writes: int
) -> None:
    # The longest step between two states that stay is the backup, with ten writes.
    lives = 0
    while not await rig.lives(writes + lives):
        lives += 1
        assert lives < MOST_LIVES
    await rig.check_moved()


async def test_a_conflict_is_retried_with_the_same_backup(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    patches = 0

    async def change_object(*args: Any, **options: Any) -> Any:
        nonlocal patches
        patches += 1
        if patches == 1:
            # Another write of the object, such as the provider's own status.
            patch = {"metadata": {"labels": {"changed": "true"}}}
            await FakeClient.patch(rig.client, CapelinControlPlane, "one", "default", patch)
        return await FakeClient.patch(rig.client, *args, **options)

    monkeypatch.setattr(rig.client, "patch", change_object)
    assert await rig.lives()
    await rig.check_moved()


async def test_an_older_backup_of_the_same_revision_is_not_the_final_one(rig: Rig) -> None:
    assert await rig.lives()
    mine = await rig.mine()
    first = mine.metadata.annotations[RESTORE_ANNOTATION]
    # The move was abandoned, and is requested again later.
    later = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    changes = {
        MOVED_FROM_ANNOTATION: None,
        RESTORE_ANNOTATION: None,
        BLOCK_MOVE_ANNOTATION: "true",
        MOVE_ANNOTATION: later,
    }
    patch = {"metadata": {"annotations": changes}}
    await rig.client.patch(CapelinControlPlane, "one", "default", patch)
    rig.world.others = ["etcd-0"]

    def is_later() -> bool:
        return datetime.now(UTC).isoformat() > later

    await until(is_later)
    assert await rig.lives()
    await rig.check_moved()
    assert (await rig.mine()).metadata.annotations[RESTORE_ANNOTATION] != first


@pytest.mark.parametrize("late", ["client", "write"])
async def test_a_write_during_the_final_backup_repeats_it(rig: Rig, late: str) -> None:
    # A former leader of the provider has applied a Deployment.
    rig.world.late = [late]
    assert await rig.lives()
    await rig.check_moved()


async def test_events_that_expire_during_the_final_backup_do_not_repeat_it(rig: Rig) -> None:
    rig.world.late = ["expiry", "expiry"]
    assert await rig.lives()
    assert rig.world.snapshots == 1


async def test_the_condition_is_quiet_while_a_step_fails(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts, stop_clients = 0, rig.world.stop_clients

    async def fail(key: ObjectKey) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 5:
            raise MembershipError("the API server does not answer")
        await stop_clients(key)

    monkeypatch.setattr(rig.world, "stop_clients", fail)
    assert await rig.lives()
    assert rig.reasons == [
        "MoveFailed",
        "StoppingForMove",
        "TakingFinalBackup",
        "ReleasingForMove",
        "ReadyForMove",
    ]


async def checked(rig: Rig, mine: CapelinControlPlane) -> tuple[str, str, bool]:
    """Status and reason of the condition, and whether the provider looks again at a moment."""
    desired, endpoint = desired_control_plane("v1.34.4"), Endpoint("here", "api.example.com", 6443)
    keys = await ensure_authorities(rig.client, mine, desired, may_create=False)
    situation = Situation(mine, desired, Observed(), keys, None, endpoint, rig.world)
    check = await check_move(rig.ctx, situation)
    (condition,) = check.conditions
    assert check.accepted is None
    return condition.status, condition.reason, check.next is not None


@pytest.mark.parametrize(("labels", "reason"), [({}, "MoveRefused"), (LABELS, "MovePostponed")])
async def test_objects_without_the_label_of_clusterctl_prevent_a_move(
    rig: Rig, labels: dict[str, str], reason: str
) -> None:
    patch = {"metadata": {"labels": labels}}
    await rig.client.patch(Secret, "backup-key", "default", patch)
    mine = await rig.mine()
    s3 = {
        "endpoint": "https://s3.example.com",
        "bucket": "backups",
        "credentials": {"name": "backup-key"},
    }
    fields = {"destination": {"s3": s3}, "encryptionKey": {"name": "backup-key"}}
    mine.spec.etcd.backup = EtcdBackup.model_validate(fields)
    # It has no pods yet, so it could not move either way.
    assert await checked(rig, mine) == ("False", reason, True)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (None, "MoveNotRequested"),
        ("soon", "MoveRefused"),
        ("2100-01-01T00:00:00Z", "MoveNotRequested"),
    ],
)
async def test_without_a_valid_request_nothing_moves(
    rig: Rig, request_: str | None, reason: str
) -> None:
    mine = await rig.mine()
    del mine.metadata.annotations[MOVE_ANNOTATION]
    if request_ is not None:
        mine.metadata.annotations[MOVE_ANNOTATION] = request_
    is_future = request_ is not None and request_.startswith("2100")
    assert await checked(rig, mine) == ("False", reason, is_future)


class SleepingWorld(World):
    async def apply(
        self, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane, observed: Observed
    ) -> bool:
        assert (key, endpoint.address, observed.alive) == (KEY, "here", frozenset())
        assert desired.asleep
        return False


async def test_a_control_plane_that_sleeps_reports_that_its_move_waits(rig: Rig) -> None:
    mine = await rig.mine()
    endpoint = {"host": "api.example.com", "port": 6443}
    s3 = {
        "endpoint": "https://s3.example.com",
        "bucket": "backups",
        "credentials": {"name": "backup-key"},
    }
    backup = {"destination": {"folder": None, "s3": s3}}
    earlier = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    patch = {
        "metadata": {"annotations": {SLEEP_ANNOTATION: earlier}},
        "spec": {
            "backend": "Pods",
            "controlPlaneEndpoint": endpoint,
            "etcd": {"backup": backup},
        },
    }
    await rig.client.patch(CapelinControlPlane, "one", "default", patch)
    await rig.client.patch(Secret, "backup-key", "default", {"metadata": {"labels": LABELS}})
    resource = CapelinControlPlane.resource
    reference = {"apiGroup": resource.group, "kind": resource.kind, "name": mine.name}
    spec = {"spec": {"controlPlaneRef": reference}}
    owner = await rig.client.patch(Cluster, "one", "default", spec)
    labels = {"metadata": {"labels": {CLUSTER_NAME_LABEL: owner.name}}}
    await rig.client.patch(CapelinControlPlane, "one", "default", labels)
    reconciler = CapelinControlPlaneReconciler({"Pods": SleepingWorld()}, stores=rig.stores)
    result = await reconciler.reconcile(rig.ctx, await rig.mine())
    status = (await rig.mine()).status
    movable = find_condition(status.conditions, MOVABLE) if status else None
    assert movable is not None
    assert (movable.status, movable.reason) == ("False", "MovePostponed")
    assert "the end of a sleep" in movable.message
    assert isinstance(result, After)


def test_pods_move_as_backups() -> None:
    assert isinstance(PodsBackend(FakeClient()), MovingBackend)
