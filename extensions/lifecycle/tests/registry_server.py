"""A registry in memory, which can also misbehave."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

from tests.support.web import api_server

FLUX = "application/vnd.cncf.flux.content.v1.tar+gzip"
CHART = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
REPOSITORY = "team/addons"
LOGIN = "Basic cm9ib3Q6c2VjcmV0"
"""The login of `robot` with the password `secret`."""


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """A compressed archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue())


class Registry:
    """Blobs and manifests by digest, and the headers of the requests."""

    def __init__(self) -> None:
        self.address = ""
        self.contents: dict[str, bytes] = {}
        self.login: str | None = None
        """The login that grants a token. Without it, everybody may read."""
        self.realm: str | None = None
        """The address of the server that grants tokens."""
        self.redirects: str | None = None
        """The server that has the blobs."""
        self.requests: list[tuple[str, str | None]] = []
        """The path and the header `Authorization` of each request."""

    @property
    def host(self) -> str:
        return self.address.removeprefix("http://")

    def push(self, *layers: tuple[str, bytes], **annotations: str) -> str:
        """Store an artifact. Returns its reference."""
        manifest: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "size": 2},
            "layers": [
                {
                    "mediaType": media_type,
                    "digest": digest_of(content),
                    "size": len(content),
                    "annotations": annotations,
                }
                for media_type, content in layers
            ],
        }
        for _, content in layers:
            self.contents[digest_of(content)] = content
        return self.push_manifest(manifest)

    def push_manifest(self, manifest: Mapping[str, Any]) -> str:
        """Store a manifest. Returns its reference."""
        content = orjson.dumps(manifest)
        self.contents[digest_of(content)] = content
        return f"{self.host}/{REPOSITORY}@{digest_of(content)}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        authorization = request.headers.get("Authorization")
        self.requests.append((request.path, authorization))
        if request.path == "/token":
            if authorization != self.login:
                return web.Response(status=401)
            return web.json_response({"token": f"for-{request.query['scope']}"})
        granted = f"Bearer for-repository:{REPOSITORY}:pull"
        if self.login and authorization != granted:
            realm = f'Bearer realm="{self.realm or self.address}/token",service="tests"'
            return web.Response(status=401, headers={"WWW-Authenticate": realm})
        _, _, kind, digest = request.path.rsplit("/", 3)
        if kind == "blobs" and self.redirects:
            return web.Response(status=307, headers={"Location": f"{self.redirects}{request.path}"})
        content = self.contents.get(digest)
        return web.Response(status=404) if content is None else web.Response(body=content)


@asynccontextmanager
async def registry() -> AsyncGenerator[Registry]:
    """A registry that listens."""
    server = Registry()
    async with api_server(server.answer) as server.address:
        yield server
