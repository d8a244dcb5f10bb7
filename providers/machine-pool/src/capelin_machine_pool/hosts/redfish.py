"""A client of Redfish, the API of a server's management controller, for power cycles only."""

import asyncio
import base64
from typing import Annotated, Final

import aiohttp
from capelin.api import Model
from capelin.client import (
    CredentialError,
    Destinations,
    describe_connection_error,
    guarded_connector,
    read_at_most,
    tls_context,
)
from pydantic import Field, ValidationError
from yarl import URL

_SECONDS: Final = 30.0
_MAX_BYTES: Final = 1 << 20
_OF_RUNNING: Final = ("ForceRestart", "PowerCycle", "GracefulRestart")
_OF_STOPPED: Final = ("On", "ForceOn")


class RedfishError(Exception):
    """The service does not answer, or rejects a request."""


class _Reset(Model):
    target: str = ""
    types: Annotated[list[str], Field(alias="ResetType@Redfish.AllowableValues")] = []


class _Actions(Model):
    reset: Annotated[_Reset, Field(alias="#ComputerSystem.Reset")] = _Reset()


class System(Model):
    """The part of a Redfish ComputerSystem that a power cycle needs."""

    power_state: Annotated[str, Field(alias="PowerState")] = ""
    actions: Annotated[_Actions, Field(alias="Actions")] = _Actions()


async def power_cycle(
    url: str,
    *,
    user: str,
    password: str,
    ca_bundle: str | None,
    destinations: Destinations | None,
) -> None:
    """Restart a server, or switch it on if it is off.

    Args:
        url: The ComputerSystem.
        user: The name of a user of the service.
        password: The user's password.
        ca_bundle: CAs of the service in PEM. None: those of this machine.
        destinations: Addresses that are allowed. None allows all.

    Raises:
        RedfishError: The service does not answer, or rejects it.
    """
    where = URL(url).host
    try:
        # It reads the CAs of the system, which takes time.
        ca = None if ca_bundle is None else ca_bundle.encode()
        tls = await asyncio.to_thread(tls_context, ca, None, None)
    except CredentialError:
        raise RedfishError("caBundle does not contain certificates in PEM") from None
    try:
        async with aiohttp.ClientSession(
            connector=guarded_connector(destinations, tls=tls),
            timeout=aiohttp.ClientTimeout(total=_SECONDS),
            headers={"Authorization": basic_auth(user, password)},
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session:
            async with session.get(url, allow_redirects=False) as response:
                content = await _read(response)
            target, kind = reset_of(System.read_json(content))
            address = URL(url).origin().join(URL(target, encoded=True))
            body = {"ResetType": kind}
            async with session.post(address, json=body, allow_redirects=False) as response:
                await _read(response)
    except aiohttp.ClientError as error:
        raise RedfishError(f"{where}: {describe_connection_error(error)}") from None
    except TimeoutError:
        raise RedfishError(f"{where} does not answer in time") from None
    except ValidationError:
        raise RedfishError(f"{where} does not answer with a ComputerSystem") from None


def basic_auth(user: str, password: str) -> str:
    """The header that logs in."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def reset_of(system: System) -> tuple[str, str]:
    """The path of the action that restarts a system, and the kind of the restart.

    Raises:
        RedfishError: The system has no such action.
    """
    reset = system.actions.reset
    # Credentials are sent there, so it has to be on the same server.
    if not reset.target.startswith("/") or reset.target.startswith("//"):
        raise RedfishError("the system has no action #ComputerSystem.Reset")
    kinds = _OF_STOPPED if system.power_state == "Off" else _OF_RUNNING
    kind = next((kind for kind in kinds if not reset.types or kind in reset.types), None)
    if kind is None:
        raise RedfishError(f"the system supports none of {', '.join(kinds)}")
    return reset.target, kind


async def _read(response: aiohttp.ClientResponse) -> bytes:
    if response.status == 401:
        raise RedfishError(f"{response.url.host} rejects the user or the password")
    if not 200 <= response.status < 300:
        raise RedfishError(f"{response.url.host} answers with HTTP status {response.status}")
    content = await read_at_most(response, _MAX_BYTES)
    if content is None:
        raise RedfishError(f"{response.url.host} answers with more than 1 MiB")
    return content
