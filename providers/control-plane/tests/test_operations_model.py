"""Random requests, failures and clocks: operations end, and nothing is lost between them."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin.contract import find_condition
from capelin_control_plane.backup_files import read_backups
from capelin_control_plane.backups import BACKUP_ANNOTATION
from capelin_control_plane.desired import RESTORE_ANNOTATION
from capelin_control_plane.encryption_keys import ROTATE_ANNOTATION as ROTATE_KEY
from capelin_control_plane.rotation_tasks import DROP_ANNOTATION
from capelin_control_plane.rotation_tasks import ROTATE_ANNOTATION as ROTATE_CAS
from capelin_control_plane.sleep import SLEEP_ANNOTATION, WAKE_ANNOTATION
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from .operations_world import Bucket, KilledError, World

SECRETBOX: Mapping[str, Any] = {"provider": "secretbox"}
VAULT: Mapping[str, Any] = {"provider": "kms", "kmsPlugin": "vault"}
BROKEN: Mapping[str, Any] = {"provider": "kms", "kmsPlugin": "broken"}
ENCRYPTIONS = st.sampled_from([None, SECRETBOX, VAULT, BROKEN])
REQUESTS = st.sets(st.sampled_from([BACKUP_ANNOTATION, ROTATE_KEY, ROTATE_CAS]), min_size=1)
SKEWS = st.sampled_from([-timedelta(hours=1), timedelta(hours=1), timedelta(days=366)])
WORK = st.sampled_from(["store", "rewrite", "restore"])
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
        self.paused = False

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    @initialize(encryption=ENCRYPTIONS.filter(lambda it: it is not BROKEN))
    def begin(self, encryption: Mapping[str, Any] | None) -> None:
        self.encryption = encryption
        self.requested: dict[str, datetime] = {}
        self.named: str | None = None
        self.value: str | None = None
        self.run(self._begin())

    async def _begin(self) -> None:
        self.world = World(Path(self.folder.name))
        self.world.patch(self.monkeypatch)
        await self.world.create(self.encryption)
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
        self.world.server.writes_left = writes
        with suppress(KilledError):
            for _ in range(8):
                self.run(self.world.reconcile())
        self.run(self.world.restart())

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
        self.named = names[0] if oldest else names[-1]
        self.value = f"{self.named}@{self.world.now:%Y-%m-%dT%H:%M:%SZ}"
        self.run(self.world.annotate({RESTORE_ANNOTATION: self.value}))

    @rule()
    @precondition(lambda self: self.value is not None)
    def restore_again(self) -> None:
        """Request the last restore again, with the same value."""
        name = str(self.value).partition("@")[0]
        self.named = name if f"{name}.json" in self.world.files else None
        self.run(self.world.annotate({RESTORE_ANNOTATION: self.value}))

    @rule()
    def withdraw_restore(self) -> None:
        self.named = None
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

    @rule(asleep=st.booleans())
    def sleep(self, asleep: bool) -> None:
        annotation = SLEEP_ANNOTATION if asleep else WAKE_ANNOTATION
        self.run(self.world.annotate({annotation: self.world.now.isoformat()}))

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.paused = paused
        self.run(self._pause(paused=paused))

    async def _pause(self, *, paused: bool) -> None:
        await self.world.client.patch(Cluster, "one", "default", {"spec": {"paused": paused}})

    @rule()
    def replace_the_manifest(self) -> None:
        """Like `kubectl replace` with a manifest without encryption."""
        self.encryption, self.named = None, None
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
        for server in world.ready:
            for name, (key, _) in world.objects.items():
                assert key in server.ring, f"{name} is stored with {key}, and {server.ring} serves"
        for manifest in self.run(read_backups(Bucket(world))).manifests:
            keys = {key for key, _ in world.contents[manifest.name].values()}
            named = world.rings[manifest.encryption]
            assert keys <= named, f"backup {manifest.name} needs {keys} and names {named}"
        if self.named is not None:
            assert f"{self.named}.json" in world.files, f"{self.named} was deleted"
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
        now = world.now.isoformat()
        await world.annotate({WAKE_ANNOTATION: now})
        left: list[str] = []
        for _ in range(MOST_RECONCILES):
            world.now += timedelta(minutes=1)
            await world.annotate({DROP_ANNOTATION: f"force@{world.now.isoformat()}"})
            await world.reconcile()
            left = await self._left()
            if not left:
                return
        raise AssertionError(left)

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


TestOperations = Operations.TestCase
# Each step is a reconcile of everything. `nox -s seeds` runs 25 times as many.
TestOperations.settings = settings(
    max_examples=settings().max_examples // 10,
    stateful_step_count=20,
    suppress_health_check=(HealthCheck.too_slow,),
    deadline=None,
)
