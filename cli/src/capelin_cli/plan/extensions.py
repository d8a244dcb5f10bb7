"""Stands in for the Runtime Extensions of a management cluster, and records their calls.

A hook that only computes, such as GeneratePatches, is answered by the real extension. A hook of a
Cluster's life would begin real work there: it is only recorded, and answered with success.
"""

import asyncio
import base64
import ssl
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol, cast

import orjson
from aiohttp import web
from capelin.api import Unstructured
from capelin.api.capi import ExtensionConfig
from capelin.client import Client, ClientError, load_certificate
from capelin.pki import issue, new_ca
from capelin.runtime.client import (
    ClientCertificate,
    Connections,
    EndpointError,
    NoResponseError,
    endpoint_of,
)
from capelin.runtime.v1alpha1 import CLUSTER_API, ValidateTopology
from capelin_embedded.addresses import free_port

_HOST: Final = "127.0.0.1"
_SECONDS: Final = 10.0
_DISCOVERY: Final = "discovery"
_MAX_BYTES: Final = 20 * 1024 * 1024
_CA_ANNOTATION: Final = "runtime.cluster.x-k8s.io/inject-ca-from-secret"
_VALIDATION: Final = ValidateTopology.id.name
_HOOKS: Final = {hook.id.path(): hook for hook in CLUSTER_API}


@dataclass(frozen=True)
class RecordedCall:
    """A call of a hook that core made in the sandbox."""

    hook: str
    handler: str
    request: Unstructured

    @property
    def policy(self) -> str:
        """The policy that a ClusterClass names in the settings of its patch."""
        settings = cast("dict[str, str]", self.request.get("settings") or {})
        return settings.get("policy", "")


class Answers(Protocol):
    """Answers the hooks that only compute."""

    async def answer(self, config: ExtensionConfig, path: str, body: bytes) -> bytes: ...


class UnreachableError(Exception):
    """An extension does not answer."""


@dataclass
class RealExtensions:
    """The extensions of the management cluster, by URL or through the API server's proxy."""

    client: Client
    certificate: ClientCertificate | None = None

    async def answer(self, config: ExtensionConfig, path: str, body: bytes) -> bytes:
        """The response of an extension.

        Raises:
            UnreachableError: It does not respond.
        """
        service = config.spec.client_config.service
        try:
            if service is None:
                endpoint = endpoint_of(config.spec.client_config)
                async with Connections(self.certificate) as connections:
                    response = await connections.post(
                        endpoint, endpoint.path(path), body, seconds=_SECONDS
                    )
                    response.check(config.name)
                    return response.body
            prefix = (service.path or "").rstrip("/")
            proxy = f"https:{service.name}:{service.port or 443}/proxy"
            answer = await self.client.request(
                "POST",
                f"/api/v1/namespaces/{service.namespace}/services/{proxy}{prefix}{path}",
                body=orjson.loads(body),
                timeout=_SECONDS,
            )
            return orjson.dumps(answer)
        except (ClientError, EndpointError, NoResponseError, TimeoutError, ValueError) as error:
            raise UnreachableError(str(error)) from None


@dataclass
class ExtensionStandIn:
    """One server for all extensions."""

    configs: Mapping[str, ExtensionConfig]
    answers: Answers
    calls: list[RecordedCall] = field(default_factory=list[RecordedCall])
    unreachable: dict[str, str] = field(default_factory=dict[str, str])
    """Handlers whose answer is missing, and why."""
    guarding: Collection[str] = ()
    """The policies that hold other plans than the approved one: this plan may become that one."""
    guarded: list[RecordedCall] = field(default_factory=list[RecordedCall])
    """The calls about them."""
    _discovered: set[str] = field(default_factory=set[str])
    _waiting: asyncio.Event = field(default_factory=asyncio.Event)

    async def discovered(self, within: float) -> None:
        """Wait until core has discovered all extensions."""
        async with asyncio.timeout(within):
            while self._discovered < self.configs.keys():
                self._waiting.clear()
                await self._waiting.wait()

    async def respond(self, request: web.Request) -> web.Response:
        """The response to one call."""
        extension, path = request.match_info["extension"], "/" + request.match_info["path"]
        config = self.configs.get(extension)
        if config is None:
            raise web.HTTPNotFound
        body = await request.read()
        if path.endswith(f"/{_DISCOVERY}"):
            self._discovered.add(extension)
            self._waiting.set()
            return _json("Discovery", handlers=handlers_of(config))
        base, _, handler = path.rpartition("/")
        hook = _HOOKS.get(base)
        if hook is None:
            raise web.HTTPNotFound
        name, label = hook.id.name, f"{handler}.{extension}"
        document = cast("Unstructured", orjson.loads(body))
        call = RecordedCall(name, label, document)
        self.calls.append(call)
        if call.policy in self.guarding:
            self.guarded += [call] if name == _VALIDATION else []
            return _json(name)
        if not hook.pure:
            return _json(name, **({"retryAfterSeconds": 0} if hook.blocks() else {}))
        try:
            answer = await self.answers.answer(config, path, body)
        except UnreachableError as error:
            self.unreachable[label] = f"{name} of {label} does not respond: {error}"
            message = self.unreachable[label]
            return _json(name, status="Failure", message=message)
        return web.Response(body=answer, content_type="application/json")


def _json(hook: str, **fields: Any) -> web.Response:
    version = "hooks.runtime.cluster.x-k8s.io/v1alpha1"
    body = {"apiVersion": version, "kind": f"{hook}Response", "status": "Success", **fields}
    return web.json_response(body)


def handlers_of(config: ExtensionConfig) -> list[dict[str, Any]]:
    """The handlers that the discovery of an extension has listed."""
    return [
        {
            "name": handler.name.removesuffix(f".{config.name}"),
            "requestHook": {
                "apiVersion": handler.request_hook.api_version,
                "hook": handler.request_hook.hook,
            },
            "timeoutSeconds": handler.timeout_seconds or 10,
            "failurePolicy": handler.failure_policy or "Fail",
        }
        for handler in config.status.handlers
    ]


def redirected(raw: Unstructured, url: str, ca: bytes) -> Unstructured:
    """An ExtensionConfig that has core call the stand-in."""
    bundle = base64.b64encode(ca).decode()
    metadata: dict[str, Any] = raw["metadata"]
    annotations = cast("dict[str, str]", metadata.get("annotations") or {})
    # Core would replace the CA by that of a Secret.
    kept = {key: value for key, value in annotations.items() if key != _CA_ANNOTATION}
    client_config = {"url": f"{url}/{metadata['name']}", "caBundle": bundle}
    return {
        **raw,
        "metadata": {**metadata, "annotations": kept},
        "spec": {**raw["spec"], "clientConfig": client_config},
    }


@dataclass(frozen=True)
class Listening:
    """A stand-in, and its address."""

    stand_in: ExtensionStandIn
    url: str
    ca: bytes

    def redirect(self, configs: Iterable[Unstructured]) -> list[Unstructured]:
        """The ExtensionConfigs of a sandbox."""
        return [redirected(each, self.url, self.ca) for each in configs]


@asynccontextmanager
async def listening(
    configs: Sequence[ExtensionConfig], answers: Answers, guarding: Collection[str] = ()
) -> AsyncGenerator[Listening]:
    """Serve for these extensions inside the block."""
    stand_in = ExtensionStandIn(
        {config.name: config for config in configs}, answers, guarding=guarding
    )
    now = datetime.now(UTC)
    ca = new_ca("capelin-plan", now=now)
    pair = issue(ca, common_name="extensions", usages=("server",), addresses=(_HOST,), now=now)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, pair.certificate_pem, pair.private_key_pem)
    application = web.Application(client_max_size=_MAX_BYTES)
    application.router.add_post("/{extension}/{path:.*}", stand_in.respond)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    port = free_port(_HOST)
    try:
        await web.TCPSite(runner, _HOST, port, ssl_context=context).start()
        yield Listening(stand_in, f"https://{_HOST}:{port}", ca.certificate_pem)
    finally:
        await runner.cleanup()
