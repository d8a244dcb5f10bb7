"""Controllers wait for API servers that are on their way."""

import asyncio

from capelin.controller import ObjectKey
from capelin_control_plane.backends.processes.startup_throttle import StartupThrottle

ONE, TWO = ObjectKey("default", "one"), ObjectKey("default", "two")


async def test_alone_nobody_waits() -> None:
    throttle = StartupThrottle(lambda _: None)
    assert not throttle.controllers_may_start(ONE, answers=False)
    assert throttle.controllers_may_start(ONE, answers=True)


async def test_who_answers_waits_for_those_who_do_not_yet_and_is_woken() -> None:
    woken: list[ObjectKey] = []
    throttle = StartupThrottle(woken.append)
    for key in (ONE, TWO):
        throttle.controllers_may_start(key, answers=False)
    assert not throttle.controllers_may_start(ONE, answers=True)
    assert woken == []
    assert throttle.controllers_may_start(TWO, answers=True)
    assert woken == [ONE]
    assert throttle.controllers_may_start(ONE, answers=True)


async def test_one_that_never_comes_up_holds_nobody_back_for_long() -> None:
    woken = asyncio.Event()
    throttle = StartupThrottle(lambda _: woken.set(), patience=0.01)
    throttle.controllers_may_start(TWO, answers=False)
    assert not throttle.controllers_may_start(ONE, answers=True)
    await asyncio.wait_for(woken.wait(), 5)
    assert throttle.controllers_may_start(ONE, answers=True)


async def test_one_that_goes_holds_nobody_back() -> None:
    woken: list[ObjectKey] = []
    throttle = StartupThrottle(woken.append)
    throttle.controllers_may_start(TWO, answers=False)
    assert not throttle.controllers_may_start(ONE, answers=True)
    throttle.forget(TWO)
    assert woken == [ONE]
    assert throttle.controllers_may_start(ONE, answers=True)


async def test_an_outage_later_is_no_start() -> None:
    throttle = StartupThrottle(lambda _: None)
    throttle.controllers_may_start(TWO, answers=True)
    throttle.controllers_may_start(TWO, answers=False)
    assert throttle.controllers_may_start(ONE, answers=True)
