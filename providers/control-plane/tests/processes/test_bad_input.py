"""What only the world can tell: said with field and remedy, while what runs goes on."""

import socket
from collections.abc import Generator
from dataclasses import replace

import pytest
from capelin.api.core import Namespace
from capelin.provider import Blocked
from capelin_control_plane.desired import ComponentSettings, ControlPlane
from capelin_control_plane.instances import Observed

from .rig import NEW, Rig, control_plane, settled

pytestmark = pytest.mark.timeout(300)


def told(seen: Observed) -> str:
    return "; ".join(part.failure for part in seen.statuses)


async def assert_serves(rig: Rig) -> None:
    async with rig.client() as client:
        assert (await client.get(Namespace, "default")).name == "default"


async def test_a_flag_that_nobody_knows_and_back_again(rig: Rig) -> None:
    good = control_plane(NEW)
    await rig.until(good, settled)
    before = rig.pids()
    flags = {"kube-apiserver": ComponentSettings(arguments={"shoal": "x"})}
    bad = replace(good, settings={**good.settings, **flags})
    seen = await rig.until(bad, lambda seen: "fix spec.apiServer.extraArgs[shoal]" in told(seen))
    assert "unknown flag: --shoal" in told(seen)
    assert seen.answers
    await assert_serves(rig)
    await rig.until(good, lambda seen: settled(seen) and rig.pids() == before)


@pytest.fixture
def taken_everywhere() -> Generator[int]:
    """A port that somebody has on all addresses."""
    with socket.create_server(("0.0.0.0", 0)) as server:  # noqa: S104 - what others do
        port: int = server.getsockname()[1]
        yield port


async def test_a_port_that_somebody_has_everywhere(rig: Rig, taken_everywhere: int) -> None:
    wanted: ControlPlane = replace(control_plane(NEW), port=taken_everywhere)
    with pytest.raises(Blocked, match=f"port {taken_everywhere}") as blocked:
        await rig.allocate(wanted)
    assert blocked.value.reason == "AddressNotAvailable"
    assert "spec.clusterNetwork.apiServerPort" in str(blocked.value)
