"""Pushing a layout into a container registry, with the credentials that its user has for it."""

import asyncio
import base64
import ipaddress
import json
import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast
from urllib.parse import urljoin

import aiohttp
from capelin.errors import InvalidInputError, UserError

from capelin_release.oci import INDEX, MANIFEST, Descriptor, Store

_REPOSITORY = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+(?::\d+)?|\[[0-9a-fA-F:]+\](?::\d+)?)(?:/(?P<path>[a-z0-9][a-z0-9._/-]*))?"
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=120)


class RegistryError(UserError):
    """A registry refuses or does not answer."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name and password for a registry."""

    username: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The header that carries them."""
        return aiohttp.encode_basic_auth(self.username, self.password)


@dataclass(frozen=True, slots=True)
class Place:
    """A registry, and the path in it below which everything is put."""

    host: str
    path: str

    @classmethod
    def parse(cls, text: str) -> "Place":
        """As in `registry.example.com/capelin`.

        Raises:
            InvalidInputError: It is none.
        """
        match = _REPOSITORY.fullmatch(text.removeprefix("oci://").rstrip("/"))
        if match is None:
            raise InvalidInputError(
                f"{text} is no place in a registry.", hint="Write it as registry.example.com/path."
            )
        return cls(match["host"], match["path"] or "")

    @property
    def url(self) -> str:
        """Where its API is. Registries on loopback need no certificate, as with other clients."""
        return f"{'http' if self._is_loopback() else 'https'}://{self.host}/v2/"

    def repository(self, name: str) -> str:
        """The repository of a name below the path."""
        return f"{self.path}/{name}" if self.path else name

    def _is_loopback(self) -> bool:
        name = re.sub(r":\d+$", "", self.host).strip("[]")
        if name == "localhost":
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


class Registry:
    """A connection to a registry."""

    def __init__(
        self, address: Place, session: aiohttp.ClientSession, login: Credentials | None
    ) -> None:
        self._place, self._session, self._login = address, session, login
        self._authorization: dict[str, str] = {}

    async def push(self, store: Store, entry: Descriptor, name: str, tag: str) -> None:
        """Upload a manifest or index with all below it, and tag it.

        Raises:
            RegistryError: The registry refuses it, or does not answer.
        """
        repository = self._place.repository(name)
        blobs = {blob.digest: blob for blob in store.reachable(entry)}
        for blob in blobs.values():
            if blob.media_type in {INDEX, MANIFEST}:
                reference = tag if blob.digest == entry.digest else blob.digest
                await self._put_manifest(store, blob, repository, reference)
            else:
                await self._put_blob(store, blob, repository)

    async def _put_manifest(
        self, store: Store, blob: Descriptor, repository: str, reference: str
    ) -> None:
        await self._request(
            "PUT",
            f"{repository}/manifests/{reference}",
            repository,
            headers={"Content-Type": blob.media_type},
            data=store.path(blob.digest).read_bytes(),
        )

    async def _put_blob(self, store: Store, blob: Descriptor, repository: str) -> None:
        status, _ = await self._request(
            "HEAD", f"{repository}/blobs/{blob.digest}", repository, accept=(HTTPStatus.NOT_FOUND,)
        )
        if status == HTTPStatus.OK:
            return
        _, headers = await self._request("POST", f"{repository}/blobs/uploads/", repository)
        location = headers["Location"]
        separator = "&" if "?" in location else "?"
        await self._request(
            "PUT",
            f"{location}{separator}digest={blob.digest}",
            repository,
            headers={"Content-Type": "application/octet-stream"},
            data=store.path(blob.digest).read_bytes(),
        )

    async def _request(
        self,
        method: str,
        path: str,
        repository: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        accept: tuple[int, ...] = (),
    ) -> tuple[int, Mapping[str, str]]:
        url = urljoin(self._place.url, path)
        for attempt in (1, 2):
            authorized = {**(headers or {}), **_header(self._authorization.get(repository))}
            try:
                async with self._session.request(
                    method, url, headers=authorized, data=data
                ) as response:
                    if response.status == HTTPStatus.UNAUTHORIZED and attempt == 1:
                        challenge = response.headers.get("WWW-Authenticate", "")
                        self._authorization[repository] = await self._authorize(
                            challenge, repository
                        )
                        continue
                    if response.ok or response.status in accept:
                        return response.status, response.headers
                    detail = _problem(await response.text())
                    raise RegistryError(
                        f"{self._place.host} refuses {repository}.",
                        reason=f"{method} {response.status} {detail}".strip(),
                        hint="Log in with docker login, or the like, if it asks for it.",
                    )
            except (aiohttp.ClientConnectionError, TimeoutError) as error:
                raise RegistryError(
                    f"{self._place.host} does not answer.",
                    reason=str(error) or type(error).__name__,
                ) from error
        raise AssertionError("the second attempt returns or raises")

    async def _authorize(self, challenge: str, repository: str) -> str:
        """The header that the registry asks for."""
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() != "bearer":
            return self._login.basic if self._login else ""
        fields = dict(_CHALLENGE.findall(rest))
        query = {"scope": f"repository:{repository}:pull,push"}
        if service := fields.get("service"):
            query["service"] = service
        headers = _header(self._login.basic if self._login else None)
        async with self._session.get(fields["realm"], params=query, headers=headers) as response:
            if not response.ok:
                raise RegistryError(
                    f"{self._place.host} gives no access to {repository}.",
                    reason=f"Its token service answers {response.status}.",
                    hint="Log in with docker login, or the like.",
                )
            answer = cast("dict[str, Any]", await response.json(content_type=None))
        return f"Bearer {answer.get('token') or answer.get('access_token')}"


@asynccontextmanager
async def open_registry(address: Place) -> AsyncGenerator[Registry]:
    """Connect to a registry, with proxies and certificates of the environment."""
    login = await find_credentials(address.host, os.environ)
    async with aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=True) as session:
        yield Registry(address, session, login)


async def find_credentials(host: str, environment: Mapping[str, str]) -> Credentials | None:
    """What `docker login` has stored for a registry, in Docker's file or a helper program."""
    folder = Path(environment.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    helper = config.get("credHelpers", {}).get(host) or config.get("credsStore")
    if helper:
        return await _ask_helper(f"docker-credential-{helper}", host)
    encoded = config.get("auths", {}).get(host, {}).get("auth")
    if not encoded:
        return None
    username, _, password = base64.b64decode(encoded).decode().partition(":")
    return Credentials(username, password)


async def _ask_helper(command: str, host: str) -> Credentials | None:
    try:
        process = await asyncio.create_subprocess_exec(
            command,
            "get",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None
    output, _ = await process.communicate(host.encode())
    if process.returncode:
        return None
    answer = json.loads(output)
    return Credentials(answer["Username"], answer["Secret"])


def _header(authorization: str | None) -> dict[str, str]:
    return {"Authorization": authorization} if authorization else {}


def _problem(body: str) -> str:
    try:
        return "; ".join(error["message"] for error in json.loads(body)["errors"])
    except (ValueError, KeyError, TypeError):
        return ""
