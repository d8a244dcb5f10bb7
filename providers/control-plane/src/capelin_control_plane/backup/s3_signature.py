"""Signatures of requests to S3: AWS Signature Version 4, in headers. Pure."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """An access key."""

    key_id: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    """The session token of a temporary key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Request:
    """The parts of a request that its signature covers."""

    method: str
    host: str
    """With the port, unless it is the default of the scheme."""
    path: str
    query: Mapping[str, str]
    sha256: str
    """The hash of the body, in hexadecimal digits."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Others to sign, in lower case."""

    @property
    def target(self) -> str:
        """Path and query as they are sent."""
        path = quote(self.path, safe="/-._~")
        pairs = sorted((_quoted(name), _quoted(value)) for name, value in self.query.items())
        query = "&".join(f"{name}={value}" for name, value in pairs)
        return f"{path}?{query}" if query else path


def signed_headers(
    request: S3Request, credentials: S3Credentials, region: str, now: datetime
) -> dict[str, str]:
    """All headers of a request, its signature included."""
    moment = f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    headers = {
        **request.headers,
        "host": request.host,
        "x-amz-content-sha256": request.sha256,
        "x-amz-date": moment,
    }
    if credentials.token is not None:
        headers["x-amz-security-token"] = credentials.token
    names = ";".join(sorted(headers))
    path, _, query = request.target.partition("?")
    lines = [request.method, path, query]
    lines += [f"{name}:{headers[name].strip()}" for name in sorted(headers)]
    lines += ["", names, request.sha256]
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    key = f"AWS4{credentials.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"{_ALGORITHM}\n{moment}\n{scope}\n{digest}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.key_id}/{scope},SignedHeaders={names},"
        f"Signature={signature}"
    )
    return headers


def _quoted(text: str) -> str:
    return quote(text, safe="-._~")
