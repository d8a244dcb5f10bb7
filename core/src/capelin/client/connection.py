"""A connection to one API server: its life, its kinds, and requests of any sort."""

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote

from capelin.api import Resource
from capelin.client.config import Config
from capelin.client.errors import NotServed
from capelin.client.transport import Call, Options, Transport


class Connection:
    """One API server and one user of it, and what does not depend on a kind.

    Args:
        config: which server, and as whom.
        manager: the name under which `apply` owns fields.
        options: how hard and how patiently to ask.
    """

    def __init__(
        self, config: Config, *, manager: str = "capelin", options: Options | None = None
    ) -> None:
        self.config = config
        self.manager = manager
        self._transport = Transport(config, options or Options())
        self._discovered: dict[str, tuple[Resource, ...]] = {}

    @classmethod
    async def connect(
        cls, config: Config, *, manager: str = "capelin", options: Options | None = None
    ) -> Self:
        """A connection to a server that answers and knows us; the caller closes it.

        Raises:
            Unreachable: the server does not answer.
            Unauthorized: it does not know who we are.
        """
        made = cls(config, manager=manager, options=options)
        try:
            await made.request("GET", "/api")
        except BaseException:
            await made.close()
            raise
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. Watches that still run end."""
        await self._transport.close()

    async def resources(self, group_version: str) -> tuple[Resource, ...]:
        """The kinds of `v1` or of `group/version` that the API server has now.

        Raises:
            NotServed: it has none of that group and version.
        """
        group, _, version = group_version.rpartition("/")
        path = f"/apis/{quote(group)}/{quote(version)}" if group else f"/api/{quote(version)}"
        said = await self.request("GET", path)
        return tuple(
            Resource(group, version, one["kind"], one["name"], one["namespaced"])
            for one in cast("dict[str, Any]", said).get("resources") or ()
            if "/" not in one["name"]
        )

    async def resource_of(self, manifest: Mapping[str, Any]) -> Resource:
        """Where the kind of an unstructured object lives.

        Raises:
            NotServed: the API server has no such kind.
        """
        group_version, kind = str(manifest["apiVersion"]), str(manifest["kind"])
        # A kind that is not among those known may have come since.
        for again in (False, True):
            if again or group_version not in self._discovered:
                self._discovered[group_version] = await self.resources(group_version)
            for resource in self._discovered[group_version]:
                if resource.kind == kind:
                    return resource
        raise NotServed(404, "NotFound", f"the API server has no kind {kind} in {group_version}")

    async def request(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout: float | None = None,  # noqa: ASYNC109 - the transport's, retries included
    ) -> Any:
        """Ask anything: the answer's JSON, or its text where it is not JSON."""
        reply = await self._transport.send(
            Call(
                method,
                path,
                parameters or {},
                None if body is None else encode(body),
                content_type,
                accept="application/json, */*",
                repeatable=method in {"GET", "HEAD", "PUT"},
                timeout=timeout,
            )
        )
        if reply.content_type == "application/json":
            return json.loads(reply.body)
        return reply.body.decode()


def encode(value: Any) -> bytes:
    """JSON as it travels."""
    return json.dumps(value, separators=(",", ":")).encode()
