"""Binaries from official images: the registry's protocol, manifests, layers, and their files."""

import hashlib
import lzma
import re
import shutil
import tarfile
import zlib
from asyncio import to_thread
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlencode

import aiohttp
from capelin.api import Model
from capelin.client import read_at_most
from pydantic import Field, ValidationError

from capelin_embedded.binaries.cache import BuildDir
from capelin_embedded.binaries.catalog import Platform
from capelin_embedded.binaries.download import Web, download
from capelin_embedded.binaries.errors import SourceFailedError

_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json"
    ", application/vnd.docker.distribution.manifest.list.v2+json"
    ", application/vnd.oci.image.manifest.v1+json"
    ", application/vnd.docker.distribution.manifest.v2+json"
)
_LARGEST_DOCUMENT = 4 * 2**20
_MAX_LAYER_BYTES = 2**30
_MAX_UNPACKED_BYTES = 4 * 2**30
_PARAMETER = re.compile(r'\b(\w+)="([^"]*)"')
_DIGEST = r"^sha256:[0-9a-f]{64}$"


class GoneError(SourceFailedError):
    """The registry does not have this manifest or blob."""


class System(Model):
    os: str
    architecture: str


class Descriptor(Model):
    """A pointer to content by its digest."""

    digest: str = Field(pattern=_DIGEST)
    size: int = Field(gt=0)
    media_type: str = ""
    platform: System | None = None

    @property
    def sha256(self) -> str:
        return self.digest.removeprefix("sha256:")


class Manifest(Model):
    """A list of images for several platforms, or one image with its layers."""

    manifests: list[Descriptor] = []
    config: Descriptor | None = None
    layers: list[Descriptor] = []


@dataclass(frozen=True, slots=True)
class Reference:
    """For example `registry.k8s.io/etcd:3.6.8-0`."""

    host: str
    repository: str
    tag: str

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}:{self.tag}"

    @classmethod
    def parse(cls, text: str) -> "Reference":
        host, _, rest = text.partition("/")
        repository, _, tag = rest.rpartition(":")
        return cls(host, repository, tag)


class Repository:
    def __init__(self, web: Web, base: str, name: str) -> None:
        self._web = web
        self._base = f"{base}/v2/{name}"
        self._name = name
        self._authorization: dict[str, str] = {}

    async def resolve(self, name: str, platform: Platform) -> tuple[str, Manifest]:
        """The digest that a tag (or digest) refers to, and the manifest for a platform."""
        digest, manifest = await self._manifest(name)
        if manifest.manifests:
            # Attestations are listed with the platform `unknown`.
            images = {
                f"{system.os}/{system.architecture}": image
                for image in reversed(manifest.manifests)
                if (system := image.platform) is not None and system.os != "unknown"
            }
            if (image := images.get(str(platform))) is None:
                available = ", ".join(sorted(images))
                raise SourceFailedError(f"it has nothing for {platform}, only {available}")
            _, manifest = await self._manifest(image.digest)
        elif manifest.config is not None:
            await self._check_platform(manifest.config, platform)
        if not manifest.layers:
            raise SourceFailedError("its manifest lists no layers")
        return digest, manifest

    async def blob(self, blob: Descriptor, into: Path, report: Callable[[int], None]) -> None:
        """Download a blob, and resume an earlier attempt."""
        await download(
            partial(self._get, f"/blobs/{blob.digest}"),
            into,
            digest=blob.sha256,
            size=blob.size,
            report=report,
        )

    async def _manifest(self, name: str) -> tuple[str, Manifest]:
        body = await self._document(f"/manifests/{name}", {"Accept": _MANIFESTS})
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if name.startswith("sha256:") and digest != name:
            raise SourceFailedError(f"the manifest {name} was requested, and {digest} came")
        try:
            return digest, Manifest.read_json(body)
        except ValidationError as error:
            raise SourceFailedError(f"its manifest is unreadable: {_first(error)}") from error

    async def _check_platform(self, config: Descriptor, platform: Platform) -> None:
        body = await self._document(f"/blobs/{config.digest}", {})
        if hashlib.sha256(body).hexdigest() != config.sha256:
            raise SourceFailedError(f"its configuration does not have the digest {config.digest}")
        try:
            system = System.read_json(body)
        except ValidationError as error:
            raise SourceFailedError(f"its configuration is unreadable: {_first(error)}") from error
        if (system.os, system.architecture) != (platform.system, platform.architecture):
            raise SourceFailedError(
                f"it has nothing for {platform}, only {system.os}/{system.architecture}"
            )

    async def _document(self, path: str, headers: Mapping[str, str]) -> bytes:
        async with self._get(path, headers) as response:
            if (body := await read_at_most(response, _LARGEST_DOCUMENT)) is None:
                raise SourceFailedError(f"{path} is far larger than such a document should be")
            return body

    @asynccontextmanager
    async def _get(
        self, path: str, headers: Mapping[str, str]
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        url = self._base + path
        async with self._web.get(url, {**headers, **self._authorization}) as response:
            if response.status != 401:
                yield _good(response, path)
                return
            challenge = response.headers.get("WWW-Authenticate", "")
        self._authorization = {"Authorization": f"Bearer {await self._token(challenge)}"}
        async with self._web.get(url, {**headers, **self._authorization}) as response:
            yield _good(response, path)

    async def _token(self, challenge: str) -> str:
        scheme, _, rest = challenge.partition(" ")
        parameters = dict(_PARAMETER.findall(rest))
        realm = parameters.pop("realm", "")
        if scheme.lower() != "bearer" or not realm.startswith("http"):
            raise SourceFailedError("it requires credentials, but Capelin pulls only public images")
        query = {key: parameters[key] for key in ("service", "scope") if key in parameters}
        query.setdefault("scope", f"repository:{self._name}:pull")
        async with self._web.get(f"{realm}?{urlencode(query)}", {}) as response:
            if response.status != 200:
                raise SourceFailedError(f"it grants no anonymous token (status {response.status})")
            answer: Any = await response.json(content_type=None)
        match answer:
            case {"token": str(token)} | {"access_token": str(token)}:
                return token
            case _:
                raise SourceFailedError("it grants no anonymous token (its response has none)")


async def pull(
    web: Web,
    reference: Reference,
    files: Iterable[str],
    *,
    base: str,
    digest: str | None,
    platform: Platform,
    build_dir: BuildDir,
    report: Callable[[int, int], None],
) -> tuple[str, Mapping[str, Path]]:
    """Pull files of an image. Returns the image's digest, and the files by their path in it.

    With `digest`, it pulls that content, even if the tag has moved.
    """
    repository = Repository(web, base, reference.repository)
    actual_digest, manifest = await repository.resolve(digest or reference.tag, platform)
    missing = set(files)
    pulled: dict[str, Path] = {}
    # Images add their binaries last, on base layers that need not be pulled.
    for layer in reversed(manifest.layers):
        if layer.size > _MAX_LAYER_BYTES:
            raise SourceFailedError(
                f"one of its layers has {layer.size} bytes, more than any official image"
            )
        archive = build_dir.partial / layer.sha256
        await repository.blob(layer, archive, lambda done, total=layer.size: report(done, total))
        try:
            pulled |= await to_thread(extract, archive, missing, build_dir.folder)
        finally:
            archive.unlink()
        missing -= pulled.keys()
        if not missing:
            return actual_digest, pulled
    raise SourceFailedError(f"it has no {' and no '.join('/' + name for name in sorted(missing))}")


def extract(archive: Path, files: Iterable[str], folder: Path) -> dict[str, Path]:
    """Extract the requested files of a layer, each under its file name in `folder`."""
    names = set(files)
    extracted: dict[str, Path] = {}
    try:
        with tarfile.open(archive) as layer:
            unpacked = 0
            for member in layer:
                # Skipped members are decompressed too.
                unpacked += member.size
                if unpacked > _MAX_UNPACKED_BYTES:
                    raise SourceFailedError(
                        f"one of its layers unpacks to more than {_MAX_UNPACKED_BYTES} bytes"
                    )
                name = str(PurePosixPath("/", member.name)).lstrip("/")
                if name not in names:
                    continue
                content = layer.extractfile(member) if member.isreg() else None
                if content is None:
                    raise SourceFailedError(f"/{name} is not a plain file in it")
                into = folder / PurePosixPath(name).name
                with content, into.open("wb") as file:
                    shutil.copyfileobj(content, file)
                extracted[name] = into
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise SourceFailedError(f"one of its layers cannot be unpacked ({error})") from error
    return extracted


def _good(response: aiohttp.ClientResponse, path: str) -> aiohttp.ClientResponse:
    match response.status:
        case 200 | 206:
            return response
        case 401 | 403:
            raise SourceFailedError(f"it denies access to {path} (status {response.status})")
        case 404:
            raise GoneError(f"the registry has no {path.removeprefix('/manifests/')} of it")
        case status:
            raise SourceFailedError(f"it answers {path} with {status} {response.reason}")


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first["loc"] else first["msg"]
