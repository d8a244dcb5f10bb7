"""Errors that appear only at run time name the field and the fix. Running processes continue."""

import socket
from collections.abc import Generator
from dataclasses import replace

import pytest
from capelin.api.core import Namespace
from capelin.provider import Blocked
from capelin_control_plane.desired.control_plane import ComponentSettings, ControlPlane
from capelin_control_plane.desired.instances import Observed

from .rig import NEW, Rig, control_plane, settled

pytestmark = pytest.mark.timeout(300)


def failures(observed: Observed) -> str:
    return "; ".join(part.failure for part in observed.statuses)


async def assert_serves(rig: Rig) -> None:
    async with rig.client() as client:
        assert (await client.get(Namespace, "default")).name == "default"


async def test_an_unknown_flag_is_reported_and_a_revert_restores_the_processes(rig: Rig) -> None:
    good = control_plane(NEW)
    await rig.until(good, settled)
    before = rig.pids()
    flags = {"kube-apiserver": ComponentSettings(arguments={"shoal": "x"})}
    bad = replace(good, settings={**good.settings, **flags})
    observed = await rig.until(
        bad, lambda observed: "fix spec.apiServer.extraArgs[shoal]" in failures(observed)
    )
    assert "unknown flag: --shoal" in failures(observed)
    assert observed.answers
    await assert_serves(rig)
    await rig.until(good, lambda observed: settled(observed) and rig.pids() == before)


@pytest.fixture
def taken_everywhere() -> Generator[int]:
    """A port that another process holds on all addresses."""
    with socket.create_server(("0.0.0.0", 0)) as server:  # noqa: S104 - what others do
        port: int = server.getsockname()[1]
        yield port


async def test_a_port_in_use_on_all_addresses_is_rejected(rig: Rig, taken_everywhere: int) -> None:
    desired: ControlPlane = replace(control_plane(NEW), port=taken_everywhere)
    with pytest.raises(Blocked, match=f"port {taken_everywhere}") as blocked:
        await rig.allocate(desired)
    assert blocked.value.reason == "AddressNotAvailable"
    assert "spec.clusterNetwork.apiServerPort" in str(blocked.value)
