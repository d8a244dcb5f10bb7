"""Where users may store backups, and folders as stores."""

import asyncio
import os
import subprocess
import sys
from ipaddress import ip_network
from pathlib import Path
from threading import Event

import pytest
from capelin.client import Destinations, read_endpoints
from capelin.provider import Blocked
from capelin.testing.fake_client import FakeClient
from capelin_control_plane.api import BackupDestination, S3Destination, SecretName
from capelin_control_plane.backup.destinations import Stores, destinations_of
from capelin_control_plane.backup.stores import FolderStore, Workers

ALLOWED = "http://10.0.0.5:9000,https://s3.example.com,https://*.amazonaws.com"


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://s3.example.com",
        "https://s3.example.com:8443",
        "https://other.example.com",
        "https://amazonaws.com",
        "https://amazonaws.com.example.org",
        "http://s3.amazonaws.com",
        "https://10.0.0.5:9000",
        "https://user@s3.example.com",
        "https://s3.example.com/path",
        "https://[::1",
    ],
)
def test_an_endpoint_that_the_administrator_did_not_name_does_not_work(endpoint: str) -> None:
    with pytest.raises(Blocked, match="--backup-endpoints"):
        destinations_of(endpoint, read_endpoints(ALLOWED))


def test_names_that_users_choose_do_not_lead_to_local_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CAPELIN_ALLOWED_NETWORKS", raising=False)
    allowed = read_endpoints(ALLOWED)
    assert destinations_of("http://10.0.0.5:9000", allowed) is None
    assert destinations_of("https://s3.example.com", allowed) is None
    assert destinations_of("https://s3.eu-west-1.amazonaws.com", allowed) == Destinations()
    monkeypatch.setenv("CAPELIN_ALLOWED_NETWORKS", "127.0.0.0/8")
    wider = Destinations((ip_network("127.0.0.0/8"),))
    assert destinations_of("https://127.0.0.1", read_endpoints("https://*")) == wider


@pytest.mark.parametrize(
    "text", ["s3.example.com", "https://a/b", "ftp://a", "http://*", "https://*a.com", "https://a*"]
)
def test_an_unreadable_option_fails(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an endpoint|allows too much"):
        read_endpoints(text)


S3 = S3Destination(
    endpoint="https://s3.example.com", bucket="one", credentials=SecretName(name="credentials")
)


@pytest.mark.parametrize(
    ("destination", "reason"),
    [
        (BackupDestination(folder="etcd"), "BackupsNotAllowed"),
        (BackupDestination(), "InvalidConfiguration"),
        (
            BackupDestination(s3=S3.model_copy(update={"endpoint": "https://other"})),
            "BackupsNotAllowed",
        ),
        (BackupDestination(s3=S3), "BackupDestinationNotUsable"),
    ],
)
async def test_a_destination_that_is_not_usable_is_reported(
    destination: BackupDestination, reason: str
) -> None:
    stores = Stores(None, read_endpoints(ALLOWED))
    with pytest.raises(Blocked) as blocked:
        async with stores.open(FakeClient(), destination, "default", "one"):
            pass
    assert blocked.value.reason == reason


async def test_two_providers_that_write_one_file_do_not_mix_it(tmp_path: Path) -> None:
    workers = Workers(1)
    store = FolderStore(tmp_path, Path("one"), workers)
    first, second = await store.create("changes-1"), await store.create("changes-1")
    await first.write(b"aaaa")
    await second.write(b"bb")
    await first.write(b"aaaa")
    await second.finish()
    assert await store.read("changes-1") == b"bb"
    await first.finish()
    assert await store.read("changes-1") == b"aaaaaaaa"
    assert await store.names() == ["changes-1"]
    workers.close()


async def test_remains_of_uploads_are_deleted_but_not_a_segment_that_grows(tmp_path: Path) -> None:
    workers = Workers(1)
    store = FolderStore(tmp_path, Path("one"), workers)
    for name in ("20261126T100000Z.snapshot", "changes-1", "changes-2"):
        await (await store.create(name)).abort()
    (old,) = (tmp_path / "one").glob("changes-1.*")
    os.utime(old, (0, 0))
    await store.abort_uploads()
    assert [name.partition(".")[0] for name in await store.names()] == ["changes-2"]
    workers.close()


async def test_a_folder_that_hangs_delays_no_other_work(tmp_path: Path) -> None:
    workers, end = Workers(1), Event()
    store = FolderStore(tmp_path, Path("one"), workers)
    upload = await store.create("1.snapshot")
    workers.submit(end.wait)
    writing = asyncio.create_task(upload.write(b"content"))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await upload.abort()
    end.set()
    workers.close()


def test_a_folder_that_hangs_does_not_keep_the_manager_from_ending() -> None:
    program = """
import asyncio, time
from capelin_control_plane.backup.stores import Workers

async def main():
    asyncio.create_task(Workers(2).run(time.sleep, 1000))
    await asyncio.sleep(0.1)

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], timeout=120, check=True)
