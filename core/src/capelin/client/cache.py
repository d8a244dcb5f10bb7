"""Objects that have not changed since they were read, for reads that need no request.

A watch delivers the version of each object of its kind. The cache keeps objects that its client
reads, and answers with an object while its version is the delivered one. After the client has read
or written a later version, the cache does not answer until the watch delivers that version. So an
answer is never older than an earlier read or write of the client. The cache never answers that an
object does not exist.

Call everything but `Feed.delivered` in the event loop of the client.
"""

import re
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote

from capelin.api import Resource
from capelin.client.codecs import path_of
from capelin.client.transport import Request
from capelin.json_text import read_json

_MAX_BYTES: Final = 16 << 20
"""Memory for the objects of one kind: about 10,000 machines. The cache drops the objects that were
not read for the longest time."""
_MAX_OBJECT: Final = 256 << 10
"""The cache does not keep larger objects."""
_ENTRY_BYTES: Final = 300
"""Memory of an entry besides its object."""
_OBJECT_PATH: Final = re.compile(
    r"(?P<object>(?P<group>/api/[^/]+|/apis/[^/]+/[^/]+)(?:/namespaces/[^/]+)?"
    r"(?P<plural>/[^/]+)/[^/]+)(?P<subresource>/[^/]+)?"
)


class Delivered(NamedTuple):
    """The version of an object, from a watch."""

    path: str
    version: int
    """0 if no other version can be compared with it."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """The client's knowledge of an object. Each read or write that adds to it creates a new one."""

    version: int = 0
    """The latest version that the client has read or written."""
    data: bytes | None = None
    """The object of this version, as compressed JSON."""

    @property
    def size(self) -> int:
        return _ENTRY_BYTES + len(self.data or b"")


class Feed:
    """The objects of one kind: the versions from the watch, and the knowledge of the client."""

    def __init__(self, resource: Resource, *, max_bytes: int = _MAX_BYTES) -> None:
        self.resource = resource
        self._max_bytes = max_bytes
        self._stream: object = None
        self._delivered: dict[str, int] = {}
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._unknown = Known()
        """Stands for all objects without an entry."""
        self._size = 0

    # Of the watch

    def delivered(self, obj: Mapping[str, Any]) -> Delivered:
        """The version of an object from a watch. Call this in any thread."""
        metadata = cast("Mapping[str, Any]", obj["metadata"])
        path = path_of(self.resource, metadata.get("namespace") or None, metadata["name"])
        return Delivered(path, version_of(metadata))

    def open(self, stream: object) -> None:
        """A watch has begun or continues. Without an open watch, the cache does not answer."""
        self._stream = stream

    def close(self, stream: object) -> None:
        """A watch has ended. Another one may have begun before."""
        if self._stream is stream:
            self._stream = None

    def restart(self) -> None:
        """A list begins. Objects may have been deleted before, or restored from a backup."""
        self._delivered.clear()
        self.forget_all()

    def deliver(self, objects: Iterable[Delivered]) -> None:
        """Objects were listed, created or changed. A watch may repeat events."""
        for path, version in objects:
            if version == 0:
                self._delivered.pop(path, None)
                continue
            self._delivered[path] = max(version, self._delivered.get(path, 0))
            if self.known(path).version < version:
                self._forget(path)

    def remove(self, deleted: Delivered) -> None:
        """An object was deleted, or the watch's selector no longer selects it.

        A later object with the same name stays.
        """
        path, version = deleted
        if version == 0 or self._delivered.get(path, 0) <= version:
            self._delivered.pop(path, None)
        if self.known(path).version <= version:
            self._forget(path)

    # Of the client

    def read(self, path: str) -> bytes | None:
        """The JSON of an object, or None if only the API server can answer."""
        known = self._known.get(path)
        if known is None or known.data is None or self._stream is None:
            return None
        if self._delivered.get(path) != known.version:
            return None
        self._known.move_to_end(path)
        return zlib.decompress(known.data)

    def known(self, path: str) -> Known:
        return self._known.get(path, self._unknown)

    def learn(self, path: str, version: int, body: bytes | None, before: Known) -> None:
        """The client has read or written a version of an object.

        Args:
            path: The object's path.
            version: The version, or 0 if it is unknown. Then the next read is a request.
            body: The object, or None to keep nothing.
            before: The result of `known` when the request began. After a later result, the
                response may be outdated, and is not kept.
        """
        known = self.known(path)
        if version == 0 and known is self._unknown:
            self._unknown = Known()
            return
        if version == 0:
            self._put(path, Known(known.version))
            return
        if known is not before or path not in self._delivered:
            body = None
        if version > known.version or (version == known.version and body is not None):
            if body is not None and len(body) > _MAX_OBJECT:
                body = None
            self._put(path, Known(version, body and zlib.compress(body, 1)))

    def forget_all(self) -> None:
        """The client has deleted any number of objects. The next reads are requests."""
        self._known.clear()
        self._unknown = Known()
        self._size = 0

    def _put(self, path: str, known: Known) -> None:
        self._size += known.size - (self._known[path].size if path in self._known else 0)
        self._known[path] = known
        self._known.move_to_end(path)
        while self._size > self._max_bytes:
            self._forget(next(iter(self._known)))

    def _forget(self, path: str) -> None:
        """Drop an entry. Responses to earlier requests may be older than it was."""
        known = self._known.pop(path, None)
        if known is not None:
            self._size -= known.size
            self._unknown = Known()


class Target(NamedTuple):
    """The object that a request is about."""

    feed: Feed
    path: str
    is_object: bool
    """Whether the response is the object. Of the subresources, only `status` returns it."""


class ObjectCache:
    """The feeds of a client's watched kinds."""

    def __init__(self) -> None:
        self._feeds: dict[str, Feed] = {}

    def follow(self, resource: Resource, *, max_bytes: int = _MAX_BYTES) -> Feed:
        """The feed for a new watch of a kind. It replaces that of an earlier watch."""
        feed = self._feeds[resource.path()] = Feed(resource, max_bytes=max_bytes)
        return feed

    def read(self, request: Request) -> bytes | None:
        """The body of the response to a request, or None if the request must be sent."""
        if request.method != "GET" or request.parameters:
            return None
        target = self._target(request.path)
        return None if target is None else target.feed.read(request.path)

    def known(self, request: Request) -> Known | None:
        """The knowledge about the object of a request, or None if its kind is not watched."""
        target = self._target(request.path)
        return None if target is None else target.feed.known(target.path)

    def learn(
        self, request: Request, body: bytes | None, before: Known | None, *, keep: bool
    ) -> None:
        """Record the outcome of a request.

        Args:
            request: The request.
            body: The body of its response, or None if it failed or was cancelled. The API server
                may still have processed it.
            before: The result of `known` when the request began.
            keep: Keep the object that was read.
        """
        is_read = request.method == "GET"
        if "dryRun" in request.parameters or (is_read and request.parameters):
            return
        if request.method == "DELETE" and self._target(request.path) is None:
            # Of all objects in a namespace or in the cluster.
            collection = self._target(f"{request.path}/-")
            if collection is not None:
                collection.feed.forget_all()
        target = self._target_of(request, body)
        if target is None:
            return
        # A deletion may return the object as it was before.
        has_version = target.is_object and request.method != "DELETE"
        version = version_of(_metadata_in(body)) if has_version else 0
        kept = body if keep and is_read else None
        target.feed.learn(target.path, version, kept, before or Known())

    def _target_of(self, request: Request, body: bytes | None) -> Target | None:
        if request.method == "POST" and self._target(f"{request.path}/-") is not None:
            name = (_metadata_in(body) or _metadata_in(request.body)).get("name", "-")
            return self._target(f"{request.path}/{quote(name, safe=':')}")
        return self._target(request.path)

    def _target(self, path: str) -> Target | None:
        match = _OBJECT_PATH.fullmatch(path)
        feed = None if match is None else self._feeds.get(match["group"] + match["plural"])
        if match is None or feed is None:
            return None
        return Target(feed, match["object"], match["subresource"] in {None, "/status"})


def version_of(metadata: Mapping[str, Any]) -> int:
    """The version in an object's metadata, or 0 if it is not a number.

    Versions of one kind can be compared: the API server increases them with each write.
    """
    version = metadata.get("resourceVersion")
    return int(version) if isinstance(version, str) and version.isdecimal() else 0


def _metadata_in(body: bytes | None) -> dict[str, Any]:
    try:
        metadata: Any = read_json(body or b"{}")["metadata"]
    except (ValueError, KeyError, TypeError):
        return {}
    return cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
