"""`capelin mirror`, with the real crane and its registry."""

import base64
import hashlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from capelin.errors import InvalidInputError
from capelin_cli.binaries import CRANE
from capelin_cli.mirror import DamagedBundleError, RegistryError, mirror
from capelin_embedded.binaries import Binaries
from capelin_release.build import add_chart, add_components
from capelin_release.files import Layer
from capelin_release.oci import MANIFEST, Store, named

from tools.release.tests.packages import a_file

pytestmark = pytest.mark.needs_programs(CRANE)


@pytest.fixture
async def crane() -> Path:
    return await Binaries().path(CRANE)


@pytest.fixture
def registry(crane: Path) -> Generator[str]:
    """The address of an empty registry."""
    command = [crane, "registry", "serve", "--address=127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        port = re.search(r"(\d+)$", process.stderr.readline().strip())
        assert port is not None
        yield f"127.0.0.1:{port[1]}"
        process.terminate()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    store = Store(tmp_path / "store")
    layer = Layer("application", 0)
    layer.add("a", a_file(b"a"))
    stored = store.add_layer(layer)
    images = [
        store.add_image([stored], architecture=name, config={"Labels": {}}, created=0)
        for name in ("amd64", "arm64")
    ]
    index = store.add_index(images)
    chart = tmp_path / "fish-1.0.0.tgz"
    with tarfile.open(chart, "w:gz") as archive:
        text = b"name: fish\nversion: 1.0.0+more\n"
        info = tarfile.TarInfo("fish/Chart.yaml")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    components = tmp_path / "infrastructure-components.yaml"
    components.write_text("kind: List\n")
    entries = [
        named(index, "fish:v1.0.0"),
        add_chart(store, chart, 0),
        add_components(store, "infrastructure-fish", "v1.0.0", [components], 0),
    ]
    store.write_archive(tmp_path / "bundle.tar", entries, 0)
    return tmp_path / "bundle.tar"


async def test_mirror_pushes_every_entry_of_a_bundle(registry: str, bundle: Path) -> None:
    pushed: list[str] = []
    await mirror(bundle, f"oci://{registry}/lab", pushed.append)
    assert pushed == [
        f"{registry}/lab/fish:v1.0.0",
        f"{registry}/lab/charts/fish:1.0.0_more",
        f"{registry}/lab/components/infrastructure-fish:v1.0.0",
    ]
    headers = {"Accept": f"{MANIFEST},application/vnd.oci.image.index.v1+json"}
    url = f"http://{registry}/v2/lab"
    async with aiohttp.ClientSession(headers=headers) as session:

        async def get(path: str) -> bytes:
            async with session.get(f"{url}/{path}") as response:
                assert response.status == 200, path
                return await response.read()

        content = await get("fish/manifests/v1.0.0")
        index = json.loads(content)
        platforms = {entry["platform"]["architecture"] for entry in index["manifests"]}
        assert platforms == {"amd64", "arm64"}
        for entry in index["manifests"]:
            manifest = await get(f"fish/manifests/{entry['digest']}")
            digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
            assert digest == entry["digest"], "a push keeps digests"
        chart = json.loads(await get("charts/fish/manifests/1.0.0_more"))
        config = json.loads(await get(f"charts/fish/blobs/{chart['config']['digest']}"))
        assert config["name"] == "fish"
        (layer,) = json.loads(await get("components/infrastructure-fish/manifests/v1.0.0"))[
            "layers"
        ]
        assert (
            await get(f"components/infrastructure-fish/blobs/{layer['digest']}") == b"kind: List\n"
        )
    await mirror(bundle, f"{registry}/lab", pushed.append)


@pytest.fixture
async def locked_registry() -> AsyncGenerator[tuple[str, set[str]]]:
    """A registry that rejects every request and records the credentials."""
    sent: set[str] = set()

    async def refuse(request: web.Request) -> web.Response:
        sent.add(request.headers.get("Authorization", ""))
        challenge = {"WWW-Authenticate": 'Basic realm="fake"'}
        return web.Response(status=401, headers=challenge)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield f"{host}:{port}", sent
    await runner.cleanup()


async def test_mirror_uses_the_credentials_of_docker_login_and_never_prints_them(
    locked_registry: tuple[str, set[str]],
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host, sent = locked_registry
    auth = base64.b64encode(b"me:secret").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(
        RegistryError, match=r"fish:v1.0.0 cannot be pushed.*Log in|log in"
    ) as error:
        await mirror(bundle, f"{host}/lab", print)
    assert f"Basic {auth}" in sent
    assert "secret" not in str(error.value)
    assert "401" in error.value.reason


async def test_an_invalid_bundle_or_registry_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar"
    file.write_bytes(b"no archive")
    with pytest.raises(InvalidInputError, match="is not a bundle"):
        await mirror(file, "localhost:5000", print)
    for place in ("https://example.com/x", "--insecure", "example.com/../x y"):
        with pytest.raises(InvalidInputError, match="is not a path in a registry"):
            await mirror(file, place, print)


async def test_an_entry_cannot_become_another_argument_or_destination(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    entry = add_components(store, "../x@y", "v1", [], 0)
    store.write_archive(tmp_path / "bundle.tar", [entry], 0)
    with pytest.raises(InvalidInputError, match="is not a bundle"):
        await mirror(tmp_path / "bundle.tar", "localhost:5000", print)


async def test_a_damaged_bundle_is_rejected(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    file = tmp_path / "a.yaml"
    file.write_bytes(b"a")
    entry = add_components(store, "a", "v1", [file], 0)
    store.path(hashlib.sha256(b"a").hexdigest()).write_bytes(b"b")
    store.write_archive(tmp_path / "bundle.tar", [entry], 0)
    with pytest.raises(DamagedBundleError, match="is damaged"):
        await mirror(tmp_path / "bundle.tar", "localhost:5000", print)
