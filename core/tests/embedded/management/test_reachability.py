"""A real API server that is asked to call this machine."""

from capelin.client import Client
from capelin.embedded.management.attach import find_reachable
from capelin.embedded.management.manifests import ENVIRONMENT_LABEL, WEBHOOKS

NOBODY = "255.255.255.255"


async def left(client: Client) -> list[str]:
    listings = [await client.list(each) for each in WEBHOOKS]
    names = [each["metadata"]["name"] for listing in listings for each in listing.items]
    return [name for name in names if name.startswith("capelin-callback")]


async def test_where_calls_arrive_is_found(client: Client) -> None:
    called = await find_reachable(client, [NOBODY, "127.0.0.1", "127.0.0.2"], "mark")
    assert called.addresses == {"127.0.0.1", "127.0.0.2"}
    assert await left(client) == []


async def test_an_api_server_that_cannot_call_says_why(client: Client) -> None:
    called = await find_reachable(client, [NOBODY], "mark")
    assert called.addresses == frozenset()
    assert f"dial tcp {NOBODY}" in called.complaint
    assert await left(client) == []


async def test_what_somebody_who_was_killed_left_is_no_obstacle_and_goes(client: Client) -> None:
    dead = {
        "name": "left.capelin.cluster.x-k8s.io",
        "clientConfig": {"url": "https://127.0.0.1:1"},
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["configmaps"],
            }
        ],
        "objectSelector": {"matchLabels": {ENVIRONMENT_LABEL: "capelin-callback-1"}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    await client.apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "capelin-callback-demo", "labels": {ENVIRONMENT_LABEL: "demo.1"}},
            "webhooks": [dead],
        }
    )
    called = await find_reachable(client, ["127.0.0.1"], "demo.2")
    assert called.addresses == {"127.0.0.1"}
    assert await left(client) == []
