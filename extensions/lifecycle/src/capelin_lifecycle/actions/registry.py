"""Pulls OCI artifacts by their digest from registries that an administrator allows.

Small, because policies only read, and name digests. Decision 225 has the alternatives.
"""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

import aiohttp
import orjson
from annotated_types import Ge, Le, MaxLen
from capelin.api import Model
from capelin.client import (
    AllowedEndpoint,
    CredentialError,
    EndpointRefusedError,
    allowed_destinations,
    describe_connection_error,
    guarded_connector,
    read_at_most,
    tls_context,
)
from pydantic import Field, ValidationError
from yarl import URL

MAX_BYTES: Final = 2 * 2**20
"""The most that all layers of an artifact may have. Releases of Helm have to fit a Secret too."""
_MAX_DOCUMENT: Final = 2**18
_MAX_HOPS: Final = 5
_TIMEOUT: Final = aiohttp.ClientTimeout(total=15, sock_connect=5)
_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_TITLE: Final = "org.opencontainers.image.title"
_UNPACK: Final = "io.deis.oras.content.unpack"
_PARAMETER: Final = re.compile(r'\b(\w+)="([^"]*)"')
_TOKEN: Final = re.compile(r"[!-~]{1,16384}")

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class ArtifactError(Exception):
    """An artifact cannot be used. The message contains no text of a registry."""


@dataclass(frozen=True, slots=True)
class Reference:
    host: str
    repository: str
    digest: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `host/repository@sha256:...`. A tag before the digest has no meaning."""
        name, _, digest = text.partition("@")
        host, _, repository = name.partition("/")
        return cls(host, repository.partition(":")[0], digest)


class Descriptor(Model):
    """A blob of an artifact."""

    media_type: Annotated[str, MaxLen(255)]
    digest: Digest
    size: Annotated[int, Ge(1), Le(MAX_BYTES)]
    annotations: dict[str, str] = {}

    @property
    def title(self) -> str:
        """The name of the file that the blob was."""
        return self.annotations.get(_TITLE, "")

    @property
    def is_folder(self) -> bool:
        """Whether ORAS packed the files of a folder."""
        return self.annotations.get(_UNPACK) == "true"


class Manifest(Model):
    """The manifest of an artifact."""

    media_type: str | None = None
    layers: Annotated[list[Descriptor], MaxLen(32)]


@dataclass(frozen=True, slots=True)
class Layer:
    descriptor: Descriptor
    content: bytes


@dataclass(frozen=True, slots=True)
class Access:
    """The credentials of a user, and the CAs that the user trusts."""

    login: str | None = None
    """The value of a header `Authorization: Basic`."""
    ca: str | None = None


def login_of(config: bytes, host: str) -> str | None:
    """The login for a registry in the content of a Secret for image pulls.

    Raises:
        ValueError: the content is not such a configuration.
    """
    content: Any = orjson.loads(config)
    try:
        entry = content["auths"].get(host) or content["auths"].get(f"https://{host}")
        if entry is None:
            return None
        encoded = entry.get("auth") or base64.b64encode(
            f"{entry['username']}:{entry['password']}".encode()
        ).decode("ascii")
        base64.b64decode(encoded, validate=True)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("it has no auths") from error
    return str(encoded)


async def pull(
    reference: Reference, access: Access, allowed: Sequence[AllowedEndpoint]
) -> list[Layer]:
    """The layers of an artifact, each with the digest that its manifest names.

    Raises:
        ArtifactError: the artifact cannot be pulled.
    """
    try:
        # It may read the CAs of the system, which takes time.
        tls = await asyncio.to_thread(
            tls_context, access.ca.encode() if access.ca else None, None, None
        )
    except CredentialError:
        raise ArtifactError("caBundle must contain certificates in PEM") from None
    base = _base(reference, allowed)
    repository = _Repository(base, reference.repository, access.login, allowed, tls)
    body = await repository.read("manifests", reference.digest, _MAX_DOCUMENT)
    try:
        manifest = Manifest.read_json(body)
    except ValidationError:
        raise ArtifactError(
            "the digest is not that of a manifest with layers"
            f" of at most {MAX_BYTES // 2**20} MiB: name that of one artifact, not of an index"
        ) from None
    if sum(layer.size for layer in manifest.layers) > MAX_BYTES:
        raise ArtifactError(f"its layers have more than {MAX_BYTES // 2**20} MiB")
    return [
        Layer(layer, await repository.read("blobs", layer.digest, layer.size))
        for layer in manifest.layers
    ]


def _base(reference: Reference, allowed: Sequence[AllowedEndpoint]) -> URL:
    """The URL of the registry. Without TLS only if the administrator wrote that."""
    for scheme in ("https", "http"):
        try:
            allowed_destinations(f"{scheme}://{reference.host}", allowed)
        except EndpointRefusedError:
            continue
        return URL(f"{scheme}://{reference.host}")
    raise _not_allowed(reference.host)


def _not_allowed(host: str) -> ArtifactError:
    return ArtifactError(f"--registries of the extension does not allow {host}")


class _Repository:
    """A repository of a registry, for one pull."""

    def __init__(
        self,
        base: URL,
        name: str,
        login: str | None,
        allowed: Sequence[AllowedEndpoint],
        tls: Any,
    ) -> None:
        self._base, self._name, self._login = base, name, login
        self._allowed, self._tls = allowed, tls
        self._authorization = ""

    async def read(self, kind: str, digest: str, limit: int) -> bytes:
        """A manifest or blob, if it has the digest."""
        accept = {"Accept": ", ".join(_MANIFESTS)} if kind == "manifests" else {}
        url = self._base / "v2" / self._name / kind / digest
        content = await self._get(url, accept, limit)
        actual = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if actual != digest:
            raise ArtifactError(f"{self._base.host} sent other content than that of {digest}")
        return content

    async def _get(self, url: URL, headers: dict[str, str], limit: int) -> bytes:
        for _ in range(_MAX_HOPS):
            # Another server must not get the credentials of this one.
            is_own = url.origin() == self._base.origin()
            own = {"Authorization": self._authorization} if is_own and self._authorization else {}
            async with self._response(url, {**headers, **own}) as response:
                location = response.headers.get("Location")
                if response.status == 200:
                    return await _body(response, limit)
                if response.status == 401 and is_own and not self._authorization:
                    challenge = response.headers.get("WWW-Authenticate", "")
                elif response.status in {301, 302, 303, 307, 308} and location:
                    # The target may be signed, so its text must not change.
                    url = url.join(URL(location, encoded=True))
                    continue
                else:
                    raise ArtifactError(f"{url.host} responds with HTTP status {response.status}")
            self._authorization = await self._authorize(challenge)
        raise ArtifactError(f"{self._base.host} redirects too often")

    async def _authorize(self, challenge: str) -> str:
        """The header that answers a registry's request for credentials."""
        scheme, _, rest = challenge.partition(" ")
        parameters = dict(_PARAMETER.findall(rest))
        login = f"Basic {self._login}" if self._login else ""
        if scheme.lower() == "basic" and login:
            return login
        if scheme.lower() != "bearer" or "realm" not in parameters:
            raise ArtifactError(f"{self._base.host} requires credentials: set pullSecret")
        url = URL(parameters["realm"]).update_query(
            scope=f"repository:{self._name}:pull",
            **{key: parameters[key] for key in ("service",) if key in parameters},
        )
        headers = {"Authorization": login} if login else {}
        async with self._response(url, headers) as response:
            if response.status != 200:
                raise ArtifactError(f"{url.host} grants no token ({response.status})")
            body = await _body(response, _MAX_DOCUMENT)
        try:
            match orjson.loads(body):
                case {"token": str(token)} | {"access_token": str(token)} if _TOKEN.fullmatch(
                    token
                ):
                    return f"Bearer {token}"
                case _:
                    pass
        except orjson.JSONDecodeError:
            pass
        raise ArtifactError(f"{url.host} grants no token")

    @asynccontextmanager
    async def _response(
        self, url: URL, headers: dict[str, str]
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """A response of a server that the administrator allows."""
        try:
            destinations = allowed_destinations(str(url.origin()), self._allowed)
        except EndpointRefusedError as error:
            raise _not_allowed(str(error)) from None
        except ValueError:
            raise ArtifactError(f"{self._base.host} names a server without an address") from None
        try:
            async with (
                aiohttp.ClientSession(
                    connector=guarded_connector(destinations, tls=self._tls),
                    timeout=_TIMEOUT,
                    # Digests are those of the stored bytes.
                    headers={"Accept-Encoding": "identity"},
                    auto_decompress=False,
                    cookie_jar=aiohttp.DummyCookieJar(),
                ) as session,
                session.get(url, headers=headers, allow_redirects=False) as response,
            ):
                yield response
        except aiohttp.ClientConnectorError as error:
            reason = describe_connection_error(error)
            raise ArtifactError(f"{url.host} cannot be reached: {reason}") from None
        except aiohttp.ClientError as error:
            raise ArtifactError(
                f"{url.host} does not respond: {describe_connection_error(error)}"
            ) from None
        except TimeoutError:
            raise ArtifactError(f"{url.host} does not respond in time") from None


async def _body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    body = await read_at_most(response, limit)
    if body is None:
        raise ArtifactError(f"{response.url.host} sends more than {limit} bytes")
    return body
