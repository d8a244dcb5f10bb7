"""A real API server calls webhooks on this machine."""

from capelin.client import Client
from capelin_embedded.management.attach import find_reachable
from capelin_embedded.management.manifests import ENVIRONMENT_LABEL, WEBHOOKS

UNREACHABLE = "255.255.255.255"


async def remaining_webhooks(client: Client) -> list[str]:
    listings = [await client.list(resource) for resource in WEBHOOKS]
    names = [webhook["metadata"]["name"] for listing in listings for webhook in listing.items]
    return [name for name in names if name.startswith("capelin-callback")]


async def test_find_reachable_returns_addresses_that_receive_calls(client: Client) -> None:
    result = await find_reachable(client, [UNREACHABLE, "127.0.0.1", "127.0.0.2"], "mark")
    assert result.addresses == {"127.0.0.1", "127.0.0.2"}
    assert await remaining_webhooks(client) == []


async def test_find_reachable_returns_the_error_of_the_api_server(client: Client) -> None:
    result = await find_reachable(client, [UNREACHABLE], "mark")
    assert result.addresses == frozenset()
    assert f"dial tcp {UNREACHABLE}" in result.complaint
    assert await remaining_webhooks(client) == []


async def test_find_reachable_removes_webhooks_of_a_killed_process(client: Client) -> None:
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
    result = await find_reachable(client, ["127.0.0.1"], "demo.2")
    assert result.addresses == {"127.0.0.1"}
    assert await remaining_webhooks(client) == []
