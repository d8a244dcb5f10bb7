"""Control planes that answer at an address which others than this machine can reach."""

import socket
from dataclasses import replace

import pytest
from capelin.api.resource import Resource
from capelin.api.views.core import Namespace
from capelin.embedded.addresses import free_port
from capelin_control_plane.workload import workload_objects

from .rig import NEW, Rig, control_plane, settled

SLICES = Resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")


def outward() -> str | None:
    """An address of this machine that is not loopback, if it has one. Nothing is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        host: str = probe.getsockname()[0]
        return None if host.startswith("127.") else host


@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_it_answers_where_it_was_told_to_and_pods_are_told_so(rig: Rig) -> None:
    host = outward()
    if host is None:
        pytest.skip("this machine has no address but loopback ones")
    desired = replace(control_plane(NEW), host=host, port=free_port(host))
    await rig.until(desired, settled)
    assert rig.endpoint is not None
    assert (
        rig.backend.client_config(rig.endpoint).server.address == f"https://{host}:{desired.port}"
    )
    async with rig.client() as client:
        assert (await client.get(Namespace, "default")).name == "default"
        for manifest in workload_objects(desired, rig.endpoint, b""):
            if manifest["kind"] == "EndpointSlice":
                await client.apply(manifest)
        found = await client.get(SLICES, "kubernetes", "default")
    assert found["endpoints"][0]["addresses"] == [host]
    assert found["ports"][0]["port"] == desired.port
