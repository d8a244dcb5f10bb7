"""Discovery of the version of a kind whose reference has no version."""

from typing import Any

from capelin.api import Resource
from capelin.client import NotServed
from capelin.contract import served_resource


class FakeApiServer:
    """An API server with kinds of two providers in one group."""

    def __init__(self, **paths: Any) -> None:
        self.paths = {path.replace("_", "/"): answer for path, answer in paths.items()}

    async def request(self, method: str, path: str) -> Any:
        assert method == "GET"
        if path not in self.paths:
            raise NotServed(404, "NotFound", path)
        return self.paths[path]


def server() -> FakeApiServer:
    def resources(*names: tuple[str, str]) -> dict[str, Any]:
        return {
            "resources": [{"name": name, "kind": kind, "namespaced": True} for name, kind in names]
        }

    return FakeApiServer(
        _apis_g={
            "preferredVersion": {"version": "v1beta2"},
            "versions": [{"version": "v1beta2"}, {"version": "v1alpha1"}],
        },
        _apis_g_v1beta2=resources(("others", "Other")),
        _apis_g_v1alpha1=resources(("ours/status", "Ours"), ("ours", "Ours")),
    )


async def test_served_resource_finds_a_kind_in_any_version() -> None:
    assert await served_resource(server(), "g", "Ours") == Resource("g", "v1alpha1", "Ours", "ours")


async def test_served_resource_prefers_the_preferred_version() -> None:
    assert await served_resource(server(), "g", "Other") == Resource(
        "g", "v1beta2", "Other", "others"
    )


async def test_a_group_stays_below_its_path() -> None:
    """A tenant may have written it."""
    server = FakeApiServer(**{"_apis_g/../v1": {"preferredVersion": {"version": "v1"}}})
    assert await served_resource(server, "g/../v1", "Ours") is None


async def test_served_resource_returns_none_for_an_unserved_kind() -> None:
    assert await served_resource(server(), "g", "Missing") is None
    assert await served_resource(server(), "nowhere", "Ours") is None
