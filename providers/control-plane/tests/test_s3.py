"""Backups in a real S3 server: their faults, and providers that end at any request."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from capelin.api.core import Secret
from capelin.client import read_endpoints
from capelin.provider import Blocked
from capelin.testing.fake_client import FakeClient
from capelin_control_plane.api import BackupDestination, S3Destination, SecretName
from capelin_control_plane.backup import s3
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.files import (
    BackupWriter,
    delete_backup,
    delete_leftovers,
    open_backup,
    read_backups,
    read_snapshot,
)
from capelin_control_plane.backup.manifests import Manifest
from capelin_control_plane.backup.s3 import Bucket, S3Credentials, S3Store
from capelin_control_plane.backup.stores import StoreError

from tests.s3.faults import Faults, faulty
from tests.s3.versitygw import (
    BUCKET,
    KEY_ID,
    SECRET,
    SECRET_DATA,
    VERSITYGW,
    S3Server,
    s3_server,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.needs_programs(VERSITYGW),
]
FOLDER = "capelin/default/one/"
KEY = b"k" * 32
NOW = datetime(2026, 3, 29, 12, 0, tzinfo=UTC)
PART_BYTES = 5 << 20
DATA = bytes(range(256)) * (2 * PART_BYTES // 256) + bytes(512 * 7)
SNAPSHOT = DATA + sha256(DATA).digest()
PARTS = [".authorities", ".json", ".snapshot"]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[S3Server]:
    async with s3_server(tmp_path / "s3") as server:
        yield server


@pytest.fixture
async def faults(server: S3Server) -> AsyncGenerator[Faults]:
    async with faulty(server) as faults:
        yield faults


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", PART_BYTES)


@asynccontextmanager
async def opened(server: S3Server, **changes: Any) -> AsyncGenerator[S3Store]:
    """The store as the provider opens it. `changes` are fields of the destination."""
    client = FakeClient()
    await client.create(Secret.of("credentials", "default", data=SECRET_DATA))
    destination = S3Destination(
        endpoint=server.endpoint,
        bucket=BUCKET,
        prefix="capelin",
        credentials=SecretName(name="credentials"),
        ca_bundle=server.ca,
    )
    destination = BackupDestination(s3=destination.model_copy(update=changes))
    stores = Stores(None, read_endpoints(server.endpoint))
    async with stores.open(client, destination, "default", "one") as store:
        assert isinstance(store, S3Store)
        yield store


def manifest(taken_at: datetime = NOW) -> Manifest:
    return Manifest(
        namespace="default",
        cluster="one",
        control_plane="one",
        authority="a",
        kubernetes_version="v1.34.4",
        etcd_version="3.6.8",
        revision=7,
        taken_at=taken_at,
        seconds=1.0,
        snapshot_bytes=len(SNAPSHOT),
    )


async def pieces() -> AsyncGenerator[bytes]:
    for start in range(0, len(SNAPSHOT), 32768):
        yield SNAPSHOT[start : start + 32768]


async def write(store: S3Store, taken: Manifest) -> None:
    writer = BackupWriter(store, taken.name, KEY, "a")
    await writer.authorities(b"secrets")
    await writer.snapshot(pieces())
    await writer.publish(taken)


def keys(*backups: Manifest) -> list[str]:
    return [f"{FOLDER}{taken.name}{part}" for taken in backups for part in PARTS]


def check(server: S3Server, taken: Manifest, target: Path) -> None:
    """Open a backup. The server stores objects as files."""
    open_backup(server.objects / FOLDER / f"{taken.name}.json", KEY, target)
    assert (target / "etcd.db").read_bytes() == SNAPSHOT


async def test_a_backup_is_written_listed_and_deleted(server: S3Server, tmp_path: Path) -> None:
    first, second = manifest(), manifest(NOW + timedelta(hours=1))
    async with opened(server) as store:
        assert (await read_backups(store)).manifests == ()
        await write(store, first)
        await write(store, second)
        assert (await read_backups(store)).manifests == (second, first)
        assert server.keys() == keys(first, second)
        check(server, first, tmp_path / "opened")
        await delete_backup(store, first.name)
        await delete_backup(store, first.name)
        assert server.keys() == keys(second)
        assert await store.read("missing") is None


async def read(store: S3Store, taken: Manifest) -> bytes:
    return b"".join([piece async for piece in read_snapshot(store, taken, KEY)])


async def test_a_snapshot_arrives_despite_faults(server: S3Server, faults: Faults) -> None:
    taken = manifest()
    async with opened(server) as store:
        await write(store, taken)
    async with opened(faults.server) as store:
        faults.busy, faults.cuts = 1, [100, 100]
        assert await read(store, taken) == SNAPSHOT
        assert (faults.busy, faults.cuts) == (0, [])
        path = server.objects / FOLDER / f"{taken.name}.snapshot"
        content = path.read_bytes()
        path.write_bytes(content[: 1 << 20])
        with pytest.raises(BackupError, match="damaged"):
            await read(store, taken)
        path.unlink()
        with pytest.raises(StoreError, match="NoSuchKey"):
            await read(store, taken)


async def test_other_objects_of_the_bucket_are_not_touched(server: S3Server) -> None:
    (server.objects / FOLDER).mkdir(parents=True)
    async with opened(server) as store:
        await (await store.create("")).finish()  # as consoles do
    others = ["capelin/default/one-2/1.snapshot", "capelin/default/one/1/2.snapshot", "1.snapshot"]
    for name in others:
        path = server.objects / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    async with opened(server) as store:
        assert await store.names() == []
        await delete_leftovers(store)
    assert server.keys() == sorted(others)


async def test_a_long_list_has_several_pages(server: S3Server) -> None:
    folder = server.objects / FOLDER
    folder.mkdir(parents=True)
    names = [f"{number:05} +&é.snapshot" for number in range(1500)]
    for name in names:
        (folder / name).touch()
    async with opened(server) as store:
        assert sorted(await store.names()) == sorted(names)


@pytest.mark.parametrize("killed_at", range(9))
async def test_a_killed_provider_leaves_a_complete_backup_or_none(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    taken, requests = manifest(), 0
    real = S3Store.request

    async def killed(self: S3Store, *arguments: Any, **options: Any) -> Any:
        nonlocal requests
        requests += 1
        if requests > killed_at:
            raise KeyboardInterrupt
        return await real(self, *arguments, **options)

    async with opened(server) as store:
        with monkeypatch.context() as patched:
            patched.setattr(S3Store, "request", killed)
            if killed_at < 8:
                with pytest.raises(KeyboardInterrupt):
                    await write(store, taken)
            else:
                await write(store, taken)
    # The requests: the CAs, the start of an upload, its three parts, its end, a list of the files,
    # and the manifest.
    assert bool(server.uploads()) == (killed_at in range(2, 6))
    async with opened(server) as store:
        before = await read_backups(store)
        assert before.damaged == ()
        assert before.manifests == ((taken,) if killed_at == 8 else ())
        await delete_leftovers(store)
        assert server.uploads() == []
        assert server.keys() == (keys(taken) if killed_at == 8 else [])
        await write(store, taken)
        assert (await read_backups(store)).manifests == (taken,)
    check(server, taken, tmp_path / "opened")


@pytest.mark.parametrize("seed", range(4))
async def test_connections_that_break_within_a_part_lose_nothing(
    server: S3Server, faults: Faults, tmp_path: Path, seed: int
) -> None:
    choice = random.Random(seed)  # noqa: S311 - what failed has to fail again
    faults.cuts = [choice.randrange(2000, 2 * PART_BYTES) for _ in range(4)]
    taken = manifest()
    async with opened(faults.server) as store:
        await write(store, taken)
    assert faults.cuts == []
    check(server, taken, tmp_path / "opened")


async def test_the_store_repeats_requests_to_a_busy_server(
    server: S3Server, faults: Faults, tmp_path: Path
) -> None:
    taken = manifest()
    faults.busy = 3
    async with opened(faults.server) as store:
        await write(store, taken)
        assert faults.busy == 0
    check(server, taken, tmp_path / "opened")


async def test_a_server_that_stays_busy_is_reported(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "exponential_delay", lambda *_, **__: 0.0)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    faults.busy = 5
    async with opened(faults.server) as store:
        with pytest.raises(StoreError, match="answers GET with SlowDown"):
            await store.names()


async def test_a_failed_backup_leaves_no_upload(server: S3Server) -> None:
    async def broken() -> AsyncGenerator[bytes]:
        yield SNAPSHOT[: PART_BYTES + 2**21]
        raise ConnectionError

    async with opened(server) as store:
        writer = BackupWriter(store, manifest().name, KEY, "a")
        with pytest.raises(ConnectionError):
            await writer.snapshot(broken())
    assert server.uploads() == []
    assert server.keys() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bucket": "another"}, "has no bucket another"),
        ({"region": "eu-west-1"}, "another region"),
        ({"ca_bundle": None}, "not trusted"),
    ],
)
async def test_a_wrong_destination_is_reported(
    server: S3Server, changes: dict[str, Any], message: str
) -> None:
    async with opened(server, **changes) as store:
        with pytest.raises(StoreError, match=message):
            await store.names()


@pytest.mark.parametrize(
    ("credentials", "hours", "message"),
    [
        (S3Credentials("unknown", SECRET), 0, "answers GET with XAdminUserNotFound"),
        (S3Credentials(KEY_ID, "wrong"), 0, r"does not accept the credentials \(SignatureDoes"),
        (S3Credentials(KEY_ID, SECRET), 2, "the clocks of the provider and of .* differ"),
    ],
)
async def test_wrong_credentials_and_clocks_are_reported(
    server: S3Server, credentials: S3Credentials, hours: int, message: str
) -> None:
    def now() -> datetime:
        return datetime.now(UTC) - timedelta(hours=hours)

    bucket = Bucket(endpoint=server.endpoint, region="us-east-1", name=BUCKET, folder=FOLDER)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
        store = S3Store(session, bucket, credentials, now)
        with pytest.raises(StoreError, match=message) as error:
            await store.names()
    assert error.value.reason == "BackupDestinationNotUsable"
    assert credentials.secret not in str(error.value)


async def test_users_cannot_reach_local_addresses_through_a_pattern(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CAPELIN_ALLOWED_NETWORKS", raising=False)
    pattern = replace(read_endpoints(server.endpoint)[0], host="*")
    client = FakeClient()
    await client.create(Secret.of("credentials", "default", data=SECRET_DATA))
    destination = S3Destination(
        endpoint=server.endpoint, bucket=BUCKET, credentials=SecretName(name="credentials")
    )
    stores = Stores(None, [pattern])
    async with stores.open(client, BackupDestination(s3=destination), "default", "one") as store:
        with pytest.raises(StoreError, match="loopback and link-local addresses are not allowed"):
            await store.names()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"AWS_ACCESS_KEY_ID": b"a"}, "no usable entry AWS_SECRET_ACCESS_KEY"),
        ({**SECRET_DATA, "AWS_ACCESS_KEY_ID": b"a\r\nHost: b"}, "entry AWS_ACCESS_KEY_ID"),
    ],
)
async def test_unusable_credentials_are_reported(
    server: S3Server, data: dict[str, bytes], message: str
) -> None:
    client = FakeClient()
    await client.create(Secret.of("credentials", "default", data=data))
    destination = S3Destination(
        endpoint=server.endpoint, bucket=BUCKET, credentials=SecretName(name="credentials")
    )
    stores = Stores(None, read_endpoints(server.endpoint))
    with pytest.raises(Blocked, match=message):
        async with stores.open(client, BackupDestination(s3=destination), "default", "one"):
            pass


async def test_texts_of_an_s3_server_are_not_in_errors() -> None:
    async def answer(request: web.Request) -> web.Response:
        match request.path.rpartition("/")[2]:
            case "1":
                return web.Response(status=418, text="<Error><Code>a secret</Code></Error>")
            case "2":
                return web.Response(status=301, headers={"Location": "http://127.0.0.1/secret"})
            case "3":
                return web.Response(text='<!DOCTYPE a [<!ENTITY b "secret">]><a>&b;</a>')
            case "4":
                return web.Response(body=b"secret" * 2**19)
            case _:
                return web.Response(text="secret")

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    async with TestServer(app) as hostile, aiohttp.ClientSession() as session:
        for number in range(1, 6):
            bucket = Bucket(
                endpoint=str(hostile.make_url("/")).rstrip("/"),
                region="us-east-1",
                name=str(number),
                folder=FOLDER,
            )
            store = S3Store(session, bucket, S3Credentials("a", "b"))
            with pytest.raises(StoreError) as error:
                await store.names()
            assert "secret" not in str(error.value)


async def test_a_server_that_hangs_does_not_delay_the_end_of_a_backup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(s3, "_ABORT_SECONDS", 0.1)
    connected = asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await asyncio.sleep(1000)
        writer.close()

    listener = await asyncio.start_server(hang, "127.0.0.1", 0)
    endpoint = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    bucket = Bucket(endpoint=endpoint, region="us-east-1", name=BUCKET, folder=FOLDER)
    async with aiohttp.ClientSession() as session:
        store = S3Store(session, bucket, S3Credentials("a", "b"))
        writing = asyncio.create_task(write(store, manifest()))
        await connected.wait()
        writing.cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(writing, return_exceptions=True)
    listener.close()
