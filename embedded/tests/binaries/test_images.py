import asyncio
import gzip
import io
import json
import lzma
import re
import tarfile
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from capelin_embedded.binaries import Binaries, NotObtainableError
from capelin_embedded.binaries.catalog import COMPONENTS, Platform

if TYPE_CHECKING:
    from .conftest import FakeGo, RecordedProgress, Registry

    Making = Callable[..., Binaries]
    Serve = Callable[..., Awaitable[Registry]]

NAME, TAG = "kube-apiserver", "v1.36.3"
IMAGE = f"registry.k8s.io/{NAME}:{TAG}"
CREDENTIALS = "it requires credentials, but Capelin pulls only public images"
PROGRAM = {f"usr/local/bin/{NAME}": b"#!/bin/sh\n# the real one\n"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capelin_embedded.binaries.download.PAUSES", (0.0, 0.0))


def files_in(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


async def failure_of(made: Binaries, name: str = NAME) -> str:
    """Reason of a failed pull. Checks that the pull leaves nothing in the cache."""
    with pytest.raises(NotObtainableError) as failure:
        await made.path(name)
    assert all(file.startswith("locks/") for file in files_in(made.cache.root))
    (reason,) = [reason for way, reason in failure.value.attempts if way.startswith("image")]
    return reason


async def test_a_program_comes_from_its_image(
    binaries: "Making", registry: "Registry", progress: "RecordedProgress"
) -> None:
    image = registry.add_image(NAME, TAG, {"base": b""}, PROGRAM)
    made = binaries()
    file = await made.path(NAME)
    assert file.read_bytes() == PROGRAM[f"usr/local/bin/{NAME}"]
    (entry,) = made.cache.entries()
    assert entry.source == f"{IMAGE}@{image['digest']}"
    assert progress.events == [
        ("started", f"{NAME} {TAG}", f"image {IMAGE}"),
        ("finished", f"{NAME} {TAG}", f"image {IMAGE}"),
    ]
    done, total, unit = progress.amounts[-1]
    assert (done, unit) == (total, "bytes")
    assert files_in(made.cache.root / "partial") == files_in(made.cache.root / "work") == set()


async def test_only_the_last_layer_is_pulled(binaries: "Making", registry: "Registry") -> None:
    registry.add_image(NAME, TAG, {"base": b""}, PROGRAM)
    await binaries().path(NAME)
    assert len(registry.blob_requests()) == 1


async def test_one_pull_provides_all_programs_of_an_image(
    binaries: "Making", registry: "Registry", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capelin_embedded.binaries.catalog.Project.image_digests", no_pins)
    below = {"usr/local/bin/etcd": b"etcd", "usr/local/bin/etcdctl": b"etcdctl"}
    registry.add_image("etcd", "3.6.8-0", {"base": b""}, below, {"usr/local/bin/migrate": b""})
    fetched = await binaries().fetch(["etcd", "etcdctl"])
    assert [binary.path.read_bytes() for binary in fetched.values()] == [b"etcd", b"etcdctl"]
    assert len(registry.blob_requests()) == 2


@pytest.mark.parametrize(
    "name", [component.name for component in COMPONENTS.values() if component.image is not None]
)
async def test_every_program_with_an_image_comes_from_it(
    name: str, binaries: "Making", registry: "Registry", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capelin_embedded.binaries.catalog.Project.image_digests", no_pins)
    component = COMPONENTS[name]
    assert component.image is not None
    reference = component.image.reference_of(component.project.default_version)
    repository, _, tag = reference.partition("/")[2].rpartition(":")
    registry.add_image(repository, tag, {f"./{component.image.file}": name.encode()})
    assert (await binaries().path(name)).read_bytes() == name.encode()


async def test_builds_and_pulls_can_be_combined(
    binaries: "Making", registry: "Registry", go: "FakeGo"
) -> None:
    registry.add_image(NAME, TAG, PROGRAM)
    made = binaries(go=go)
    await made.fetch([NAME, "kubeadm"])
    (build,) = go.builds()
    assert build.endswith(" k8s.io/kubernetes/cmd/kubeadm")
    assert [entry.component for entry in made.cache.entries()] == [NAME, "kubeadm"]


async def test_an_image_for_one_platform_works_on_that_platform(
    binaries: "Making", registry: "Registry"
) -> None:
    here = Platform.current()
    config = {"os": here.system, "architecture": here.architecture}
    registry.add_manifest(NAME, plain_manifest(registry, config), TAG)
    assert (await binaries().path(NAME)).exists()


async def test_an_image_for_another_platform_fails(
    binaries: "Making", registry: "Registry"
) -> None:
    manifest = plain_manifest(registry, {"os": "linux", "architecture": "mips"})
    registry.add_manifest(NAME, manifest, TAG)
    reason = f"it has nothing for {Platform.current()}, only linux/mips"
    assert await failure_of(binaries()) == reason


async def test_a_forged_configuration_fails(binaries: "Making", registry: "Registry") -> None:
    here = Platform.current()
    manifest = plain_manifest(registry, {"os": here.system, "architecture": here.architecture})
    digest = manifest["config"]["digest"]
    registry.add_manifest(NAME, manifest, TAG)
    registry.documents[f"/v2/{NAME}/blobs/{digest}"] += b" "
    reason = f"its configuration does not have the digest {digest}"
    assert await failure_of(binaries()) == reason


async def test_an_index_without_our_platform_fails(
    binaries: "Making", registry: "Registry"
) -> None:
    registry.add_image(NAME, TAG, PROGRAM, platform=Platform("linux", "mips"))
    reason = f"it has nothing for {Platform.current()}, only linux/mips"
    assert await failure_of(binaries()) == reason


async def test_an_unknown_tag_fails(binaries: "Making") -> None:
    assert await failure_of(binaries()) == f"the registry has no {TAG} of it"


async def test_a_forged_layer_fails(binaries: "Making", registry: "Registry") -> None:
    registry.add_image(NAME, TAG, PROGRAM)
    layer = corrupt(registry, lambda content: content[:-1] + b"!")
    assert re.fullmatch(
        f"a download is damaged or forged: its SHA-256 is [0-9a-f]{{64}}, and should be {layer}",
        await failure_of(binaries()),
    )


async def test_a_truncated_layer_fails(binaries: "Making", registry: "Registry") -> None:
    registry.add_image(NAME, TAG, PROGRAM)
    corrupt(registry, lambda content: content[:20])
    reason = await failure_of(binaries())
    assert re.fullmatch(r"a download is damaged: it has only 20 of \d+ bytes", reason)


async def test_a_layer_larger_than_its_size_fails_early(
    binaries: "Making", registry: "Registry", progress: "RecordedProgress"
) -> None:
    registry.add_image(NAME, TAG, PROGRAM)
    corrupt(registry, lambda content: content + bytes(10**7))
    reason = await failure_of(binaries())
    assert re.fullmatch(r"a download is damaged: it has more than \d+ bytes", reason)
    assert progress.amounts[-1][0] < 10**6


async def test_a_forged_manifest_fails(binaries: "Making", registry: "Registry") -> None:
    registry.add_image(NAME, TAG, PROGRAM)
    digest = json.loads(registry.documents[f"/v2/{NAME}/manifests/{TAG}"])["manifests"][1]["digest"]
    registry.documents[f"/v2/{NAME}/manifests/{digest}"] += b" "
    reason = await failure_of(binaries())
    assert reason.startswith(f"the manifest {digest} was requested, and sha256:")


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        ("<html>", "its manifest is unreadable: Invalid JSON: expected value"),
        ('{"layers": [{"digest": "md5:1", "size": 1}]}', "its manifest is unreadable: layers.0"),
        ('{"layers": [], "config": null}', "its manifest lists no layers"),
        (" " * 5_000_000, f"/manifests/{TAG} is far larger than such a document should be"),
    ],
)
async def test_an_invalid_manifest_fails(
    manifest: str, reason: str, binaries: "Making", registry: "Registry"
) -> None:
    registry.documents[f"/v2/{NAME}/manifests/{TAG}"] = manifest.encode()
    assert (await failure_of(binaries())).startswith(reason)


async def test_an_image_without_the_program_fails(binaries: "Making", registry: "Registry") -> None:
    registry.add_image(NAME, TAG, {"usr/bin/other": b""}, {"base": b""})
    assert await failure_of(binaries()) == f"it has no /usr/local/bin/{NAME}"


async def test_a_link_in_an_image_fails(binaries: "Making", registry: "Registry") -> None:
    registry.add_image(NAME, TAG, {f"usr/local/bin/{NAME}": "../../other", "usr/other": b""})
    assert await failure_of(binaries()) == f"/usr/local/bin/{NAME} is not a plain file in it"


async def test_an_invalid_archive_fails(binaries: "Making", registry: "Registry") -> None:
    layer = registry.add(NAME, gzip.compress(b"no tar", mtime=0))
    image = registry.add_manifest(NAME, {"layers": [layer]})
    here = Platform.current()
    image["platform"] = {"os": here.system, "architecture": here.architecture}
    registry.add_manifest(NAME, {"manifests": [image]}, TAG)
    assert (await failure_of(binaries())).startswith("one of its layers cannot be unpacked (")


async def test_a_challenge_fetches_an_anonymous_token(
    binaries: "Making", registry: "Registry"
) -> None:
    registry.add_image(NAME, TAG, PROGRAM)
    registry.token = "let-me-in"
    registry.challenge = (
        f'Bearer realm="{registry.url}/token",service="r",scope="repository:{NAME}:pull"'
    )
    await binaries().path(NAME)
    paths = [path for path, _ in registry.requests]
    assert paths.count("/token") == 1
    assert paths[:3] == [f"/v2/{NAME}/manifests/{TAG}", "/token", f"/v2/{NAME}/manifests/{TAG}"]


async def test_an_expired_token_is_fetched_again(binaries: "Making", registry: "Registry") -> None:
    registry.add_image(NAME, TAG, PROGRAM)
    registry.token = "first"
    registry.challenge = f'Bearer realm="{registry.url}/token"'
    registry.renews_before_blobs = "second"
    await binaries().path(NAME)
    assert registry.blob_requests()[-1]["Authorization"] == "Bearer second"


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        ('Basic realm="private"', CREDENTIALS),
        (
            'Bearer realm="file:///etc"',
            CREDENTIALS,
        ),
        ('Bearer realm="{url}/none"', "it grants no anonymous token (status 401)"),
        ('Bearer realm="{url}/token"', "it grants no anonymous token (its response has none)"),
    ],
)
async def test_a_registry_without_anonymous_access_fails(
    challenge: str, reason: str, binaries: "Making", registry: "Registry"
) -> None:
    registry.challenge = challenge.format(url=registry.url)
    assert await failure_of(binaries()) == reason


async def test_a_rejected_token_is_an_error(binaries: "Making", registry: "Registry") -> None:
    registry.token = "old"
    registry.challenge = f'Bearer realm="{registry.url}/token"'
    registry.rejects = True
    reason = f"it denies access to /manifests/{TAG} (status 401)"
    assert await failure_of(binaries()) == reason


async def test_a_redirect_does_not_receive_the_token(
    binaries: "Making", registry: "Registry", serve: "Serve"
) -> None:
    registry.add_image(NAME, TAG, PROGRAM)
    storage = await serve(type(registry)(documents=registry.documents))
    registry.storage = storage.url
    registry.token = "secret"
    registry.challenge = f'Bearer realm="{registry.url}/token"'
    await binaries().path(NAME)
    assert registry.blob_requests()[0]["Authorization"] == "Bearer secret"
    assert ["Authorization" in headers for headers in storage.blob_requests()] == [False]


async def test_an_interrupted_download_continues(binaries: "Making", registry: "Registry") -> None:
    registry.add_image(NAME, TAG, PROGRAM)
    registry.cuts = [30, 50]
    assert (await binaries().path(NAME)).exists()
    ranges = [headers.get("Range") for headers in registry.blob_requests()]
    assert ranges == [None, "bytes=30-", "bytes=50-"]


async def test_a_download_without_ranges_starts_again(
    binaries: "Making", registry: "Registry"
) -> None:
    registry.add_image(NAME, TAG, PROGRAM)
    registry.cuts = [30]
    registry.supports_ranges = False
    assert (await binaries().path(NAME)).exists()
    assert len(registry.blob_requests()) == 2


async def test_a_later_run_continues_an_interrupted_download(
    binaries: "Making", registry: "Registry", progress: "RecordedProgress"
) -> None:
    registry.add_image(NAME, TAG, PROGRAM)
    registry.stalls = 30
    made = binaries()
    task = asyncio.create_task(made.path(NAME))
    await progress.moving.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert progress.events[-1] == ("failed", f"{NAME} {TAG}", f"image {IMAGE}", "stopped")
    assert files_in(made.cache.root / "work") == set()
    registry.stalls = None
    await binaries().path(NAME)
    assert registry.blob_requests()[-1]["Range"] == "bytes=30-"
    assert files_in(made.cache.root / "partial") == set()


async def test_a_download_stops_after_three_attempts(
    binaries: "Making", registry: "Registry"
) -> None:
    registry.add_image(NAME, TAG, PROGRAM)
    registry.cuts = [10] * 9
    with pytest.raises(NotObtainableError) as failure:
        await binaries().path(NAME)
    reason = "127.0.0.1 broke off in the middle of a response"
    assert (f"image {IMAGE}", reason) in failure.value.attempts
    assert len(registry.blob_requests()) == 3


async def test_a_silent_registry_is_tried_once_per_fetch(
    binaries: "Making", registry: "Registry", progress: "RecordedProgress", go: "FakeGo"
) -> None:
    registry.url = "http://127.0.0.1:1"
    await binaries(go=go).fetch(["kube-apiserver", "kube-scheduler", "etcd"])
    # The order of the three programs is undefined.
    reasons = [event[3] for event in progress.events if event[0] == "failed"]
    assert reasons == ["127.0.0.1 does not answer (connection refused)"]


async def test_the_error_contains_the_status_of_a_failing_registry(
    binaries: "Making", registry: "Registry"
) -> None:
    registry.broken = True
    reason = f"it answers /manifests/{TAG} with 503 Service Unavailable"
    assert await failure_of(binaries()) == reason


async def test_the_first_digest_of_an_image_is_pinned(
    binaries: "Making", registry: "Registry"
) -> None:
    registry.add_image(NAME, TAG, PROGRAM)
    made = binaries()
    first = await made.path(NAME)
    content = first.read_bytes()
    made.cache.prune()
    registry.add_image(NAME, TAG, {f"usr/local/bin/{NAME}": b"another"})
    assert (await made.path(NAME)).read_bytes() == content


async def test_a_replaced_image_fails_with_a_hint(binaries: "Making", registry: "Registry") -> None:
    digest = registry.add_image(NAME, TAG, PROGRAM)["digest"]
    made = binaries()
    await made.path(NAME)
    made.cache.prune()
    registry.documents.clear()
    registry.add_image(NAME, TAG, {f"usr/local/bin/{NAME}": b"another"})
    with pytest.raises(NotObtainableError) as failure:
        await made.path(NAME)
    record = made.cache.digest_file(IMAGE)
    reason = (
        f"the registry has no {digest} of it. The digest was recorded at the first pull of the"
        f" image, so the image has been replaced. To trust the new one, remove {record}"
    )
    assert (f"image {IMAGE}", reason) in failure.value.attempts
    record.unlink()
    assert (await made.path(NAME)).read_bytes() == b"another"


async def test_a_failed_pull_records_no_digest(binaries: "Making", registry: "Registry") -> None:
    registry.add_image(NAME, TAG, {"base": b""})
    await failure_of(made := binaries())
    registry.documents.clear()
    registry.add_image(NAME, TAG, PROGRAM)
    assert (await made.path(NAME)).exists()


async def test_a_pinned_digest_takes_precedence_over_the_tag(
    binaries: "Making", registry: "Registry", monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = registry.add_image(NAME, TAG, PROGRAM)["digest"]
    registry.add_image(NAME, TAG, {f"usr/local/bin/{NAME}": b"another"})

    def pins(_project: object, _version: str) -> dict[str, str]:
        return {IMAGE: pinned}

    monkeypatch.setattr("capelin_embedded.binaries.catalog.Project.image_digests", pins)
    assert (await binaries().path(NAME)).read_bytes() == PROGRAM[f"usr/local/bin/{NAME}"]


async def test_etcd_is_pinned(binaries: "Making", registry: "Registry") -> None:
    registry.add_image("etcd", "3.6.8-0", {"usr/local/bin/etcd": b"forged"})
    assert "the registry has no sha256:39718941" in await failure_of(binaries(), "etcd")


def no_pins(_project: object, _version: str) -> dict[str, str]:
    return {}


def corrupt(registry: "Registry", change: Callable[[bytes], bytes]) -> str:
    """Change the only blob under its old digest. Returns that digest."""
    (path,) = [path for path in registry.documents if "/blobs/" in path]
    registry.documents[path] = change(registry.documents[path])
    return path.rpartition(":")[2]


def plain_manifest(registry: "Registry", config: dict[str, str]) -> dict[str, Any]:
    """An image without a list of platforms. Its configuration contains its platform."""
    registry.add_image(NAME, TAG, PROGRAM)
    (image,) = [
        json.loads(content) for content in registry.documents.values() if b'"layers"' in content
    ]
    return {**image, "config": registry.add(NAME, json.dumps(config).encode())}


def offer_layer(registry: "Registry", content: bytes) -> None:
    image = registry.add_manifest(NAME, {"layers": [registry.add(NAME, content)]})
    here = Platform.current()
    image["platform"] = {"os": here.system, "architecture": here.architecture}
    registry.add_manifest(NAME, {"manifests": [image]}, TAG)


async def test_a_broken_xz_layer_fails(binaries: "Making", registry: "Registry") -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("usr/first", "usr/second"):
            member = tarfile.TarInfo(name)
            noise = b"".join(sha256(f"{name}{n}".encode()).digest() for n in range(12_500))
            member.size = len(noise)
            archive.addfile(member, io.BytesIO(noise))
    content = bytearray(lzma.compress(packed.getvalue()))
    content[400_000:400_100] = b"y" * 100
    offer_layer(registry, bytes(content))
    assert (await failure_of(binaries())).startswith("one of its layers cannot be unpacked (")


async def test_a_decompression_bomb_in_a_layer_fails(
    binaries: "Making", registry: "Registry", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "capelin_embedded.binaries.images._MAX_UNPACKED_BYTES", 10_000, raising=False
    )
    registry.add_image(NAME, TAG, {"filler": b"\0" * 20_000, **PROGRAM})
    assert await failure_of(binaries()) == "one of its layers unpacks to more than 10000 bytes"


async def test_a_large_layer_is_not_downloaded(binaries: "Making", registry: "Registry") -> None:
    layer = {**registry.add(NAME, b"layer"), "size": 2**40}
    image = registry.add_manifest(NAME, {"layers": [layer]})
    here = Platform.current()
    image["platform"] = {"os": here.system, "architecture": here.architecture}
    registry.add_manifest(NAME, {"manifests": [image]}, TAG)
    assert (await failure_of(binaries())).startswith("one of its layers has 1099511627776 bytes")
    assert registry.blob_requests() == []


async def test_an_invalid_configuration_fails(binaries: "Making", registry: "Registry") -> None:
    config, layer = registry.add(NAME, b"[]"), registry.add(NAME, b"layer")
    registry.add_manifest(NAME, {"config": config, "layers": [layer]}, TAG)
    assert (await failure_of(binaries())).startswith("its configuration is unreadable: ")
