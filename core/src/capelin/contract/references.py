"""References that name a group and a kind, and leave the version open as contract v1beta2 does."""

from typing import Any, Protocol

from capelin.api import Resource
from capelin.client import NotServed


class Discovery(Protocol):
    """Whoever can ask an API server what it serves, such as `capelin.client.Client`."""

    async def request(self, method: str, path: str) -> Any:
        """What the API server answers."""
        ...


async def served(client: Discovery, group: str, kind: str) -> Resource | None:
    """The resource of a kind in the first version that has it, the group's preferred one first.

    Other providers' kinds live in the same groups, in versions of their own.
    """
    try:
        described = await client.request("GET", f"/apis/{group}")
    except NotServed:
        return None
    preferred = described["preferredVersion"]["version"]
    versions = [preferred, *(one["version"] for one in described["versions"])]
    for version in dict.fromkeys(versions):
        listed = await client.request("GET", f"/apis/{group}/{version}")
        for one in listed["resources"]:
            if one["kind"] == kind and "/" not in one["name"]:
                return Resource(group, version, kind, one["name"], one["namespaced"])
    return None
