"""Decides about each request before the application gets it, and adds headers to each response.

Every program on this machine, and every page in the user's browser, can send requests to the port.
"""

import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

API: Final = "/api/"
SESSION: Final = "/api/v1alpha1/session"
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """The response to a rejected request."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body."""

    method: str
    path: str
    headers: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Values by name in lower case."""

    @classmethod
    def of(cls, scope: Scope) -> "Head":
        """The head of a request in the form of ASGI."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        return cls(scope["method"], scope["path"], headers)

    def one(self, name: str) -> str | None:
        """The only value of a header. None if it is missing or repeated."""
        values = self.headers.get(name, ())
        return values[0] if len(values) == 1 else None


@dataclass(slots=True)
class Access:
    """The secrets of one server."""

    hosts: frozenset[str]
    """The values of the header Host that mean this server."""
    key: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """Authenticates the requests of a page. It is never part of an address."""
    link_token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """Opens a page once: an address stays in the browser's history."""

    @classmethod
    def at(cls, port: int) -> "Access":
        """The access to a server on this machine."""
        return cls(frozenset({f"127.0.0.1:{port}", f"localhost:{port}"}))

    def renew_link(self) -> None:
        """Make the present link invalid."""
        self.link_token = secrets.token_urlsafe(32)


def refusal(head: Head, access: Access) -> Refusal | None:
    """Why a request is rejected. None if it is not."""
    checks = (_foreign_name, _unsupported, _foreign_page, _without_secret)
    return next((refused for check in checks if (refused := check(head, access))), None)


def _foreign_name(head: Head, access: Access) -> Refusal | None:
    """Another name may be that of an attacker's page, which DNS now resolves to this machine."""
    known = head.one("host") in access.hosts
    return None if known else Refusal(421, "This server has another name.")


def _unsupported(head: Head, _access: Access) -> Refusal | None:
    allowed = {"GET", "HEAD", "POST"} if head.path.startswith(API) else {"GET", "HEAD"}
    if head.method not in allowed:
        return Refusal(405, "This method is not supported.")
    if head.headers.get("transfer-encoding") or head.headers.get("content-length", ["0"]) != ["0"]:
        return Refusal(413, "Requests have no body.")
    return None


def _foreign_page(head: Head, access: Access) -> Refusal | None:
    is_foreign = "origin" in head.headers and not _is_own_origin(head, access)
    if head.path.startswith(API):
        site = head.headers.get("sec-fetch-site", ["same-origin"])
        is_foreign = is_foreign or site != ["same-origin"]
    return Refusal(403, "Requests of other pages are rejected.") if is_foreign else None


def _without_secret(head: Head, access: Access) -> Refusal | None:
    if not head.path.startswith(API):
        return None
    expected = access.link_token if head.path == SESSION else access.key
    if _is_bearer(head, expected):
        return None
    return Refusal(401, "Open the link that capelin ui printed.")


def _is_own_origin(head: Head, access: Access) -> bool:
    return head.one("origin") in {f"http://{host}" for host in access.hosts}


def _is_bearer(head: Head, expected: str) -> bool:
    scheme, _, token = (head.one("authorization") or "").partition(" ")
    is_equal = hmac.compare_digest(token.encode("latin-1"), expected.encode())
    return scheme.lower() == "bearer" and is_equal


@dataclass(frozen=True, slots=True)
class Gate:
    """Passes accepted requests to an application."""

    application: Application
    access: Access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.encode() for name in HEADERS}
                others = [each for each in message.get("headers", ()) if each[0].lower() not in own]
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*others, *added]
            await send(message)

        refused = refusal(Head.of(scope), self.access)
        if refused is None:
            await self.application(scope, receive, send_with_headers)
            return
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await send_with_headers(
            {"type": "http.response.start", "status": refused.status, "headers": headers}
        )
        await send_with_headers({"type": "http.response.body", "body": refused.text.encode()})
