"""Manifests from OCI artifacts: their content, and the servers that they come from."""

import gzip
import io
import tarfile
from collections.abc import AsyncGenerator
from typing import Any

import orjson
import pytest
from capelin.api.core import ConfigMap, Secret
from capelin.client import read_endpoints
from capelin_lifecycle.actions import RUNNERS, registry
from capelin_lifecycle.actions.archives import MAX_UNPACKED, texts_of
from capelin_lifecycle.actions.artifacts import ARTIFACTS
from capelin_lifecycle.actions.registry import MAX_BYTES, login_of

from .factories import World, known
from .registry_server import CHART, FLUX, LOGIN, Registry, archive_of, digest_of
from .registry_server import registry as serving

ADDON = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: addon, namespace: kube-system}\n"


@pytest.fixture
async def server() -> AsyncGenerator[Registry]:
    """A registry that the administrator allows."""
    async with serving() as server:
        allow(server.address)
        yield server
        ARTIFACTS.configure((), None)


def allow(*addresses: str) -> None:
    ARTIFACTS.configure(read_endpoints(",".join(addresses)), None)


async def message(reference: str, *, world: World | None = None, **oci: Any) -> str:
    """The outcome of the first step of a policy with an artifact."""
    sources = [{"oci": {"reference": reference, **oci}}]
    run = (world or World()).run(known("addon", action={"apply": {"sources": sources}}))
    outcome = await RUNNERS["apply"].reconcile(run)
    return outcome.message if outcome.phase == "Waiting" else outcome.phase


async def test_manifests_of_an_archive_are_applied(server: Registry) -> None:
    layer = archive_of({"./addon.yaml": ADDON, "README.md": b"{{"})
    world = World()
    sources = [{"oci": {"reference": server.push((FLUX, layer))}}]
    run = world.run(known("addon", action={"apply": {"sources": sources}}))
    recorded = await RUNNERS["apply"].reconcile(run)
    outcome = await RUNNERS["apply"].reconcile(world.again(run, recorded))
    assert (outcome.phase, outcome.message) == ("Done", "1 objects are applied and ready")
    assert await world.workload.find(ConfigMap, "addon", "kube-system") is not None
    # The second step needed no registry.
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("media_type", "title"),
    [("application/yaml", ""), ("application/vnd.oci.image.layer.v1.tar", "addon.yaml")],
)
async def test_single_files_are_manifests(server: Registry, media_type: str, title: str) -> None:
    annotations = {"org.opencontainers.image.title": title} if title else {}
    assert await message(server.push((media_type, ADDON), **annotations)) == "Running"


async def test_a_folder_that_oras_packed_is_unpacked(server: Registry) -> None:
    annotations = {"org.opencontainers.image.title": "all", "io.deis.oras.content.unpack": "true"}
    layer = ("application/vnd.oci.image.layer.v1.tar+gzip", archive_of({"all/addon.yml": ADDON}))
    assert await message(server.push(layer, **annotations)) == "Running"


async def test_a_tag_before_the_digest_has_no_meaning(server: Registry) -> None:
    name, _, digest = server.push((FLUX, archive_of({"a.yaml": ADDON}))).partition("@")
    assert await message(f"{name}:v1.2@{digest}") == "Running"


# Which servers


async def test_no_registry_is_allowed_by_default(server: Registry) -> None:
    reference = server.push((FLUX, archive_of({"a.yaml": ADDON})))
    for addresses in ((), ("https://ghcr.io",), (server.address.replace("http", "https"),)):
        allow(*addresses)
        text = await message(reference)
        if not addresses or "ghcr.io" in addresses[0]:
            assert text.endswith(f"--registries of the extension does not allow {server.host}")
        else:
            # The administrator wants TLS there.
            assert "cannot be reached: no TLS with it" in text
    assert server.requests == []


async def test_a_pattern_allows_no_local_addresses(
    server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CAPELIN_ALLOWED_NETWORKS", raising=False)
    port = server.host.partition(":")[2]
    allow(f"https://*:{port}")
    text = await message(server.push((FLUX, b"x")))
    assert text.endswith("cannot be reached: loopback and link-local addresses are not allowed")
    assert server.requests == []


async def test_blobs_come_from_another_server_without_credentials(server: Registry) -> None:
    server.login = LOGIN
    reference = server.push((FLUX, archive_of({"a.yaml": ADDON})))
    world = World()
    entry = {"auths": {server.host: {"auth": LOGIN.removeprefix("Basic ")}}}
    world.client.add(Secret.of("robot", "team", data={".dockerconfigjson": orjson.dumps(entry)}))
    async with serving() as other:
        other.contents = server.contents
        server.redirects = other.address
        text = await message(reference, world=world, pullSecret="robot")
        assert text.endswith(f"--registries of the extension does not allow {other.address}")
        allow(server.address, other.address)
        assert await message(reference, world=world, pullSecret="robot") == "Running"
        assert [authorization for _, authorization in other.requests] == [None]


async def test_tokens_come_from_servers_that_the_administrator_allows(server: Registry) -> None:
    server.login = LOGIN
    reference = server.push((FLUX, archive_of({"a.yaml": ADDON})))
    assert "grants no token (401)" in await message(reference)
    async with serving() as other:
        other.login, server.realm = LOGIN, other.address
        assert f"does not allow {other.address}" in await message(reference)
        assert other.requests == []


async def test_a_redirect_that_never_ends_is_an_error(server: Registry) -> None:
    server.redirects = server.address
    text = await message(server.push((FLUX, archive_of({"a.yaml": ADDON}))))
    assert text.endswith("redirects too often")


@pytest.mark.parametrize("config", [b"{", b"[]", b"{}", b'{"auths": {"a": {"auth": "?"}}}'])
def test_an_unreadable_pull_secret_is_an_error(config: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        login_of(config, "a")


def test_logins_of_pull_secrets() -> None:
    entry = {"auths": {"https://a": {"username": "robot", "password": "secret"}}}
    assert login_of(orjson.dumps(entry), "a") == LOGIN.removeprefix("Basic ")
    assert login_of(orjson.dumps(entry), "b") is None


async def test_a_missing_pull_secret_is_named(server: Registry) -> None:
    text = await message(server.push((FLUX, b"x")), pullSecret="robot")
    assert text == "there is no Secret team/robot"


# The content of an artifact


async def test_other_content_than_that_of_the_digest_is_rejected(server: Registry) -> None:
    layer = archive_of({"a.yaml": ADDON})
    reference = server.push((FLUX, layer))
    server.contents[digest_of(layer)] = layer[:-1] + b"!"
    assert "sent other content than that of sha256:" in await message(reference)
    digest = reference.partition("@")[2]
    server.contents[digest] = b"{}"
    assert "sent other content than that of sha256:" in await message(reference)
    del server.contents[digest]
    assert (await message(reference)).endswith("responds with HTTP status 404")


async def test_a_larger_blob_than_the_manifest_has_is_rejected(server: Registry) -> None:
    layer = archive_of({"a.yaml": ADDON})
    reference = server.push((FLUX, layer))
    server.contents[digest_of(layer)] = layer + b"!"
    assert f"sends more than {len(layer)} bytes" in await message(reference)


def layers(count: int, size: int) -> dict[str, Any]:
    layer = {"mediaType": FLUX, "digest": f"sha256:{'0' * 64}", "size": size}
    return {"layers": [layer] * count}


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        ({"manifests": []}, "not of an index"),
        (layers(1, MAX_BYTES + 1), "layers of at most 2 MiB"),
        (layers(3, MAX_BYTES // 2), "its layers have more than 2 MiB"),
        (layers(33, 1), "not that of a manifest"),
        ({"layers": [{"mediaType": FLUX, "digest": "md5:0", "size": 1}]}, "not that of a manifest"),
    ],
)
async def test_a_manifest_that_is_rejected(
    server: Registry, manifest: dict[str, Any], problem: str
) -> None:
    assert problem in await message(server.push_manifest(manifest))


def sparse_archive() -> bytes:
    """An archive with a file of a GiB that it does not contain."""
    member = tarfile.TarInfo("a.yaml")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 512
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[386:398], header[398:410] = b"%011o\0" % 0, b"%011o\0" % 512
    header[483:495] = b"%011o\0" % 2**30
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return gzip.compress(bytes(header) + b"a" * 512 + bytes(1024))


def deep_archive() -> bytes:
    """An archive with 3,000 headers before its file. tarfile reads each in a call of its own."""
    member = tarfile.TarInfo("x")
    member.type = tarfile.XHDTYPE
    return gzip.compress(member.tobuf(tarfile.USTAR_FORMAT) * 3000)


@pytest.mark.parametrize(
    ("layer", "problem"),
    [
        ((FLUX, b"no archive"), "an archive in it cannot be unpacked"),
        ((FLUX, gzip.compress(bytes(MAX_UNPACKED + 1))), "unpack to more than 8 MiB"),
        ((FLUX, archive_of({"a.yaml": ADDON})[:-20]), "one is cut off"),
        ((FLUX, sparse_archive()), "too large ones"),
        ((FLUX, deep_archive()), "an archive in it cannot be unpacked"),
        ((FLUX, archive_of({f"{number}.yaml": b"" for number in range(257)})), "256 files"),
        ((FLUX, archive_of({f"{number}.md": b"" for number in range(1025)})), "too many files"),
        ((FLUX, archive_of({"a.yaml": b" " * (2**20 + 1)})), "a.yaml has more than 1 MiB"),
        ((FLUX, archive_of({"a.yaml": b"\xff"})), "no valid manifests: it is not text"),
        ((FLUX, archive_of({"a.yaml": b"a: &a 1\n"})), "no valid manifests: it is not YAML"),
        (("application/zip", b"x"), "its layer 0 has the unknown type application/zip"),
        ((CHART, b"x"), "it is a Helm chart: set chart"),
    ],
)
async def test_a_layer_that_is_rejected(
    server: Registry, layer: tuple[str, bytes], problem: str
) -> None:
    assert problem in await message(server.push(layer))


def test_all_archives_of_an_artifact_share_a_limit() -> None:
    blob = registry.Descriptor(media_type=FLUX, digest=f"sha256:{'0' * 64}", size=1)
    files = [{f"{layer}-{file}.yaml": b" " * 2**20 for file in range(5)} for layer in range(2)]
    parts = [registry.Layer(blob, archive_of(content)) for content in files]
    assert len(texts_of(parts[:1])) == 5
    with pytest.raises(registry.ArtifactError, match="unpack to more than 8 MiB"):
        texts_of(parts)


def test_links_are_not_followed() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("a.yaml")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    blob = registry.Descriptor(media_type=FLUX, digest=f"sha256:{'0' * 64}", size=1)
    layer = registry.Layer(blob, gzip.compress(packed.getvalue()))
    assert texts_of([layer]) == {}
