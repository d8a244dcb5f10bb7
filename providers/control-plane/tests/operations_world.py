"""A control plane whose processes, etcd, bucket and KMS plugin are values in memory.

The reconciler, its tasks and all decisions are the real ones. So are the files of restores. Each
stored object has the name of the key that it is stored with, in the place of its content.
"""

import asyncio
import hashlib
import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pytest
from capelin.api.capi import Cluster
from capelin.api.core import Secret
from capelin.client import Client, Config, Server
from capelin.contract import CLUSTER_NAME_LABEL, reference_to
from capelin.controller import Context, EventRecord, ObjectKey, Recorder
from capelin.provider import ControlPlaneContext
from capelin.testing.fake_client import Clock, FakeClient
from capelin_control_plane import reconciler
from capelin_control_plane.api import CapelinControlPlane, Spec
from capelin_control_plane.api.policy import DEFAULT_POLICY, Plugin
from capelin_control_plane.backends import ReadSnapshot
from capelin_control_plane.backends.processes import member_data, restore_files
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.backup.restores import restore_phase
from capelin_control_plane.backup.snapshots import RestoredCluster
from capelin_control_plane.desired.control_plane import Component, ControlPlane
from capelin_control_plane.desired.instances import Endpoint, InstanceStatus, Observed, Phase
from capelin_control_plane.etcd.api import EtcdApi, MembershipError, MemberStatus
from capelin_control_plane.keys.certificates import Authorities
from capelin_control_plane.operations import encryption as encryption_tasks
from capelin_control_plane.operations import restore as restore_tasks
from capelin_control_plane.operations import rotation as rotation_tasks
from capelin_control_plane.reconciler import CapelinControlPlaneReconciler
from capelin_control_plane.workload import WorkloadSync
from capelin_embedded.processes import private_folder

from tests.support.kills import MortalServer

from .operations_servers import Memory, Workload

KEY = ObjectKey("default", "one")
BEGIN = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
ADDRESS = "127.64.0.9"
PLUGINS = tuple(
    Plugin(name, PurePosixPath(f"/run/kms/{name}/plugin.sock")) for name in ("vault", "broken")
)


@dataclass(frozen=True)
class ApiServer:
    """An API server and the files of its start."""

    version: str
    ring: tuple[str, ...]
    plugins: frozenset[str]
    rotation: int

    @classmethod
    def of(cls, desired: ControlPlane) -> "ApiServer":
        ring, plugins = ("identity",), frozenset[str]()
        if desired.encryption.current is not None:
            (entry,) = json.loads(desired.encryption.current.content)["resources"]
            providers = [next(iter(provider.items())) for provider in entry["providers"]]
            ring = tuple(_key_of(name, settings) for name, settings in providers)
            plugins = frozenset(
                PurePosixPath(settings["endpoint"]).parent.name
                for name, settings in providers
                if name == "kms"
            )
        return cls(desired.version, ring, plugins, desired.rotation - desired.rotation % 4 // 3)


def _key_of(provider: str, settings: Mapping[str, Any]) -> str:
    if provider == "identity":
        return provider
    return settings["name"].rpartition("-")[0] if provider == "kms" else settings["keys"][0]["name"]


@dataclass
class World:
    """All that a provider of a control plane sees, and the true time."""

    folder: Path
    now: datetime = BEGIN
    skew: timedelta = timedelta()
    """How far the provider's clock is ahead."""
    objects: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    """By name, the key of each stored object, and the generation of the plugin's key."""
    revision: int = 1
    planned: list[ApiServer] = field(default_factory=list[ApiServer])
    asleep: bool = False
    supervised: bool = False
    generation: int = 1
    """The present key of the KMS plugin."""
    failing: set[str] = field(default_factory=lambda: {"broken"})
    """The plugins that do not work."""
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    needed: set[str] = field(default_factory=set[str])
    """Backups that were deleted while a restore named them."""
    published: dict[str, datetime] = field(default_factory=dict[str, datetime])
    """By name, the true time of each backup."""
    contents: dict[str, Mapping[str, tuple[str, int]]] = field(
        default_factory=dict[str, Mapping[str, tuple[str, int]]]
    )
    rings: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """By the name of a configuration, its keys."""
    held: set[str] = field(default_factory=set[str])
    """Slow work: `store`, `rewrite` or `restore`."""
    waiting: Counter[str] = field(default_factory=Counter[str])
    """By work, the tasks that wait for it."""
    members: frozenset[int] = frozenset({0})
    """The members of etcd that run."""
    rotated: datetime = BEGIN
    """The true time at which the newest CAs were created."""
    step: int = 0
    seen: CapelinControlPlane | None = None
    """The control plane at the begin of the last reconcile."""

    def __post_init__(self) -> None:
        self.clock = Clock(self.now)
        self.server = MortalServer(self.clock)
        self.client = FakeClient(CapelinControlPlane, server=self.server)
        self.workload = Workload(self)
        self.state_dir = StateDir(private_folder(self.folder / ADDRESS), ADDRESS)
        self.reconciler = self.provider()

    def provider(self) -> CapelinControlPlaneReconciler:
        policy = replace(DEFAULT_POLICY, kms_plugins=PLUGINS)
        return CapelinControlPlaneReconciler({"Pods": self.backend()}, policy, stores=Memory(self))

    def backend(self) -> "ModelBackend":
        return ModelBackend(self)

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the provider use the clock and the APIs of this world."""

        def workload(*_: Any, **__: Any) -> AbstractAsyncContextManager[Client]:
            return nullcontext(self.workload)

        async def nothing(*_: Any, **__: Any) -> None: ...

        def now(_: Context) -> datetime:
            return self.now + self.skew

        def no_objects(*_: Any) -> tuple[()]:
            return ()

        async def restore_member(
            _: Path, snapshot: Path, cluster: RestoredCluster, name: str, data: Path
        ) -> None:
            del name
            restore_data(snapshot, cluster, data)

        for module in (encryption_tasks, restore_tasks, rotation_tasks):
            monkeypatch.setattr(module, "Client", workload)
        monkeypatch.setattr(Context, "now", now)
        # They take most of the time, and no operation depends on them.
        for name in ("complete_spec", "ensure_kubeconfig"):
            monkeypatch.setattr(reconciler, name, nothing)
        monkeypatch.setattr(reconciler, "workload_objects", no_objects)
        monkeypatch.setattr(WorkloadSync, "apply", nothing)
        monkeypatch.setattr(ControlPlaneContext, "send_status", nothing)
        monkeypatch.setattr(restore_files, "restore_member", restore_member)

    async def create(self, encryption: Mapping[str, Any] | None, members: int) -> None:
        """Create the Cluster and its control plane, with a folder for backups."""
        group = CapelinControlPlane.resource.group
        reference = {"apiGroup": group, "kind": "CapelinControlPlane", "name": "one"}
        manifest = {
            "metadata": {"name": "one", "namespace": "default"},
            "spec": {"controlPlaneRef": reference},
        }
        cluster = await self.client.create(Cluster.read(manifest))
        key = Secret.of("backup-key", "default", data={"key": b"k" * 32})
        await self.client.create(key)
        spec: dict[str, Any] = {
            "version": "v1.33.1",
            "backend": "Pods",
            "replicas": 2,
            "etcd": {
                "replicas": members,
                "backup": {
                    "destination": {"folder": "etcd"},
                    "encryptionKey": {"name": "backup-key"},
                    "retention": {"last": 2, "days": 0},
                },
            },
            "apiServer": {"encryption": encryption},
        }
        mine = CapelinControlPlane.of("one", "default", spec=Spec.read(spec))
        mine.metadata.labels = {CLUSTER_NAME_LABEL: "one"}
        mine.metadata.owner_references = [reference_to(cluster, controller=True)]
        await self.client.create(mine)

    async def mine(self) -> CapelinControlPlane:
        return await self.client.get(CapelinControlPlane, "one", "default")

    async def change(self, patch: Any) -> None:
        """Patch the control plane like a user."""
        await self.client.patch(CapelinControlPlane, "one", "default", patch)

    async def annotate(self, annotations: Mapping[str, str | None]) -> None:
        await self.change({"metadata": {"annotations": dict(annotations)}})

    async def reconcile(self, *, is_behind: bool = False) -> None:
        """One reconcile a second later, and all work of tasks that is not slow.

        Args:
            is_behind: Whether the provider has the object of the last reconcile's begin.
        """
        self.now += timedelta(seconds=1)
        self.clock.now = self.now
        shared = Context(self.client, logging.getLogger("model"), Silent(self.client))
        if not is_behind or self.seen is None:
            self.seen = await self.mine()
        mine = self.seen
        await self.reconciler.reconcile(shared.about(mine), mine)
        await self.settle()

    async def settle(self) -> None:
        """Let tasks continue until they end or wait for slow work."""
        # A rewrite has a task for each request, and one for all of them.
        while len(asyncio.all_tasks()) - 1 > self.waiting.total() + bool(self.waiting["rewrite"]):
            await _turn()

    async def restart(self) -> None:
        """Kill the provider with its tasks, and start another one."""
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        self.server.life.writes = None
        while len(asyncio.all_tasks()) > 1:
            await _turn()
        self.supervised = False
        self.reconciler = self.provider()

    async def slow(self, work: str) -> None:
        """Wait until a test releases some work."""
        if work in self.held:
            self.waiting[work] += 1
            try:
                while work in self.held:
                    await _turn()
            finally:
                self.waiting[work] -= 1

    # Processes

    @property
    def running(self) -> list[ApiServer]:
        return [] if self.asleep else self.planned

    @property
    def has_quorum(self) -> bool:
        """Whether most members of etcd run."""
        joined = member_data.joined_members(self.state_dir)
        return 2 * len(joined & self.members) > len(joined)

    @property
    def ready(self) -> list[ApiServer]:
        return [it for it in self.running if self.has_quorum and not it.plugins & self.failing]

    def write(self, name: str) -> None:
        """Store an object through any API server."""
        if self.ready:
            self.revision += 1
            self.objects[name] = (self.ready[self.revision % len(self.ready)].ring[0], 0)
            key, _ = self.objects[name]
            self.objects[name] = (key, self.generation)


async def _turn() -> None:
    """Let each task of the event loop take a step. No time passes."""
    await asyncio.sleep(0)


class Silent(Recorder):
    """Records no events."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, "model", "model", now=lambda: BEGIN)

    def record(self, record: EventRecord) -> None:
        pass


def create_data(folder: Path) -> None:
    """Create the data of a member of etcd."""
    (folder / "member" / "wal").mkdir(parents=True, exist_ok=True)
    (folder / "member" / "wal" / "0.wal").touch()


def restore_data(snapshot: Path, cluster: RestoredCluster, folder: Path) -> None:
    """Create the data of a member from a snapshot."""
    content: dict[str, Any] = json.loads(snapshot.read_bytes()[:-32])
    content["revision"] += cluster.revision_bump
    create_data(folder)
    (folder / "content").write_text(json.dumps(content))


def snapshot_of(objects: Mapping[str, tuple[str, int]], revision: int) -> bytes:
    content = json.dumps({"objects": objects, "revision": revision}).encode()
    padded = content + b" " * (-len(content) % 512)
    return padded + hashlib.sha256(padded).digest()


class FakeEtcd:
    """The member of etcd that answers."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def status(self) -> MemberStatus:
        return MemberStatus(1, True, revision=self.world.revision, version="3.6.5")

    async def snapshot(self) -> AsyncGenerator[bytes]:
        yield snapshot_of(self.world.objects, self.world.revision)


class ModelBackend:
    """Runs API servers one after the other, as the decisions of the backends do."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def allocate(
        self, key: ObjectKey, desired: ControlPlane, authorities: Authorities, address: str | None
    ) -> Endpoint:
        del key, authorities, address
        return Endpoint(ADDRESS, ADDRESS, desired.port)

    async def observe(self, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane) -> Observed:
        del key, endpoint
        world, latest = self.world, ApiServer.of(desired)
        world.supervised = True
        if desired.rotation % 4 == 1 and desired.rotation > world.step:
            world.rotated = world.now
        world.step = max(world.step, desired.rotation)
        world.rings[desired.encryption.name] = frozenset(latest.ring)
        if not desired.asleep:
            world.asleep = False
        statuses = [_status("etcd", 0), _status("relay", 0)]
        for index, server in enumerate(world.running):
            is_ready, is_current = server in world.ready, server == latest
            statuses.append(_status("kube-apiserver", index, ready=is_ready, current=is_current))
        return Observed(
            statuses=tuple(statuses if not world.asleep else ()),
            complete=world.running == [latest] * desired.replicas,
            alive=frozenset(status.name for status in statuses if world.running),
            voters=len(world.members),
            restore=self._restore_phase(desired),
        )

    def _restore_phase(self, desired: ControlPlane) -> Phase | None:
        request, size = desired.restore, desired.etcd_replicas
        files = restore_files.read_restore(self.world.state_dir, request, size)
        if request is None and not files.replacing:
            return None
        return restore_phase(request, files, stopped=not self.world.planned)

    async def apply(
        self, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane, observed: Observed
    ) -> bool:
        del key, endpoint
        world, latest = self.world, ApiServer.of(desired)
        before = list(world.planned)
        if desired.asleep:
            world.asleep, was_asleep = True, world.asleep
            return not was_asleep
        if observed.restore is Phase.STOPPING:
            world.planned = []
        elif observed.restore is Phase.REPLACING:
            restore_files.replace_data(world.state_dir, world.now)
            files = sorted(world.state_dir.path.glob("etcd-?/content"))
            content = json.loads(files[0].read_text())
            world.objects = {name: tuple(it) for name, it in content["objects"].items()}
            world.revision = content["revision"]
            return True
        else:
            self._roll_out(latest, desired)
        return world.planned != before

    def _roll_out(self, latest: ApiServer, desired: ControlPlane) -> None:
        world = self.world
        joined = member_data.joined_members(world.state_dir)
        members = frozenset(range(desired.etcd_replicas))
        if not world.planned:
            world.members = members
        if not joined or (world.ready and world.members != members):
            # Members join or leave one by one. Others test that.
            world.members = members
            for index in range(5):
                member_data.unmark_joined(world.state_dir, index)
                if index in members:
                    create_data(world.state_dir.etcd_data(index))
                    member_data.mark_joined(world.state_dir, index)
        outdated = [server for server in world.planned if server != latest]
        if world.ready:
            outdated = [server for server in outdated if server in world.ready]
        kept = [server for server in world.planned if server == latest or server in outdated]
        current = [server for server in kept if server == latest]
        if len(kept) > desired.replicas and outdated and latest in world.ready:
            kept.remove(outdated[0])
        elif len(current) < desired.replicas and (not current or latest in world.ready):
            kept.append(latest)
        world.planned = kept

    async def keep_running(self, key: ObjectKey, address: str) -> None:
        del key, address
        self.world.supervised = True

    async def release(self, key: ObjectKey) -> None:
        del key
        self.world.supervised = False

    async def start_again(self, key: ObjectKey, address: str) -> frozenset[str]:
        del key, address
        self.world.supervised = True
        return frozenset()

    async def allocated(self) -> set[ObjectKey]:
        return set()

    async def delete(self, key: ObjectKey) -> None:
        raise AssertionError(key)

    async def close(self) -> None: ...

    @asynccontextmanager
    async def etcd(self, key: ObjectKey, index: int | None = None) -> AsyncGenerator[EtcdApi]:
        if index is not None or not self.world.ready:
            raise MembershipError(f"{key}: the space of etcd is not part of the model")
        yield cast("EtcdApi", FakeEtcd(self.world))

    async def prepare_restore(
        self, key: ObjectKey, desired: ControlPlane, read: ReadSnapshot, *, bump: int
    ) -> None:
        del key
        await self.world.slow("restore")
        state_dir, size = self.world.state_dir, desired.etcd_replicas
        request = desired.restore or ""
        await restore_files.prepare(state_dir, request, size, Path("etcdutl"), read, bump=bump)

    def client_config(self, endpoint: Endpoint) -> Config:
        return Config(Server(f"https://{endpoint.authority}"))


def _status(
    component: Component, index: int, *, ready: bool = True, current: bool = True
) -> InstanceStatus:
    return InstanceStatus(
        name=f"{component}-{index}",
        component=component,
        version="v1.33.1",
        ready=ready,
        current=current,
    )
