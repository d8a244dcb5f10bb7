"""Speaking with an OCI registry: manifests and blobs by digest, anonymous tokens."""

import hashlib
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from pydantic import Field, ValidationError

from capelin.api.model import Model
from capelin.embedded.binaries import web
from capelin.embedded.binaries.catalogue import Platform
from capelin.embedded.binaries.errors import WayFailedError

_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json"
    ", application/vnd.docker.distribution.manifest.list.v2+json"
    ", application/vnd.oci.image.manifest.v1+json"
    ", application/vnd.docker.distribution.manifest.v2+json"
)
_LARGEST_DOCUMENT = 4 * 2**20
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_DIGEST = r"^sha256:[0-9a-f]{64}$"


class GoneError(WayFailedError):
    """The registry does not have what was asked for."""


class System(Model):
    """What an image of a list runs on."""

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
        """The digest's hexadecimal part."""
        return self.digest.removeprefix("sha256:")


class Manifest(Model):
    """A list of images for several platforms, or one image with its layers."""

    manifests: list[Descriptor] = []
    config: Descriptor | None = None
    layers: list[Descriptor] = []


@dataclass(frozen=True, slots=True)
class Reference:
    """As in `registry.k8s.io/etcd:3.6.5-0`."""

    host: str
    repository: str
    tag: str

    def __str__(self) -> str:
        """As it is written everywhere."""
        return f"{self.host}/{self.repository}:{self.tag}"

    @classmethod
    def read(cls, text: str) -> "Reference":
        """Read what the catalogue says."""
        host, _, rest = text.partition("/")
        repository, _, tag = rest.rpartition(":")
        return cls(host, repository, tag)


class Repository:
    """One repository of a registry."""

    def __init__(self, internet: web.Web, base: str, name: str) -> None:
        self._internet = internet
        self._base = f"{base}/v2/{name}"
        self._name = name
        self._authorization: dict[str, str] = {}

    async def resolve(self, name: str, platform: Platform) -> tuple[str, Manifest]:
        """The digest that a tag (or digest) stands for, and the image for a platform in it."""
        digest, manifest = await self._manifest(name)
        if manifest.manifests:
            chosen = [each for each in manifest.manifests if _runs_on(each, platform)]
            if not chosen:
                there = sorted({f"{p.os}/{p.architecture}" for p in _platforms(manifest)})
                raise WayFailedError(f"it has nothing for {platform}, only {', '.join(there)}")
            _, manifest = await self._manifest(chosen[0].digest)
        elif manifest.config is not None:
            await self._check_platform(manifest.config, platform)
        if not manifest.layers:
            raise WayFailedError("its manifest lists no layers")
        return digest, manifest

    async def blob(self, blob: Descriptor, into: Path, advanced: Callable[[int], None]) -> None:
        """Download a blob; what an earlier try left is continued."""
        await web.download(
            partial(self._get, f"/blobs/{blob.digest}"),
            into,
            digest=blob.sha256,
            size=blob.size,
            advanced=advanced,
        )

    async def _manifest(self, name: str) -> tuple[str, Manifest]:
        body = await self._document(f"/manifests/{name}", {"Accept": _MANIFESTS})
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if name.startswith("sha256:") and digest != name:
            raise WayFailedError(f"the manifest {name} was asked for, and {digest} came")
        try:
            return digest, Manifest.read_json(body)
        except ValidationError as error:
            raise WayFailedError(f"its manifest cannot be read: {_first(error)}") from error

    async def _check_platform(self, config: Descriptor, platform: Platform) -> None:
        body = await self._document(f"/blobs/{config.digest}", {})
        if hashlib.sha256(body).hexdigest() != config.sha256:
            raise WayFailedError(f"its configuration is not what {config.digest} stands for")
        found = System.read_json(body)
        if (found.os, found.architecture) != (platform.system, platform.architecture):
            raise WayFailedError(
                f"it has nothing for {platform}, only {found.os}/{found.architecture}"
            )

    async def _document(self, path: str, headers: Mapping[str, str]) -> bytes:
        async with self._get(path, headers) as response:
            body = bytearray()
            async for chunk in response.content.iter_chunked(2**16):
                body += chunk
                if len(body) > _LARGEST_DOCUMENT:
                    raise WayFailedError(f"{path} is far larger than such a document should be")
            return bytes(body)

    @asynccontextmanager
    async def _get(
        self, path: str, headers: Mapping[str, str]
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        url = self._base + path
        async with self._internet.get(url, {**headers, **self._authorization}) as response:
            if response.status != 401:
                yield _good(response, path)
                return
            challenge = response.headers.get("WWW-Authenticate", "")
        self._authorization = {"Authorization": f"Bearer {await self._token(challenge)}"}
        async with self._internet.get(url, {**headers, **self._authorization}) as response:
            yield _good(response, path)

    async def _token(self, challenge: str) -> str:
        scheme, _, rest = challenge.partition(" ")
        parameters = dict(_PARAMETER.findall(rest))
        realm = parameters.pop("realm", "")
        if scheme.lower() != "bearer" or not realm.startswith("http"):
            raise WayFailedError("it wants credentials, and Capelin pulls public images only")
        query = {key: parameters[key] for key in ("service", "scope") if key in parameters}
        query.setdefault("scope", f"repository:{self._name}:pull")
        async with self._internet.get(f"{realm}?{urlencode(query)}", {}) as response:
            if response.status != 200:
                raise WayFailedError(f"it gives no anonymous token (answer {response.status})")
            answer: Any = await response.json(content_type=None)
        match answer:
            case {"token": str(token)} | {"access_token": str(token)}:
                return token
            case _:
                raise WayFailedError("it gives no anonymous token (its answer has none)")


def _good(response: aiohttp.ClientResponse, path: str) -> aiohttp.ClientResponse:
    match response.status:
        case 200 | 206:
            return response
        case 401 | 403:
            raise WayFailedError(f"it does not let {path} be read (answer {response.status})")
        case 404:
            raise GoneError(f"the registry has no {path.removeprefix('/manifests/')} of it")
        case status:
            raise WayFailedError(f"it answers {path} with {status} {response.reason}")


def _runs_on(each: Descriptor, platform: Platform) -> bool:
    return each.platform is not None and (each.platform.os, each.platform.architecture) == (
        platform.system,
        platform.architecture,
    )


def _platforms(manifest: Manifest) -> list[System]:
    return [
        each.platform
        for each in manifest.manifests
        # Attestations stand in the list as the platform `unknown`.
        if each.platform is not None and each.platform.os != "unknown"
    ]


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first["loc"] else first["msg"]
