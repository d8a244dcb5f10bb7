"""Controllers wait for API servers that are on their way."""

import asyncio

from capelin.controller import ObjectKey
from capelin_control_plane.backends.processes.turns import Turns

ONE, TWO = ObjectKey("default", "one"), ObjectKey("default", "two")


async def test_alone_nobody_waits() -> None:
    turns = Turns(lambda _: None)
    assert not turns.may_start_controllers(ONE, answers=False)
    assert turns.may_start_controllers(ONE, answers=True)


async def test_who_answers_waits_for_those_who_do_not_yet_and_is_woken() -> None:
    woken: list[ObjectKey] = []
    turns = Turns(woken.append)
    for key in (ONE, TWO):
        turns.may_start_controllers(key, answers=False)
    assert not turns.may_start_controllers(ONE, answers=True)
    assert woken == []
    assert turns.may_start_controllers(TWO, answers=True)
    assert woken == [ONE]
    assert turns.may_start_controllers(ONE, answers=True)


async def test_one_that_never_comes_up_holds_nobody_back_for_long() -> None:
    woken = asyncio.Event()
    turns = Turns(lambda _: woken.set(), patience=0.01)
    turns.may_start_controllers(TWO, answers=False)
    assert not turns.may_start_controllers(ONE, answers=True)
    await asyncio.wait_for(woken.wait(), 5)
    assert turns.may_start_controllers(ONE, answers=True)


async def test_one_that_goes_holds_nobody_back() -> None:
    woken: list[ObjectKey] = []
    turns = Turns(woken.append)
    turns.may_start_controllers(TWO, answers=False)
    assert not turns.may_start_controllers(ONE, answers=True)
    turns.forget(TWO)
    assert woken == [ONE]
    assert turns.may_start_controllers(ONE, answers=True)


async def test_an_outage_later_is_no_start() -> None:
    turns = Turns(lambda _: None)
    turns.may_start_controllers(TWO, answers=True)
    turns.may_start_controllers(TWO, answers=False)
    assert turns.may_start_controllers(ONE, answers=True)
