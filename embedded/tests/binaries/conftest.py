"""Fakes: a `go` command, a registry and an observer of progress."""

import asyncio
import gzip
import hashlib
import io
import json
import ssl
import tarfile
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from capelin.testing.waiting import until
from capelin_embedded.binaries import Binaries, ProgressEvent
from capelin_embedded.binaries.catalog import Platform

from tests.support.web import api_server

HERE = Platform.current()

GO = r"""#!/bin/sh
fake={fake}
echo "$*" >> $fake/calls
env > $fake/environment
case "$1 $2" in
"env GOVERSION") cat $fake/version; exit;;
"env GOTOOLCHAIN") cat $fake/toolchain; exit;;
"mod "*) . $fake/mod; exit;;
"list "*) . $fake/list; exit;;
esac
shift
while [ $# -gt 0 ]; do
    case "$1" in
    -o) out=$2; shift 2;;
    -ldflags) shift 2;;
    -*) shift;;
    *) packages="$packages $1"; shift;;
    esac
done
echo $$ > $fake/pid
while [ -e $fake/held ]; do sleep 0.05; done
if [ -e $fake/trouble ]; then cat $fake/trouble >&2; exit 1; fi
mkdir -p $out
for package in $packages; do
    echo "go: downloading $package v1.2.3" >&2
    echo $package >&2
    name=${{package%/v[0-9]}}
    printf "#!/bin/sh\necho $package\n" > $out/${{name##*/}}
done
"""


class FakeGo:
    """A fake `go` that builds shell scripts and has a configurable behaviour."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = f"{folder / 'bin'}:/usr/bin:/bin"
        (folder / "bin").mkdir(parents=True)
        command = folder / "bin" / "go"
        command.write_text(GO.format(fake=folder))
        command.chmod(0o755)
        self.is_version("go1.26.8")
        self.has_toolchain_setting("auto")
        self.answers_list_with("")

    def is_version(self, version: str) -> None:
        (self._folder / "version").write_text(version)

    def has_toolchain_setting(self, setting: str) -> None:
        (self._folder / "toolchain").write_text(setting)

    def answers_mod_with(self, script: str) -> None:
        (self._folder / "mod").write_text(script)

    def answers_list_with(self, script: str) -> None:
        (self._folder / "list").write_text(script)

    def ignores_interrupts(self) -> None:
        command = self._folder / "bin" / "go"
        command.write_text(command.read_text().replace("#!/bin/sh", "#!/bin/sh\ntrap '' INT"))

    def fails_with(self, words: str) -> None:
        (self._folder / "trouble").write_text(words)

    def hold(self) -> None:
        """Let builds start but not end."""
        (self._folder / "held").touch()

    def release(self) -> None:
        (self._folder / "held").unlink()

    def builds(self) -> list[str]:
        """The command lines of the builds so far."""
        file = self._folder / "calls"
        calls = file.read_text().splitlines() if file.exists() else []
        return [call for call in calls if call.startswith("build")]

    def environment(self) -> dict[str, str]:
        """Environment of the last call."""
        lines = (self._folder / "environment").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    async def pid(self) -> int:
        """The process of a build, once it runs."""
        file = self._folder / "pid"
        await until(lambda: file.exists() and file.read_text().endswith("\n"))
        return int(file.read_text())


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def layer_of(files: Mapping[str, bytes | str]) -> bytes:
    """A layer in the form of a registry. A text as content is the target of a link."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


@dataclass
class Registry:
    """An OCI registry with configurable faults."""

    url: str = ""
    documents: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Manifests and blobs by their path."""
    requests: list[tuple[str, dict[str, str]]] = field(
        default_factory=list[tuple[str, dict[str, str]]]
    )
    broken: bool = False
    challenge: str | None = None
    token: str | None = None
    renews_before_blobs: str | None = None
    """The required token from the first blob on."""
    rejects: bool = False
    cuts: list[int] = field(default_factory=list[int])
    """Number of bytes after which the connections of the next blobs break."""
    stalls: int | None = None
    """Number of bytes after which a blob stalls."""
    supports_ranges: bool = True
    storage: str | None = None
    """Target of redirects for blobs."""

    def add(self, repository: str, content: bytes, kind: str = "blobs") -> dict[str, Any]:
        """Store a document under its digest. Returns its descriptor."""
        self.documents[f"/v2/{repository}/{kind}/{digest_of(content)}"] = content
        return {"digest": digest_of(content), "size": len(content)}

    def add_manifest(
        self, repository: str, manifest: Any, tag: str | None = None
    ) -> dict[str, Any]:
        content = json.dumps(manifest).encode()
        if tag is not None:
            self.documents[f"/v2/{repository}/manifests/{tag}"] = content
        return self.add(repository, content, "manifests")

    def add_image(
        self,
        repository: str,
        tag: str,
        *layers: Mapping[str, bytes | str],
        platform: Platform = HERE,
    ) -> dict[str, Any]:
        """An image for one platform in a list of platforms, like official images."""
        image = self.add_manifest(
            repository, {"layers": [self.add(repository, layer_of(files)) for files in layers]}
        )
        image["platform"] = {"os": platform.system, "architecture": platform.architecture}
        unknown = {**image, "platform": {"os": "unknown", "architecture": "unknown"}}
        return self.add_manifest(repository, {"manifests": [unknown, image]}, tag)

    def blob_requests(self) -> list[dict[str, str]]:
        """The headers of the requests for blobs so far."""
        return [headers for path, headers in self.requests if "/blobs/" in path]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.path, dict(request.headers)))
        if request.path == "/token":
            return web.json_response({"token": self.token, "query": dict(request.query)})
        if self.broken:
            return web.Response(status=503)
        if self.renews_before_blobs is not None and "/blobs/" in request.path:
            self.token, self.renews_before_blobs = self.renews_before_blobs, None
        if self.challenge is not None and (
            self.rejects or request.headers.get("Authorization") != f"Bearer {self.token}"
        ):
            return web.Response(status=401, headers={"WWW-Authenticate": self.challenge})
        if self.storage is not None and "/blobs/" in request.path:
            raise web.HTTPTemporaryRedirect(self.storage + request.path)
        content = self.documents.get(request.path)
        if content is None:
            return web.Response(status=404)
        if "/blobs/" in request.path:
            return await self._send(request, content)
        return web.Response(body=content)

    async def _send(self, request: web.Request, content: bytes) -> web.StreamResponse:
        start = request.http_range.start or 0 if self.supports_ranges else 0
        response = web.StreamResponse(status=206 if start else 200)
        response.content_length = len(content) - start
        await response.prepare(request)
        end = self.cuts.pop(0) if self.cuts else self.stalls
        await response.write(content[start:end])
        if end is not None and end < len(content):
            if self.stalls is not None:
                await asyncio.Event().wait()
            assert request.transport is not None
            request.transport.abort()
        return response


@dataclass
class RecordedProgress:
    """Stores the events of a `Progress`."""

    events: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    amounts: list[tuple[int, int | None, str]] = field(
        default_factory=list[tuple[int, int | None, str]]
    )

    moving: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, event: ProgressEvent) -> None:
        if event.kind == "advanced":
            assert ("started", event.what, event.source) in self.events
            self.amounts.append((event.done, event.total, event.unit))
            self.moving.set()
        else:
            message = (event.message,) if event.message else ()
            self.events.append((event.kind, event.what, event.source, *message))


Serve = Callable[..., Any]


@pytest.fixture
async def serve() -> AsyncGenerator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(registry: Registry, tls: ssl.SSLContext | None = None) -> Registry:
            registry.url = await stack.enter_async_context(api_server(registry.answer, tls))
            return registry

        yield start


@pytest.fixture
async def registry(serve: Serve) -> Registry:
    return await serve(Registry())


@pytest.fixture
def go(tmp_path: Path) -> FakeGo:
    return FakeGo(tmp_path / "go")


@pytest.fixture
def progress() -> RecordedProgress:
    return RecordedProgress()


Making = Callable[..., Binaries]


@pytest.fixture
def binaries(tmp_path: Path, progress: RecordedProgress, registry: Registry) -> Making:
    """Creates `Binaries` without Go and with only the registry of the test."""

    def make(
        *, folders: tuple[Path, ...] = (), go: FakeGo | None = None, **variables: str
    ) -> Binaries:
        return Binaries(
            folders=folders,
            cache=tmp_path / "cache",
            progress=progress,
            mirrors={"registry.k8s.io": registry.url, "gcr.io": registry.url},
            environment={"PATH": go.path if go else "/nowhere", **variables},
        )

    return make
