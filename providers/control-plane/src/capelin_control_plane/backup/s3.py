"""Buckets of S3 as stores of backups.

Small, because the provider needs few operations of S3. Decision 194 has the alternatives.
"""

import asyncio
import hashlib
import hmac
import random
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

import aiohttp
from capelin.backoff import exponential_delay
from capelin.client import AddressRefusedError, describe_connection_error
from yarl import URL

from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backup.stores import LARGEST_READ, MOST_FILES, StoreError

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_ALGORITHM = "AWS4-HMAC-SHA256"
PART_BYTES: Final = 8 << 20
"""At most 10000 parts make an object of 80 GiB. Some servers want parts of one size."""
TIMEOUT: Final = aiohttp.ClientTimeout(total=300, sock_connect=10, sock_read=60)
_ATTEMPTS: Final = 5
_LARGEST_ANSWER: Final = 2 << 20
_PIECE: Final = 256 << 10
_ABORT_SECONDS: Final = 3.0
_CODE: Final = re.compile(r"[A-Za-z0-9.]{1,64}")
_CONTENT_RANGE: Final = re.compile(r"bytes \d{1,15}-\d{1,15}/(\d{1,15})")
_REGION: Final = re.compile(r"[a-z0-9-]{1,32}")
_BUSY: Final = frozenset({429, 500, 502, 503, 504})
_WRONG_KEY: Final = frozenset(
    {
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_WRONG_REGION: Final = frozenset(
    {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A folder in a bucket. Nothing outside of it is read or listed."""

    endpoint: str
    """Such as `https://s3.eu-central-1.amazonaws.com`. The bucket is part of the path."""
    region: str
    name: str
    folder: str
    """The beginning of all keys, with a slash at its end."""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def xml(self) -> ET.Element:
        """The body. Not trusted."""
        try:
            text = self.body.decode()
            if "<!" in text:
                raise StoreError("the answer of S3 has a document type")
            root = ET.fromstring(text)  # noqa: S314 - bounded, and without entities
        except (ET.ParseError, UnicodeDecodeError):
            raise StoreError("the answer of S3 cannot be read") from None
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        return root

    @property
    def code(self) -> str:
        """The code of an error, or an empty text."""
        try:
            code = self.xml().findtext("Code") or "" if self.body else ""
        except StoreError:
            return ""
        return code if _CODE.fullmatch(code) else ""


class S3Store:
    """A folder in a bucket."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        bucket: Bucket,
        credentials: S3Credentials,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._session, self._bucket, self._credentials = session, bucket, credentials
        self._now = now

    async def names(self) -> list[str]:
        names: list[str] = []
        folder = self._bucket.folder
        query = {
            "list-type": "2",
            "prefix": folder,
            "delimiter": "/",
            "encoding-type": "url",
        }
        while True:
            page = (await self.request("GET", None, query)).xml()
            keys = (unquote(text.text or "") for text in page.findall("Contents/Key"))
            # Consoles create an object for the folder itself.
            names += [key.removeprefix(folder) for key in keys if key != folder]
            token = page.findtext("NextContinuationToken")
            if page.findtext("IsTruncated") != "true" or not token:
                return names
            if len(names) > MOST_FILES or query.get("continuation-token") == token:
                raise StoreError(f"{folder} has more than {MOST_FILES} files")
            query["continuation-token"] = token

    async def read(self, name: str) -> bytes | None:
        answer = await self.request("GET", name, missing=True)
        return None if answer.status == 404 else answer.body[:LARGEST_READ]

    async def open(self, name: str) -> AsyncGenerator[bytes]:
        """The content of a file. Each part is a request. If it fails, only this one repeats."""
        start, total = 0, 1
        while start < total:
            last = start + PART_BYTES - 1
            answer = await self.request(
                "GET", name, headers={"range": f"bytes={start}-{last}"}, largest=PART_BYTES
            )
            total = _total_of(answer)
            if not answer.body:
                raise StoreError(f"the answer of S3 has no content of {name}")
            start += len(answer.body)
            yield answer.body

    async def create(self, name: str) -> "S3Upload":
        return S3Upload(self, name)

    async def delete(self, name: str) -> None:
        await self.request("DELETE", name, missing=True)

    async def abort_uploads(self) -> None:
        """Abort uploads that another provider did not finish, if the credentials allow to list."""
        query = {"uploads": "", "prefix": self._bucket.folder, "encoding-type": "url"}
        try:
            uploads = (await self.request("GET", None, query)).xml().findall("Upload")
        except StoreError:
            # A lifecycle rule of the bucket can delete them too.
            return
        for upload in uploads:
            key, id_ = unquote(upload.findtext("Key") or ""), upload.findtext("UploadId")
            name = key.removeprefix(self._bucket.folder)
            if name != key and "/" not in name and id_:
                await self.request("DELETE", name, {"uploadId": id_}, missing=True)

    async def request(
        self,
        method: str,
        name: str | None,
        query: Mapping[str, str] | None = None,
        *,
        body: Sequence[bytes | memoryview] = (),
        sha256: str = EMPTY_SHA256,
        headers: Mapping[str, str] | None = None,
        largest: int = _LARGEST_ANSWER,
        missing: bool = False,
        attempts: int = _ATTEMPTS,
    ) -> _Answer:
        """Send a request, and again while the server is busy or the connection breaks.

        Args:
            method: The HTTP method.
            name: The file, or None for the bucket.
            query: The query.
            body: Its pieces.
            sha256: The hash of the body.
            headers: More headers.
            largest: How many bytes the answer may have.
            missing: Whether a missing file or upload counts as success.
            attempts: How often to try.
        """
        bucket = self._bucket
        path = f"/{bucket.name}" if name is None else f"/{bucket.name}/{bucket.folder}{name}"
        request = S3Request(
            method=method,
            host=urlsplit(bucket.endpoint).netloc,
            path=path,
            query=query or {},
            sha256=sha256,
            headers=headers or {},
        )
        for attempt in range(1, attempts + 1):
            try:
                answer = await self._send(request, body, largest)
            except (aiohttp.ClientError, TimeoutError) as error:
                if attempt == attempts or _is_refused(error):
                    raise StoreError(f"{bucket.endpoint}: {_connection_problem(error)}") from error
            else:
                if answer.status in (200, 204, 206) or (missing and _is_missing(answer)):
                    return answer
                # S3 answers a request that came too slowly with 400.
                is_busy = answer.status in _BUSY or answer.code == "RequestTimeout"
                if attempt == attempts or not is_busy:
                    raise self._error(answer, method)
            delay = exponential_delay(attempt, first=0.5, longest=8)
            await asyncio.sleep(delay * (0.5 + random.random() / 2))  # noqa: S311
        raise AssertionError("unreachable")

    async def _send(
        self, request: S3Request, body: Sequence[bytes | memoryview], largest: int
    ) -> _Answer:
        headers = signed_headers(request, self._credentials, self._bucket.region, self._now())
        if body:
            headers["content-length"] = str(sum(map(len, body)))
        async with self._session.request(
            request.method,
            URL(f"{self._bucket.endpoint}{request.target}", encoded=True),
            headers=headers,
            data=_pieces(body) if body else None,
            allow_redirects=False,
        ) as response:
            content = bytearray()
            async for piece in response.content.iter_any():
                content += piece
                if len(content) > largest:
                    response.close()
                    raise StoreError(f"{self._bucket.endpoint} answers with too many bytes")
            return _Answer(response.status, response.headers, bytes(content))

    def _error(self, answer: _Answer, method: str) -> StoreError:
        endpoint, bucket, code = self._bucket.endpoint, self._bucket.name, answer.code
        reason = Reason.BACKUP_DESTINATION_NOT_USABLE
        if code == "RequestTimeTooSkewed":
            return StoreError(f"the clocks of the provider and of {endpoint} differ", reason)
        if code in _WRONG_KEY:
            return StoreError(f"{endpoint} does not accept the credentials ({code})", reason)
        if code == "NoSuchBucket":
            return StoreError(f"{endpoint} has no bucket {bucket}", reason)
        if code in _WRONG_REGION or answer.status in (301, 307):
            region = answer.headers.get("x-amz-bucket-region", "")
            where = f" {region}" if _REGION.fullmatch(region) else ""
            return StoreError(f"bucket {bucket} is in another region{where}", reason)
        if answer.status == 403:
            return StoreError(
                f"the credentials do not allow {method} in {bucket}/{self._bucket.folder}", reason
            )
        shown = code or f"HTTP status {answer.status}"
        is_ours = 400 <= answer.status < 500 and answer.status not in _BUSY
        reason = reason if is_ours else Reason.BACKUP_FAILED
        return StoreError(f"{endpoint} answers {method} with {shown}", reason)


class S3Upload:
    """A new object: sent at once if it is small, and in parts otherwise."""

    def __init__(self, store: S3Store, name: str) -> None:
        self._store, self._name = store, name
        self._id: str | None = None
        self._tags: list[str] = []
        self._pieces: list[memoryview] = []
        self._size, self._hash = 0, hashlib.sha256()

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            piece, view = view[: PART_BYTES - self._size], view[PART_BYTES - self._size :]
            self._pieces.append(piece)
            self._hash.update(piece)
            self._size += len(piece)
            if self._size == PART_BYTES:
                await self._send_part()

    async def finish(self) -> None:
        if self._id is None:
            await self._send({})
            return
        if self._size:
            await self._send_part()
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(tag)}</ETag></Part>"
            for number, tag in enumerate(self._tags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        sha256 = hashlib.sha256(body).hexdigest()
        answer = await self._store.request(
            "POST", self._name, {"uploadId": self._id}, body=[body], sha256=sha256
        )
        # S3 may send the status before the result.
        if answer.xml().tag != "CompleteMultipartUploadResult":
            raise StoreError(f"S3 did not complete an upload ({answer.code or 'no reason'})")

    async def abort(self) -> None:
        if self._id is not None:
            query = {"uploadId": self._id}
            try:
                async with asyncio.timeout(_ABORT_SECONDS):
                    await self._store.request("DELETE", self._name, query, attempts=1)
            except (StoreError, TimeoutError):
                return  # The next backup aborts it.

    async def _send_part(self) -> None:
        if self._id is None:
            started = await self._store.request("POST", self._name, {"uploads": ""})
            self._id = started.xml().findtext("UploadId")
            if not self._id:
                raise StoreError("S3 did not begin an upload")
        number = str(len(self._tags) + 1)
        tag = await self._send({"partNumber": number, "uploadId": self._id})
        self._tags.append(tag)

    async def _send(self, query: Mapping[str, str]) -> str:
        answer = await self._store.request(
            "PUT", self._name, query, body=self._pieces, sha256=self._hash.hexdigest()
        )
        self._pieces, self._size, self._hash = [], 0, hashlib.sha256()
        return answer.headers.get("ETag", "")


async def _pieces(body: Sequence[bytes | memoryview]) -> AsyncGenerator[bytes | memoryview]:
    for piece in body:
        for start in range(0, len(piece), _PIECE):
            yield piece[start : start + _PIECE]


def _total_of(answer: _Answer) -> int:
    """The size of the file of which an answer has a part."""
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if answer.status != 206 or match is None:
        raise StoreError("S3 does not answer with the requested part of a file")
    return int(match[1])


def _is_missing(answer: _Answer) -> bool:
    return answer.status == 404 and answer.code in {"NoSuchKey", "NoSuchUpload"}


def _is_refused(error: Exception) -> bool:
    return isinstance(error, aiohttp.ClientConnectorError) and isinstance(
        error.os_error, AddressRefusedError
    )


def _connection_problem(error: Exception) -> str:
    return (
        describe_connection_error(error) if isinstance(error, aiohttp.ClientError) else "it hangs"
    )
