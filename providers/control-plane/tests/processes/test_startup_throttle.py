"""Controllers wait for API servers that are starting."""

import asyncio

from capelin.controller import ObjectKey
from capelin_control_plane.backends.processes.supervised import StartupThrottle

ONE, TWO = ObjectKey("default", "one"), ObjectKey("default", "two")


async def test_controllers_of_a_single_control_plane_do_not_wait_for_others() -> None:
    throttle = StartupThrottle(lambda _: None)
    assert not throttle.controllers_may_start(ONE, answers=False)
    assert throttle.controllers_may_start(ONE, answers=True)


async def test_controllers_wait_for_starting_api_servers_and_wake_up() -> None:
    woken: list[ObjectKey] = []
    throttle = StartupThrottle(woken.append)
    for key in (ONE, TWO):
        throttle.controllers_may_start(key, answers=False)
    assert not throttle.controllers_may_start(ONE, answers=True)
    assert woken == []
    assert throttle.controllers_may_start(TWO, answers=True)
    assert woken == [ONE]
    assert throttle.controllers_may_start(ONE, answers=True)


async def test_an_api_server_that_never_starts_delays_others_only_briefly() -> None:
    woken = asyncio.Event()
    throttle = StartupThrottle(lambda _: woken.set(), patience=0.01)
    throttle.controllers_may_start(TWO, answers=False)
    assert not throttle.controllers_may_start(ONE, answers=True)
    await asyncio.wait_for(woken.wait(), 5)
    assert throttle.controllers_may_start(ONE, answers=True)


async def test_a_deleted_control_plane_delays_no_other() -> None:
    woken: list[ObjectKey] = []
    throttle = StartupThrottle(woken.append)
    throttle.controllers_may_start(TWO, answers=False)
    assert not throttle.controllers_may_start(ONE, answers=True)
    throttle.forget(TWO)
    assert woken == [ONE]
    assert throttle.controllers_may_start(ONE, answers=True)


async def test_a_later_outage_does_not_count_as_a_start() -> None:
    throttle = StartupThrottle(lambda _: None)
    throttle.controllers_may_start(TWO, answers=True)
    throttle.controllers_may_start(TWO, answers=False)
    assert throttle.controllers_may_start(ONE, answers=True)
