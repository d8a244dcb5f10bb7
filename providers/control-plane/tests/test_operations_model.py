"""Random requests, failures and clocks: operations end, and nothing is lost between them."""

import asyncio
import base64
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin.api.core import Secret
from capelin.contract import find_condition
from capelin_control_plane.backup.files import read_backups
from capelin_control_plane.backup.manifests import BACKUP_ANNOTATION
from capelin_control_plane.backup.stores import StoreError
from capelin_control_plane.desired.control_plane import RESTORE_ANNOTATION
from capelin_control_plane.keys.encryption_keys import ROTATE_ANNOTATION as ROTATE_KEY
from capelin_control_plane.operations.rotation import DROP_ANNOTATION
from capelin_control_plane.operations.rotation import ROTATE_ANNOTATION as ROTATE_CAS
from capelin_control_plane.operations.sleep import SLEEP_ANNOTATION, WAKE_ANNOTATION
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.support.kills import KilledError

from .operations_servers import Bucket
from .operations_world import World

SECRETBOX: Mapping[str, Any] = {"provider": "secretbox"}
VAULT: Mapping[str, Any] = {"provider": "kms", "kmsPlugin": "vault"}
BROKEN: Mapping[str, Any] = {"provider": "kms", "kmsPlugin": "broken"}
ENCRYPTIONS = st.sampled_from([None, SECRETBOX, VAULT, BROKEN])
REQUESTS = st.sets(st.sampled_from([BACKUP_ANNOTATION, ROTATE_KEY, ROTATE_CAS]), min_size=1)
SKEWS = st.sampled_from([-timedelta(hours=1), timedelta(hours=1), timedelta(days=366)])
WORK = st.sampled_from(["store", "rewrite", "restore"])
SCHEDULES: Mapping[str, Any] = {
    "backups": {"etcd": {"backup": {"schedule": "*/10 * * * *"}}},
    "rotation": {"certificates": {"rotation": {"schedule": "0 */2 * * *"}}},
    "sleep": {"sleep": {"start": "0 * * * *", "end": "30 * * * *"}},
}
NO_SCHEDULES: Mapping[str, Any] = {
    "etcd": {"backup": {"schedule": None}},
    "certificates": {"rotation": None},
    "sleep": None,
}
MOST_RECONCILES = 120
"""Enough for all operations in sequence."""
REFUSALS = ("no usable backup", "changed after backup", "another CA", "is of Kubernetes")
"""The obstacles of a restore that only a person can remove, by another request."""


class Operations(RuleBasedStateMachine):
    """A person, a control plane and its providers."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.runner, self.folder = asyncio.Runner(), TemporaryDirectory()
        self.monkeypatch = pytest.MonkeyPatch()
        self.revision = 0

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    @initialize(
        encryption=ENCRYPTIONS.filter(lambda it: it is not BROKEN), members=st.sampled_from([1, 3])
    )
    def begin(self, encryption: Mapping[str, Any] | None, members: int = 1) -> None:
        self.encryption = encryption
        self.requested: dict[str, datetime] = {}
        self.value: str | None = None
        self.is_lost = False
        """Whether no backup can replace the data of lost members."""
        self.run(self._begin(members))

    async def _begin(self, members: int) -> None:
        self.world = World(Path(self.folder.name))
        self.world.patch(self.monkeypatch)
        await self.world.create(self.encryption, members)
        for _ in range(4):
            await self.world.reconcile()
        self.world.write("first")

    # Time and failures

    @rule(minutes=st.sampled_from([0, 1, 1, 5, 60]))
    def reconcile(self, minutes: int) -> None:
        for _ in range(min(minutes, 5)):
            self.world.now += timedelta(minutes=max(1, minutes // 5))
            self.run(self.world.reconcile())
        self.run(self.world.reconcile())

    @rule(writes=st.integers(0, 6))
    def kill(self, writes: int) -> None:
        self.world.server.life.writes = writes
        with suppress(KilledError):
            for _ in range(8):
                self.run(self.world.reconcile())
        self.run(self.world.restart())

    @rule(is_behind=st.booleans())
    @precondition(lambda self: "rewrite" not in self.world.held)
    def hand_over(self, is_behind: bool) -> None:
        """Another provider takes over, and tasks of the first one end later.

        Args:
            is_behind: Whether it does not see the last writes of the first one yet.
        """
        self.world.reconciler = self.world.provider()
        self.run(self.world.reconcile(is_behind=is_behind))

    @rule(skew=SKEWS)
    def set_the_clock_wrong(self, skew: timedelta) -> None:
        self.world.skew = skew

    @rule()
    def set_the_clock_right(self) -> None:
        self.world.skew = timedelta()

    @rule(work=WORK)
    def hold(self, work: str) -> None:
        self.world.held.add(work)

    @rule(work=WORK)
    def release(self, work: str) -> None:
        self.world.held.discard(work)
        self.run(self.world.settle())

    @rule()
    def give_the_plugin_another_key(self) -> None:
        self.world.generation += 1

    @rule()
    def write(self) -> None:
        self.world.write(f"secret-{self.world.now:%d%H%M%S}")

    # Requests

    @rule(requests=REQUESTS)
    def request(self, requests: set[str]) -> None:
        now = self.world.now
        self.requested.update(dict.fromkeys(requests, now))
        self.run(self.world.annotate(dict.fromkeys(sorted(requests), now.isoformat())))

    @rule(oldest=st.booleans())
    @precondition(lambda self: self.world.published)
    def restore(self, oldest: bool) -> None:
        names = sorted(name for name in self.world.published if f"{name}.json" in self.world.files)
        name = names[0] if oldest else names[-1]
        self.value = f"{name}@{self.world.now:%Y-%m-%dT%H:%M:%SZ}"
        self.run(self.world.annotate({RESTORE_ANNOTATION: self.value}))

    @rule()
    @precondition(lambda self: self.value is not None)
    def restore_again(self) -> None:
        """Request the last restore again, with the same value."""
        self.run(self.world.annotate({RESTORE_ANNOTATION: self.value}))

    @rule()
    def withdraw_restore(self) -> None:
        self.run(self.world.annotate({RESTORE_ANNOTATION: None}))

    @rule(encryption=ENCRYPTIONS)
    def change_encryption(self, encryption: Mapping[str, Any] | None) -> None:
        self.encryption = encryption
        # A merge patch keeps fields that it does not name.
        value = None if encryption is None else {"kmsPlugin": None, **encryption}
        self.run(self.world.change({"spec": {"apiServer": {"encryption": value}}}))

    @rule(size=st.sampled_from([1, 3]))
    def resize_etcd(self, size: int) -> None:
        self.run(self.world.change({"spec": {"etcd": {"replicas": size}}}))

    @rule()
    def upgrade(self) -> None:
        self.run(self.world.change({"spec": {"version": "v1.34.2"}}))

    @rule(what=st.sampled_from([*SCHEDULES]))
    def schedule(self, what: str) -> None:
        self.run(self.world.change({"spec": SCHEDULES[what]}))

    @rule()
    def end_schedules(self) -> None:
        self.run(self.world.change({"spec": NO_SCHEDULES}))

    @rule(count=st.sampled_from([1, 2]))
    @precondition(lambda self: len(self.world.members) == 3 and self.world.ready)
    def lose_members(self, count: int) -> None:
        """The machines of one member of etcd end, or of the majority."""
        self.world.members = frozenset(sorted(self.world.members)[count:])

    @rule(asleep=st.booleans())
    def sleep(self, asleep: bool) -> None:
        annotation = SLEEP_ANNOTATION if asleep else WAKE_ANNOTATION
        self.run(self.world.annotate({annotation: self.world.now.isoformat()}))

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.run(self._pause(paused=paused))

    async def _pause(self, *, paused: bool) -> None:
        await self.world.client.patch(Cluster, "one", "default", {"spec": {"paused": paused}})

    @rule()
    def replace_the_manifest(self) -> None:
        """Like `kubectl replace` with a manifest without encryption."""
        self.encryption = None
        self.requested.clear()
        self.run(self._replace())

    async def _replace(self) -> None:
        names = dict.fromkeys((await self.world.mine()).metadata.annotations)
        spec = {"apiServer": {"encryption": None}}
        await self.world.change({"metadata": {"annotations": names}, "spec": spec})

    # Properties

    @invariant()
    def check(self) -> None:
        """Nothing is lost now."""
        if not hasattr(self, "world"):
            return
        world = self.world
        assert world.revision >= self.revision, "clients have seen a later revision"
        self.revision = world.revision
        for server in world.ready:
            for name, (key, _) in world.objects.items():
                assert key in server.ring, f"{name} is stored with {key}, and {server.ring} serves"
        for manifest in self.run(read_backups(Bucket(world))).manifests:
            keys = {key for key, _ in world.contents[manifest.name].values()}
            named = world.rings[manifest.encryption]
            assert keys <= named, f"backup {manifest.name} needs {keys} and names {named}"
        assert not world.needed, "a restore names them"
        status = self.run(world.mine()).status
        digest = status and status.encryption and status.encryption.plugin_key
        if digest:
            generation = int(digest.removeprefix("sha256:"))
            older = {name for name, it in world.objects.items() if it[1] < generation}
            assert not older, f"{older} have an earlier key than {digest}"

    def teardown(self) -> None:
        self.monkeypatch.undo()
        self.run(self._stop())
        self.runner.close()
        self.folder.cleanup()

    async def _stop(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    def require_an_end(self) -> None:
        self.run(self._all_end())

    async def _all_end(self) -> None:
        """Remove each obstacle that a person removes, and require an end."""
        world = self.world
        world.skew, world.held = timedelta(), set()
        if self.encryption is BROKEN:
            world.failing = set()
        await self._pause(paused=False)
        await world.change({"spec": NO_SCHEDULES})
        now = world.now.isoformat()
        await world.annotate({WAKE_ANNOTATION: now})
        if not world.has_quorum:
            if not world.published:
                return
            await self._restore_newest()
        left: list[str] = []
        for _ in range(MOST_RECONCILES):
            world.now += timedelta(minutes=1)
            await world.annotate({DROP_ANNOTATION: f"force@{world.now.isoformat()}"})
            await world.reconcile()
            left = await self._left()
            if not left or self.is_lost:
                return
        raise AssertionError(left)

    async def _restore_newest(self) -> None:
        """A person continues after the loss of most members of etcd."""
        name = max(name for name in self.world.published if f"{name}.json" in self.world.files)
        moment = f"{self.world.now:%Y-%m-%dT%H:%M:%SZ}"
        await self.world.annotate({RESTORE_ANNOTATION: f"{name}@{moment}"})

    async def _left(self) -> list[str]:
        """The operations that have not ended."""
        world, left = self.world, list[str]()
        mine = await world.mine()
        conditions = mine.status.conditions if mine.status else []
        for type_ in ("Restoring", "RotatingAuthorities", "EncryptionAtRest"):
            condition = find_condition(conditions, type_)
            text = f"{condition.reason}: {condition.message}" if condition else ""
            if condition and type_ == "Restoring" and any(it in text for it in REFUSALS):
                await world.annotate({RESTORE_ANNOTATION: None})
                self.is_lost = not world.has_quorum
            if text and condition and condition.reason != type_:
                left.append(f"{type_} {text}")
        taken = max(world.published.values(), default=None)
        requested = self.requested.get(BACKUP_ANNOTATION)
        if requested and (taken is None or taken < requested):
            left.append(f"the backup of {requested}")
        requested = self.requested.get(ROTATE_CAS)
        if requested and world.rotated < requested:
            left.append(f"the rotation of {requested}")
        if len(world.ready) < 2:
            left.append("API servers do not serve")
        return left


SCENES: Mapping[str, Sequence[tuple[str, *tuple[Any, ...]]]] = {
    "a restore during a change of keys": [
        *(("begin", SECRETBOX), ("request", {BACKUP_ANNOTATION}), ("reconcile", 1)),
        *(("request", {ROTATE_KEY}), ("reconcile", 0), ("restore", False)),
    ],
    "a restore during a rotation of CAs": [
        *(("begin", None), ("request", {BACKUP_ANNOTATION}), ("reconcile", 1)),
        *(("request", {ROTATE_CAS}), ("reconcile", 0), ("restore", False)),
    ],
    "two rotations in one reconcile": [("begin", SECRETBOX), ("request", {ROTATE_KEY, ROTATE_CAS})],
    "a plugin that does not work is taken back": [
        *(("begin", SECRETBOX), ("change_encryption", BROKEN), ("reconcile", 5)),
        *(("sleep", True), ("reconcile", 1), ("change_encryption", SECRETBOX)),
    ],
    "a rewrite ends while a restore is prepared": [
        *(("begin", VAULT), ("reconcile", 5), ("reconcile", 5), ("request", {BACKUP_ANNOTATION})),
        *(("reconcile", 1), ("hold", "rewrite"), ("give_the_plugin_another_key",)),
        *(("reconcile", 5), ("hold", "restore"), ("restore", False), ("reconcile", 0)),
        *(("release", "rewrite"), ("release", "restore"), ("reconcile", 5)),
    ],
    "retention while a restore names the oldest backup": [
        *(("begin", None), ("request", {BACKUP_ANNOTATION}), ("reconcile", 1), ("hold", "restore")),
        *(("restore", True), ("request", {BACKUP_ANNOTATION}), ("reconcile", 1)),
        *(("request", {BACKUP_ANNOTATION}), ("reconcile", 1)),
    ],
    "a backup and CAs of a clock that was ahead": [
        *(("begin", SECRETBOX), ("set_the_clock_wrong", timedelta(days=366))),
        *(("request", {BACKUP_ANNOTATION, ROTATE_CAS}), ("reconcile", 5), ("set_the_clock_right",)),
        *(("reconcile", 5), ("request", {BACKUP_ANNOTATION, ROTATE_CAS, ROTATE_KEY})),
    ],
    "a plugin that does not work gives way to another change": [
        *(("begin", SECRETBOX), ("change_encryption", BROKEN), ("reconcile", 5)),
        *(("request", {ROTATE_KEY}), ("change_encryption", SECRETBOX), ("reconcile", 5)),
        *(("change_encryption", BROKEN), ("reconcile", 5), ("change_encryption", None)),
    ],
    "a key of a clock that was ahead": [
        *(("begin", SECRETBOX), ("set_the_clock_wrong", timedelta(days=366))),
        *(("request", {ROTATE_KEY}), ("reconcile", 5), ("reconcile", 5)),
    ],
    "a restore while a plugin does not work": [
        *(("begin", SECRETBOX), ("request", {BACKUP_ANNOTATION}), ("reconcile", 0)),
        *(("change_encryption", BROKEN), ("reconcile", 0), ("restore", True), ("reconcile", 5)),
        *(("reconcile", 1), ("change_encryption", SECRETBOX)),
    ],
    "a manifest without the annotations enables encryption": [
        *(("begin", None), ("replace_the_manifest",), ("change_encryption", VAULT)),
        *(("reconcile", 1), ("reconcile", 5)),
    ],
    "a manifest without the annotations": [
        *(("begin", SECRETBOX), ("replace_the_manifest",), ("reconcile", 5)),
    ],
    "a backup waits while keys are rotated": [
        *(("begin", SECRETBOX), ("hold", "store"), ("request", {BACKUP_ANNOTATION})),
        *(("reconcile", 0), ("request", {ROTATE_KEY}), ("reconcile", 5), ("reconcile", 5)),
        *(("release", "store"), ("reconcile", 1)),
    ],
    "a withdrawn restore is requested again after a change of keys": [
        *(("begin", SECRETBOX), ("request", {BACKUP_ANNOTATION}), ("reconcile", 1)),
        *(("restore", False), ("reconcile", 0), ("withdraw_restore",), ("request", {ROTATE_KEY})),
        *(("reconcile", 5), ("reconcile", 5), ("restore_again",), ("reconcile", 5)),
    ],
    "fewer members of etcd during a restore": [
        *(("begin", None), ("resize_etcd", 3), ("reconcile", 1), ("request", {BACKUP_ANNOTATION})),
        *(("reconcile", 1), ("restore", False), ("reconcile", 0), ("resize_etcd", 1)),
    ],
}


@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: str) -> None:
    operations = Operations()
    try:
        for name, *arguments in SCENES[scene]:
            getattr(operations, name)(*arguments)
            operations.check()
        operations.require_an_end()
    finally:
        operations.teardown()


@pytest.fixture
def operations() -> Iterator[Operations]:
    created = Operations()
    yield created
    created.teardown()


def test_a_refused_deletion_does_not_hide_a_good_backup(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise StoreError("AccessDenied")

    monkeypatch.setattr(Bucket, "delete", refuse)
    operations.begin(None)
    for _ in range(3):
        operations.request({BACKUP_ANNOTATION})
        operations.reconcile(1)
    status = operations.run(operations.world.mine()).status
    condition = find_condition(status.conditions, "BackupHealthy")
    assert condition is not None
    assert (condition.reason, condition.message) == ("BackupsNotDeleted", "AccessDenied")
    assert status.backup.name == max(operations.world.published)


def test_a_request_without_a_moment_gets_one(operations: Operations) -> None:
    operations.begin(None)
    operations.request({BACKUP_ANNOTATION})
    operations.reconcile(1)
    (name,) = operations.world.published
    revisions = [operations.world.revision]
    for _ in range(2):
        operations.run(operations.world.annotate({RESTORE_ANNOTATION: name}))
        operations.require_an_end()
        revisions.append(operations.world.revision)
    assert revisions == sorted({*revisions}), "clients rely on it"
    assert RESTORE_ANNOTATION not in operations.run(operations.world.mine()).metadata.annotations


def test_a_restored_token_of_a_dropped_key_is_removed(operations: Operations) -> None:
    operations.begin(None)
    operations.request({BACKUP_ANNOTATION})
    operations.reconcile(1)
    header = base64.urlsafe_b64encode(b'{"kid": "dropped"}').rstrip(b"=")
    token = Secret.of("old", "default", data={"token": header + b".e30.x"})
    token.type = "kubernetes.io/service-account-token"
    operations.world.workload.add(token)
    operations.restore(oldest=True)
    operations.require_an_end()
    restored = operations.run(operations.world.workload.get(Secret, "old", "default"))
    assert restored.data == {}


class RandomOperations(Operations):
    """Random requests and failures. Whatever happened, all operations can end after it."""

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.require_an_end()
        finally:
            super().teardown()


TestOperations = RandomOperations.TestCase
# Each step is a reconcile of everything. `nox -s seeds` runs 25 times as many.
TestOperations.settings = settings(
    max_examples=settings().max_examples // 10,
    stateful_step_count=20,
    suppress_health_check=(HealthCheck.too_slow,),
    deadline=None,
)
