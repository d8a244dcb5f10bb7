"""Layouts, archives and bundles, and pushing them into a registry."""

import base64
import gzip
import hashlib
import io
import json
import socket
import tarfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from capelin.errors import InvalidInputError, UserError
from capelin_release.bundle import add_chart, add_components, mirror
from capelin_release.checksums import write_checksums
from capelin_release.files import File, Layer
from capelin_release.oci import (
    DamagedArchiveError,
    Image,
    Store,
    docker_manifest,
    unpack_archive,
)
from capelin_release.registry import Place, RegistryError, find_credentials

from tools.release.tests.packages import PACKAGE, a_file


def a_layer(*paths: str) -> Layer:
    layer = Layer("application", 1_700_000_000)
    for path in paths:
        layer.add(path, a_file(path.encode()))
    return layer


def an_image(store: Store, layer: Layer, architecture: str = "amd64") -> Image:
    return store.add_image(
        [store.add_layer(layer)],
        architecture=architecture,
        config={"Labels": {"org.opencontainers.image.title": "fish"}},
        created=1_700_000_000,
    )


def test_a_layer_depends_on_its_files_alone(tmp_path: Path) -> None:
    one = Store(tmp_path / "one").add_layer(a_layer("b/c", "a"))
    other = Store(tmp_path / "other").add_layer(a_layer("a", "b/c"))
    assert one == other

    data = Store(tmp_path / "one").path(one.descriptor.digest).read_bytes()
    plain = gzip.decompress(data)
    assert one.diff_id == f"sha256:{hashlib.sha256(plain).hexdigest()}"
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        members = archive.getmembers()
    assert [(m.name, m.uid, m.mtime) for m in members] == [
        ("a", 0, 1_700_000_000),
        ("b", 0, 1_700_000_000),
        ("b/c", 0, 1_700_000_000),
    ]


def test_modes_owners_and_links_are_kept(tmp_path: Path) -> None:
    layer = Layer("application", 0)
    layer.add("bin", File(PACKAGE, 0o777, "link", target="usr/bin"))
    layer.add("home/nonroot", File(PACKAGE, 0o700, "folder", owner=65532))
    store = Store(tmp_path)
    stored = store.add_layer(layer)
    with tarfile.open(store.path(stored.descriptor.digest)) as archive:
        link, parent, home = archive.getmembers()
    assert (link.issym(), link.linkname) == (True, "usr/bin")
    assert (parent.isdir(), parent.uid) == (True, 0)
    assert (home.mode, home.uid, home.gid) == (0o700, 65532, 65532)


def test_an_archive_is_read_by_docker_and_as_a_layout(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    image = an_image(store, a_layer("a"))
    file = tmp_path / "fish.tar"
    docker = docker_manifest(image, "example.com/fish:v1")
    store.write_archive(file, [image.manifest.named("v1")], 0, docker)

    with tarfile.open(file) as archive:
        names = archive.getnames()
        stream = archive.extractfile("manifest.json")
        (entry,) = json.loads(stream.read() if stream else b"")
    assert entry["RepoTags"] == ["example.com/fish:v1"]
    assert {entry["Config"], *entry["Layers"]} < set(names)
    (read,) = unpack_archive(file, tmp_path / "unpacked")
    assert read.digest == image.manifest.digest


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    image = an_image(store, a_layer("a"))
    store.path(image.config.digest).write_bytes(b"{}")
    store.write_archive(tmp_path / "fish.tar", [image.manifest], 0)
    with pytest.raises(DamagedArchiveError, match="is damaged"):
        unpack_archive(tmp_path / "fish.tar", tmp_path / "unpacked")


def test_checksums_are_of_every_file(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.tar").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    lines = write_checksums(tmp_path).read_text().splitlines()
    assert lines == [
        f"{hashlib.sha256(b'b').hexdigest()}  b",
        f"{hashlib.sha256(b'a').hexdigest()}  images/a.tar",
    ]
    assert write_checksums(tmp_path).read_text().splitlines() == lines, "not of itself"


@dataclass
class FakeRegistry:
    """A registry that keeps what is pushed, and refuses manifests whose blobs it lacks."""

    token: str = ""
    host: str = ""
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    manifests: dict[str, bytes] = field(default_factory=dict[str, bytes])
    uploads: int = 0

    async def serve(self, request: web.Request) -> web.Response:
        path = request.match_info["path"]
        if path == "token":
            login = request.headers.get("Authorization")
            right = "Basic " + base64.b64encode(b"me:secret").decode()
            return web.json_response({"token": self.token}, status=200 if login == right else 401)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            challenge = f'Bearer realm="http://{self.host}/v2/token",service="fake"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        return await self._answer(request, path)

    async def _answer(self, request: web.Request, path: str) -> web.Response:
        body = await request.read()
        match request.method:
            case "HEAD":
                return web.Response(status=200 if path.rpartition("/")[2] in self.blobs else 404)
            case "POST":
                self.uploads += 1
                return web.Response(status=202, headers={"Location": f"/v2/{path}upload?state=1"})
            case _ if "/manifests/" in path:
                return self._put_manifest(path, body)
            case _:
                self.blobs[request.query["digest"]] = body
                return web.Response(status=201)

    def _put_manifest(self, path: str, body: bytes) -> web.Response:
        manifest = json.loads(body)
        blobs = [*manifest.get("layers", []), *filter(None, [manifest.get("config")])]
        below = [blob["digest"] for blob in blobs]
        if any(digest not in self.blobs for digest in below):
            error = {"errors": [{"message": "blob unknown"}]}
            return web.json_response(error, status=400)
        self.manifests[path] = body
        return web.Response(status=201)


@pytest.fixture
async def registry() -> AsyncGenerator[FakeRegistry]:
    fake = FakeRegistry()
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/v2/{path:.*}", fake.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    fake.host = f"{host}:{port}"
    yield fake
    await runner.cleanup()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    store = Store(tmp_path / "store")
    images = [an_image(store, a_layer("a"), name) for name in ("amd64", "arm64")]
    index = store.add_index([image.manifest for image in images], {})
    chart = tmp_path / "fish-1.0.0.tgz"
    with tarfile.open(chart, "w:gz") as archive:
        text = b"name: fish\nversion: 1.0.0+more\n"
        info = tarfile.TarInfo("fish/Chart.yaml")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    components = tmp_path / "infrastructure-components.yaml"
    components.write_text("kind: List\n")
    entries = [
        index.named("fish:v1.0.0"),
        add_chart(store, chart, 0),
        add_components(store, "infrastructure-fish", "v1.0.0", [components], 0),
    ]
    store.write_archive(tmp_path / "bundle.tar", entries, 0)
    return tmp_path / "bundle.tar"


async def test_all_of_a_bundle_is_pushed(registry: FakeRegistry, bundle: Path) -> None:
    pushed: list[str] = []
    await mirror(bundle, f"{registry.host}/lab", pushed.append)

    assert pushed == [
        f"{registry.host}/lab/fish:v1.0.0",
        f"{registry.host}/lab/charts/fish:1.0.0_more",
        f"{registry.host}/lab/components/infrastructure-fish:v1.0.0",
    ]
    index = json.loads(registry.manifests["lab/fish/manifests/v1.0.0"])
    assert {m["platform"]["architecture"] for m in index["manifests"]} == {"amd64", "arm64"}
    for manifest in index["manifests"]:
        assert f"lab/fish/manifests/{manifest['digest']}" in registry.manifests
    chart = json.loads(registry.manifests["lab/charts/fish/manifests/1.0.0_more"])
    assert json.loads(registry.blobs[chart["config"]["digest"]])["name"] == "fish"

    uploads = registry.uploads
    await mirror(bundle, f"{registry.host}/lab", pushed.append)
    assert registry.uploads == uploads, "blobs that are there are not sent again"


async def test_the_credentials_of_docker_login_are_used(
    registry: FakeRegistry, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.token = "granted"
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with pytest.raises(RegistryError, match=r"gives no access to lab/fish.*Log in"):
        await mirror(bundle, f"{registry.host}/lab", print)

    (tmp_path / "docker").mkdir()
    auth = base64.b64encode(b"me:secret").decode()
    config = tmp_path / "docker" / "config.json"
    config.write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
    await mirror(bundle, f"{registry.host}/lab", print)
    assert "lab/fish/manifests/v1.0.0" in registry.manifests


async def test_a_password_is_never_shown(tmp_path: Path) -> None:
    auth = base64.b64encode(b"me:secret").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"a.b": {"auth": auth}}}))
    login = await find_credentials("a.b", {"DOCKER_CONFIG": str(tmp_path)})
    assert login is not None
    assert login.username == "me"
    assert "secret" not in repr(login)


async def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar"
    file.write_bytes(b"no archive")
    with pytest.raises(InvalidInputError, match="is no bundle"):
        await mirror(file, "localhost:5000", print)
    with pytest.raises(InvalidInputError, match="is no place in a registry"):
        await mirror(file, "https://example.com/x", print)


async def test_a_registry_that_is_not_there_is_named(bundle: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RegistryError, match=f"{host} does not answer"):
            await mirror(bundle, host, print)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:5000", "http://127.0.0.1:5000/v2/"),
        ("localhost/x", "http://localhost/v2/"),
        ("[::1]:5000/x", "http://[::1]:5000/v2/"),
        ("registry.example.com/lab", "https://registry.example.com/v2/"),
        ("oci://10.0.0.1:443/lab/", "https://10.0.0.1:443/v2/"),
    ],
)
def test_only_loopback_needs_no_certificate(text: str, url: str) -> None:
    assert Place.parse(text).url == url


@pytest.mark.parametrize(
    "digest", ["sha256:/etc/shadow", "sha256:../../secret", "sha512:" + "a" * 64, "a" * 64, ""]
)
def test_a_bundle_names_no_files_of_this_machine(tmp_path: Path, digest: str) -> None:
    with pytest.raises(UserError, match="is not a digest"):
        Store(tmp_path).path(digest)
