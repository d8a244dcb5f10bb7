"""SIGKILL hits the provider of a control plane on pods at its writes, in each operation of day two.

`CAPELIN_TEST_KILLS=30 CAPELIN_TEST_SEED=7` sets the most kills in each operation and their moments.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from capelin.api.core import ConfigMap, Secret
from capelin.contract import ASLEEP, BLOCK_MOVE_ANNOTATION, find_condition
from capelin.testing.waiting import until
from capelin_control_plane.api import Status
from capelin_control_plane.backup.files import open_backup
from capelin_control_plane.backup.manifests import BACKUP_ANNOTATION
from capelin_control_plane.desired.control_plane import MOVE_ANNOTATION, RESTORE_ANNOTATION
from capelin_control_plane.keys.encryption_keys import ROTATE_ANNOTATION as ROTATE_KEY_ANNOTATION
from capelin_control_plane.operations.rotation import DROP_ANNOTATION, ROTATE_ANNOTATION
from capelin_control_plane.operations.sleep import SLEEP_ANNOTATION, WAKE_ANNOTATION

from tests.s3.versitygw import VERSITYGW, S3Server
from tests.support.authority_secrets import AUTHORITIES
from tests.support.encryption_states import is_encrypted, is_plain, key_name

from .conftest import VERSIONS
from .hosted import Hosted
from .killed_pods import KEY, KILLS, Killed, killed
from .management_clusters import backed_up, destination, is_restored, load_image
from .test_moves import movable, pause
from .test_real_nodes import rotation

OLD, NEW = VERSIONS
SECRETS = 10

pytestmark = [
    pytest.mark.timeout(900 + 20 * KILLS),
    pytest.mark.needs_programs(VERSITYGW),
]


def moment() -> str:
    return datetime.now(UTC).isoformat()


async def back_up(control_plane: Killed) -> None:
    hosted = control_plane.hosted
    async with control_plane.writer() as writer:
        before = set(writer.written)
        requested = datetime.now(UTC).replace(microsecond=0)
        await hosted.annotate(BACKUP_ANNOTATION, requested.isoformat())

        async def is_backed_up() -> bool:
            last = ((await hosted.get()).status or Status()).backup
            return last is not None and last.time >= requested

        await control_plane.through_kills(is_backed_up)
    folder = control_plane.backups / hosted.namespace / "etcd" / hosted.name
    (manifest,) = folder.glob("*.json")
    assert {path.stem for path in folder.iterdir()} == {manifest.stem}, "leftovers"
    target = control_plane.backups.with_name("opened")
    await asyncio.to_thread(open_backup, manifest, KEY, target)
    content = b"".join(path.read_bytes() for path in target.rglob("*") if path.is_file())
    assert [name for name in before if name.encode() not in content] == []


async def restore(control_plane: Killed) -> None:
    hosted = control_plane.hosted
    async with control_plane.writer() as writer:
        before = set(writer.written)
        async with control_plane.mortal.undisturbed():
            name = await backed_up(hosted)
        async with hosted.workload() as workload:
            await workload.create(ConfigMap.of("after-the-backup", "default"))
        await hosted.annotate(RESTORE_ANNOTATION, name)

        async def is_complete() -> bool:
            return await is_restored(hosted) and await control_plane.settled()

        await control_plane.through_kills(is_complete)
        control_plane.lost |= writer.written - before
    async with hosted.workload() as workload:
        assert await workload.find(ConfigMap, "after-the-backup", "default") is None


async def change_members(control_plane: Killed) -> None:
    async with control_plane.writer():
        for members in (3, 1):
            await control_plane.hosted.change(etcd={"replicas": members})
            await control_plane.through_kills(control_plane.settled, steps=2)


async def rotate_authorities(control_plane: Killed) -> None:
    hosted = control_plane.hosted

    async def awaits_clients() -> bool:
        return "stage 3" in await rotation(hosted) and await control_plane.settled()

    async def is_over() -> bool:
        return not await rotation(hosted) and await control_plane.settled()

    async with control_plane.writer():
        await hosted.annotate(ROTATE_ANNOTATION, moment())
        await control_plane.through_kills(awaits_clients, steps=2, successors=1)
    async with control_plane.writer():
        await hosted.annotate(DROP_ANNOTATION, f"force@{moment()}")
        await control_plane.through_kills(is_over, steps=2, successors=1)
    assert control_plane.authorities.successors == dict.fromkeys(AUTHORITIES, 1)


async def encrypt(control_plane: Killed) -> None:
    hosted, settled = control_plane.hosted, control_plane.settled
    async with hosted.workload() as workload:
        for number in range(SECRETS):
            await workload.create(Secret.of(f"mine-{number}", "default", data={"a": b"tuna"}))
    async with control_plane.writer():
        encryption = {"resources": ["configmaps", "secrets"]}
        await hosted.change(apiServer={"encryption": encryption})
        await control_plane.through_kills(is_encrypted(hosted, settled, "secretbox"), steps=3)
        first = await key_name(hosted)
        await hosted.annotate(ROTATE_KEY_ANNOTATION, moment())
        is_rotated = is_encrypted(hosted, settled, "secretbox", first)
        await control_plane.through_kills(is_rotated, steps=3)
        await hosted.change(apiServer={"encryption": None})
        await control_plane.through_kills(is_plain(hosted, settled), steps=3)
    # API servers have no keys any more.
    async with hosted.workload() as workload:
        secrets = (await workload.list(Secret, "default")).items
    assert sum(secret.data.get("a") == b"tuna" for secret in secrets) == SECRETS


async def upgrade(control_plane: Killed) -> None:
    async with control_plane.writer():
        await control_plane.hosted.change(version=NEW)
        await control_plane.through_kills(control_plane.settled)


async def sleep_and_wake(control_plane: Killed) -> None:
    hosted = control_plane.hosted

    async def is_asleep() -> bool:
        status = (await hosted.get()).status
        condition = find_condition(status.conditions, ASLEEP) if status else None
        return condition is not None and condition.reason == ASLEEP and not await hosted.pods()

    async with control_plane.writer():
        await hosted.annotate(SLEEP_ANNOTATION, moment())
        await control_plane.through_kills(is_asleep, steps=2)
        await hosted.annotate(WAKE_ANNOTATION, moment())
        await control_plane.through_kills(control_plane.settled, steps=2)


async def prepare_move(control_plane: Killed) -> None:
    """Until `clusterctl move` could continue. Then, the control plane continues here."""
    hosted = control_plane.hosted

    async def is_ready() -> bool:
        return BLOCK_MOVE_ANNOTATION not in (await hosted.get()).metadata.annotations

    async with control_plane.writer():
        async with control_plane.mortal.undisturbed():
            await hosted.annotate(MOVE_ANNOTATION, moment())
            await until(lambda: movable(hosted), lambda text: "MoveRequested" in text, within=60)
        await pause(hosted, paused=True)
        await control_plane.through_kills(is_ready, steps=2)
        assert await hosted.pods() == []
        await pause(hosted, paused=False)
        await control_plane.through_kills(control_plane.settled, steps=2)
    assert await is_restored(hosted)


FOLDER = {"destination": {"folder": "etcd"}, "encryptionKey": {"name": "backup-key"}}


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation of day two."""

    name: str
    run: Callable[[Killed], Awaitable[None]]
    spec: Mapping[str, Any] = field(default_factory=dict[str, Any])
    version: str = NEW
    interrupts: bool = False
    """Whether it stops the API for some time."""
    restores: bool = False
    """Whether it needs the image of the provider."""
    to_s3: bool = False


OPERATIONS = (
    Operation(name="backup", run=back_up, spec={"etcd": {"backup": FOLDER}}),
    Operation(
        name="restore",
        run=restore,
        spec={"etcd": {"backup": FOLDER}},
        interrupts=True,
        restores=True,
    ),
    Operation(name="members", run=change_members),
    # Its only member of etcd restarts in each stage.
    Operation(name="rotation", run=rotate_authorities, interrupts=True),
    Operation(name="encryption", run=encrypt),
    Operation(name="upgrade", run=upgrade, version=OLD),
    Operation(name="sleep", run=sleep_and_wake, interrupts=True),
    Operation(
        name="move",
        run=prepare_move,
        spec={"pods": {"exposure": {"type": "NodePort", "portable": True}}},
        interrupts=True,
        to_s3=True,
    ),
)


@pytest.mark.parametrize("operation", OPERATIONS, ids=[each.name for each in OPERATIONS])
async def test_an_operation_survives_kills_of_the_provider(
    unmanaged: Hosted,
    server: S3Server,
    tmp_path: Path,
    operation: Operation,
    record_property: Callable[[str, object], None],
) -> None:
    hosted, spec = unmanaged, dict(operation.spec)
    image = load_image(hosted.kind) if operation.restores else None
    if operation.to_s3:
        spec["etcd"] = {"backup": {**FOLDER, "destination": destination(server)}}
    async with killed(hosted, server, image, tmp_path) as control_plane:
        before = hosted.kind.left_in(hosted.namespace)
        await control_plane.create(operation.version, **spec)
        began = monotonic()
        try:
            await operation.run(control_plane)
        finally:
            record_property("seconds", round(monotonic() - began, 1))
            for name, figure in control_plane.figures().items():
                record_property(name, figure)
        assert await control_plane.problems() == []
        await control_plane.check_writes(interrupts=operation.interrupts)
        await control_plane.delete()
        await until(
            lambda: hosted.kind.left_in(hosted.namespace), lambda left: left == before, within=60
        )
        assert control_plane.deaths
