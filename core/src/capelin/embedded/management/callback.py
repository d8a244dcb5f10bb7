"""Whether an API server can call this machine, found out by having it call."""

import asyncio
import base64
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

from aiohttp import web

from capelin.api import Unstructured
from capelin.client import ApiError, Client
from capelin.embedded.addresses import free_port
from capelin.embedded.management.manifests import MARK, WEBHOOKS
from capelin.embedded.management.plan import EVERYWHERE
from capelin.pki import KeyPair, issue, new_ca

_, _CONFIGURATIONS = WEBHOOKS
# An API server notices a new configuration within a second or two.
_SECONDS: Final = 15.0
_CALL_SECONDS: Final = 3
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Called:
    """What came of asking an API server to call several addresses."""

    addresses: frozenset[str]
    """Where calls arrived."""
    complaint: str = ""
    """What the API server said where none did."""


async def callable_from(client: Client, addresses: Sequence[str], mark: str) -> Called:
    """Have the API server call all of these addresses of this machine, and see which calls come.

    It is asked to accept an object that it then does not keep, and a webhook for that object alone
    is put into it meanwhile.
    """
    # Always the same for an environment: what an `up` that was killed left is replaced, and goes.
    name = f"capelin-callback-{mark.partition('.')[0]}"
    probe = f"capelin-callback-{uuid4().hex[:8]}"
    async with _listening(addresses) as listener:
        hooks = [listener.webhook(number, probe) for number in range(len(addresses))]
        try:
            await client.apply(
                {
                    "apiVersion": _CONFIGURATIONS.api_version,
                    "kind": _CONFIGURATIONS.kind,
                    "metadata": {"name": name, "labels": {MARK: mark}},
                    "webhooks": hooks,
                }
            )
            complaint = await _ask(client, probe, listener)
        finally:
            await client.delete(_CONFIGURATIONS, name)
    return Called(frozenset(addresses[number] for number in listener.called), complaint)


class _Listener:
    """Takes the calls, and knows through which address each one came."""

    def __init__(self, addresses: Sequence[str], port: int, ca: KeyPair) -> None:
        self._addresses = addresses
        self.port = port
        self._ca = ca
        self.called: set[int] = set()

    def webhook(self, number: int, name: str) -> Unstructured:
        """What calls one of the addresses when an object of that name is created."""
        return {
            "name": f"callback-{number}.capelin.cluster.x-k8s.io",
            "clientConfig": {
                "url": f"https://{self._addresses[number]}:{self.port}/{number}",
                "caBundle": base64.b64encode(self._ca.certificate_pem).decode(),
            },
            "rules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["configmaps"],
                }
            ],
            "objectSelector": {"matchLabels": {MARK: name}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "timeoutSeconds": _CALL_SECONDS,
            "admissionReviewVersions": ["v1"],
        }

    async def answer(self, request: web.Request) -> web.Response:
        """Note the call, and have nothing against the object."""
        self.called.add(int(request.match_info["number"]))
        review: dict[str, Any] = await request.json()
        response = {"uid": review["request"]["uid"], "allowed": True}
        return web.json_response(
            {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}
        )


@asynccontextmanager
async def _listening(addresses: Sequence[str]) -> AsyncGenerator[_Listener]:
    """A server on all addresses, as webhooks are, for as long as the block lasts."""
    now = datetime.now(UTC)
    ca = new_ca("capelin-callback", now=now)
    listener = _Listener(addresses, free_port(EVERYWHERE), ca)
    application = web.Application()
    application.router.add_post(r"/{number:\d+}", listener.answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, EVERYWHERE, listener.port, ssl_context=_proof(ca, addresses))
        await site.start()
        yield listener
    finally:
        await runner.cleanup()


def _proof(ca: KeyPair, addresses: Sequence[str]) -> ssl.SSLContext:
    pair = issue(
        ca,
        common_name="capelin-callback",
        usages=("server",),
        addresses=addresses,
        now=datetime.now(UTC),
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # Python reads certificates from files only. This folder is for our eyes, and gone in a moment.
    with TemporaryDirectory() as folder:
        file = Path(folder) / "pair.pem"
        file.write_bytes(pair.certificate_pem + pair.private_key_pem)
        context.load_cert_chain(file)
    return context


async def _ask(client: Client, name: str, listener: _Listener) -> str:
    """Ask until calls came or failed; what the API server says if they failed."""
    probe = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", "labels": {MARK: name}},
    }
    deadline = asyncio.get_running_loop().time() + _SECONDS
    while asyncio.get_running_loop().time() < deadline:
        try:
            await client.create(probe, dry_run=True)
        except ApiError as error:
            # All webhooks were called by now, whichever of them failed.
            return str(error)
        if listener.called:
            return ""
        await asyncio.sleep(_POLL_SECONDS)
    return f"it was asked to, and made no call within {_SECONDS:.0f} s"
