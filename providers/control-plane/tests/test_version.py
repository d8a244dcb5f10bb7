"""A real API server validates the versions of control planes."""

from typing import Any

import pytest
from capelin.client import Client, Invalid
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.desired.instances import downgrade

INITIALIZED = {"controlPlaneInitialized": True}
NOT_INITIALIZED = {"controlPlaneInitialized": False}

pytestmark = pytest.mark.usefixtures("provider_crds")


async def control_plane(
    client: Client, namespace: str, *versions: str, running: str | None = None, **status: Any
) -> None:
    """A control plane whose spec had these versions, one after another."""
    first, *others = versions
    resource = CapelinControlPlane.resource
    manifest = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": "one", "namespace": namespace},
        "spec": {"version": first},
    }
    await client.create(manifest, resource=resource)
    if running is not None:
        status = {
            "initialization": INITIALIZED,
            "versions": [{"version": running, "replicas": 1}],
            **status,
        }
    if status:
        body = {**manifest, "status": status}
        await client.apply_status(body, resource=resource)
    for version in others:
        await upgrade(client, namespace, version)


async def upgrade(client: Client, namespace: str, version: str) -> None:
    patch = {"spec": {"version": version}}
    await client.patch(CapelinControlPlane, "one", namespace, patch)


async def test_a_version_that_never_ran_can_be_reverted(client: Client, namespace: str) -> None:
    wrong = ("v1.33.13", "v1.34.6")
    await control_plane(client, namespace, *wrong, running="v1.33.13")
    await upgrade(client, namespace, "v1.33.13")
    await upgrade(client, namespace, "v1.34.4")


async def test_a_wrong_first_version_can_be_corrected(client: Client, namespace: str) -> None:
    await control_plane(client, namespace, "v1.36.9", initialization=NOT_INITIALIZED)
    await upgrade(client, namespace, "v1.34.4")


@pytest.mark.parametrize("running", ["v1.34.4", None])
@pytest.mark.parametrize(
    "version", ["v1.33.13", "v1.34.3", "v1.36.0", "v2.34.4"], ids=lambda version: f"to {version}"
)
async def test_a_version_must_follow_the_running_version(
    client: Client, namespace: str, running: str | None, version: str
) -> None:
    await control_plane(client, namespace, "v1.34.4", running=running)
    with pytest.raises(Invalid) as refused:
        await upgrade(client, namespace, version)
    assert "spec.version" in str(refused.value)


async def test_no_minor_version_is_skipped(client: Client, namespace: str) -> None:
    await control_plane(client, namespace, "v1.33.13", "v1.34.6", running="v1.33.13")
    with pytest.raises(Invalid, match="one minor version at a time"):
        await upgrade(client, namespace, "v1.35.0")


async def test_status_is_always_accepted(client: Client, namespace: str) -> None:
    await control_plane(client, namespace, "v1.33.13", running="v1.34.4")


@pytest.mark.parametrize(
    ("version", "is_refused"), [("v1.33.13", True), ("v1.34.3", True), ("v1.34.4", False)]
)
def test_serving_api_server_is_not_downgraded(version: str, is_refused: bool) -> None:
    assert (downgrade(["v1.34.4"], version) is not None) == is_refused
