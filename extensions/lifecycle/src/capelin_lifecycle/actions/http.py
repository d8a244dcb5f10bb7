"""Calls a service of the user, and again whenever its response asks for that.

The request is a JSON object with `policy`, `hook`, `cluster` (the whole Cluster), `fromVersion`,
`toVersion` and `id`, which is the same for every request about one occurrence. The answer is
`{"phase": "Waiting"|"Running"|"Done"|"Failed", "message": "...", "retryAfterSeconds": 10}`.
"""

import ssl
from typing import Annotated, Any, Final, Literal

import aiohttp
from annotated_types import Ge, Le, MaxLen
from capelin.api import Model
from capelin.client import (
    AddressRefusedError,
    CredentialError,
    Destinations,
    guarded_connector,
    load_certificate,
    read_at_most,
)
from capelin.controller import redact
from pydantic import ValidationError

from capelin_lifecycle.actions.action import Lasting, Run
from capelin_lifecycle.actions.sources import SourceError, read_secret
from capelin_lifecycle.api.actions import Http
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.verdict import QUICK_SECONDS, SLOW_SECONDS, Verdict, done, waiting

_MAX_BYTES: Final = 65_536


class Answer(Model):
    """The response of a service."""

    phase: Literal["Waiting", "Running", "Done", "Failed"]
    message: Annotated[str, MaxLen(1024)] = ""
    retry_after_seconds: Annotated[int, Ge(1), Le(600)] = QUICK_SECONDS


def http_problems(policy: KnownPolicy) -> list[str]:
    """Certificates that cannot be read."""
    http = policy.spec.action.http
    if http is not None and http.ca_bundle is not None:
        try:
            ssl.create_default_context(cadata=http.ca_bundle)
        except ssl.SSLError:
            return ["caBundle must contain certificates in PEM"]
    return []


class HttpRunner(Lasting):
    async def reconcile(self, run: Run) -> Verdict:
        http = run.policy.spec.action.http
        if http is None:
            return done()
        try:
            context = await _tls(run, http)
            headers = await _headers(run, http)
        except SourceError as error:
            return waiting(str(error), SLOW_SECONDS)
        try:
            body = await _post(http, context, headers, request_of(run))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return waiting(f"{http.url} does not respond ({_reason(error)})", SLOW_SECONDS)
        if isinstance(body, str):
            return waiting(f"{http.url} {body}", SLOW_SECONDS)
        try:
            answer = Answer.read_json(body)
        except ValidationError:
            return waiting(
                f"{http.url} sent an invalid response (the guide describes the format)",
                SLOW_SECONDS,
            )
        return Verdict(answer.phase, redact(answer.message), answer.retry_after_seconds)


def request_of(run: Run) -> dict[str, Any]:
    spec = run.result.spec
    return {
        "id": "-".join(run.result.attempt_id),
        "policy": {"namespace": run.policy.namespace, "name": run.policy.name},
        "hook": spec.hook,
        "fromVersion": spec.from_version,
        "toVersion": spec.to_version,
        "cluster": run.cluster_json,
    }


async def _tls(run: Run, http: Http) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=http.ca_bundle)
    if http.client_certificate is not None:
        data = await read_secret(run.client, run.secrets_namespace, http.client_certificate)
        try:
            load_certificate(context, data["tls.crt"], data["tls.key"])
        except CredentialError:
            name = http.client_certificate.name
            raise SourceError(f"Secret {name} must contain a certificate and its key") from None
    return context


async def _headers(run: Run, http: Http) -> dict[str, str]:
    if http.token is None:
        return {}
    data = await read_secret(run.client, run.secrets_namespace, http.token)
    token = data[http.token.key].strip()
    if not token.isascii() or not token.decode("ascii").isprintable():
        raise SourceError(f"{http.token.key} of Secret {http.token.name} cannot be a token")
    return {"Authorization": f"Bearer {token.decode()}"}


async def _post(
    http: Http, context: ssl.SSLContext, headers: dict[str, str], body: dict[str, Any]
) -> bytes | str:
    """The body of the response, or its problem."""
    timeout = aiohttp.ClientTimeout(total=http.timeout_seconds)
    connector = guarded_connector(Destinations.from_environ(), tls=context)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session,
        session.post(http.url, json=body, allow_redirects=False) as response,
    ):
        if response.status != 200:
            return f"responds with HTTP status {response.status}"
        content = await read_at_most(response, _MAX_BYTES)
        if content is None:
            return f"responds with more than {_MAX_BYTES // 1024} KiB"
        return content


def _reason(error: BaseException) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return "its certificate is not trusted, or it does not accept ours"
        case TimeoutError():
            return "timed out"
        case aiohttp.ClientConnectorError(os_error=AddressRefusedError() as refused):
            return str(refused.strerror)
        case aiohttp.ClientConnectorError():
            return "no connection"
        case _:
            return type(error).__name__
