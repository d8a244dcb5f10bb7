"""Control planes that serve at an address which other machines can reach."""

import socket
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin.api import Resource
from capelin.api.core import Namespace
from capelin.controller import ObjectKey
from capelin.provider import Blocked
from capelin_control_plane.api.policy import Policy, read_networks
from capelin_control_plane.backends.processes import ProcessesBackend
from capelin_control_plane.workload import workload_objects
from capelin_embedded.addresses import free_port
from capelin_embedded.binaries import Binaries

from .rig import KEY, NEW, Idle, Rig, authorities, control_plane, settled

SLICES = Resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")


def outward() -> str | None:
    """An address of this machine that is not loopback, if any. Sends no packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        host: str = probe.getsockname()[0]
        return None if host.startswith("127.") else host


@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_a_control_plane_serves_at_its_endpoint_and_publishes_it_to_pods(rig: Rig) -> None:
    host = outward()
    if host is None:
        pytest.fail("this machine has only loopback addresses")
    desired = replace(control_plane(NEW), host=host, port=free_port(host))
    rig.backend = ProcessesBackend(
        rig.state,
        Binaries(),
        lambda _: rig.woken.set(),
        Policy(endpoint_networks=read_networks(host)),
    )
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
        slice_ = await client.get(SLICES, "kubernetes", "default")
    assert slice_["endpoints"][0]["addresses"] == [host]
    assert slice_["ports"][0]["port"] == desired.port


@pytest.fixture
def idle(tmp_path: Path) -> Rig:
    """A backend of control planes that run nothing."""
    return Rig.on(tmp_path / "control-planes", Idle(tmp_path))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.64.0.9", "::ffff:127.64.0.9", "::1"])
async def test_a_control_plane_cannot_use_a_foreign_loopback_address(idle: Rig, host: str) -> None:
    with pytest.raises(Blocked, match="loopback address") as blocked:
        await idle.allocate(replace(control_plane(), host=host))
    assert blocked.value.reason == "InvalidConfiguration"
    own = await idle.allocate(control_plane())
    await idle.allocate(replace(control_plane(), host=own.address))
    await idle.backend.delete(KEY)


@pytest.mark.integration
@pytest.mark.representative
async def test_only_an_administrator_can_allow_addresses_of_the_machine(idle: Rig) -> None:
    host = outward()
    if host is None:
        pytest.fail("this machine has only loopback addresses")
    with pytest.raises(Blocked, match=f"--endpoint-networks={host}") as blocked:
        await idle.allocate(replace(control_plane(), host=host))
    assert blocked.value.reason == "InvalidConfiguration"
    await idle.backend.delete(KEY)


@pytest.mark.integration
@pytest.mark.representative
async def test_an_endpoint_of_another_control_plane_is_not_available(
    idle: Rig, tmp_path: Path
) -> None:
    host = outward()
    if host is None:
        pytest.fail("this machine has only loopback addresses")
    policy = Policy(endpoint_networks=read_networks(host))
    idle.backend = ProcessesBackend(idle.state, Idle(tmp_path), lambda _: None, policy)
    first = replace(control_plane(), host=host, port=free_port(host))
    await idle.until(first, lambda _: True)
    other = ObjectKey("default", "two")
    keys = authorities(datetime.now(UTC))
    with pytest.raises(Blocked) as blocked:
        await idle.backend.allocate(other, replace(first, cluster="two"), keys, None)
    assert blocked.value.reason == "EndpointTaken"
    for key in (KEY, other):
        await idle.backend.delete(key)
