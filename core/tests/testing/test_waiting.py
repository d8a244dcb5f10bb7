"""Waiting for conditions, and the messages of failures."""

import asyncio
from functools import partial
from itertools import repeat
from typing import Annotated

import pytest
from annotated_types import Ge
from capelin.api import Model, Object, kind
from capelin.api.core import Secret
from capelin.testing.waiting import pause_after, until, wait_until


class Spec(Model):
    size: Annotated[int, Ge(0)] = 1


@kind(group="waiting.capelin.dev", version="v1alpha1")
class Shoal(Object[Spec, Spec]):
    """Some fish."""


class Tide:
    """Rises with each observation."""

    def __init__(self) -> None:
        self.level = 0

    def look(self) -> int:
        self.level += 1
        return self.level

    async def ask(self) -> Shoal:
        await asyncio.sleep(0)
        return Shoal.of("a", spec=Spec(size=self.look()))

    def third(self) -> str | None:
        return "three" if self.look() == 3 else None


async def test_until_returns_the_last_value() -> None:
    assert await until(Tide().look, lambda level: level == 3) == 3
    shoal = await until(Tide().ask, lambda shoal: shoal.spec.size == 3)
    assert shoal.spec.size == 3
    assert (await until(Tide().third)).upper() == "THREE"
    assert wait_until(Tide().third).upper() == "THREE"


async def test_until_accepts_any_true_value_without_a_condition() -> None:
    tide = Tide()

    async def is_high() -> bool:
        return tide.look() >= 3

    await until(is_high)
    assert tide.level == 3
    await until(lambda: tide.look() >= 5)
    wait_until(lambda: tide.look() >= 7)
    assert tide.level == 7


async def test_other_tasks_continue_during_the_wait() -> None:
    tide = Tide()
    asyncio.get_running_loop().call_later(0.02, tide.look)
    await until(lambda: tide.level)


SOON = 0.05


async def is_deep(tide: Tide) -> bool:
    return tide.look() < 0


async def test_a_failure_shows_the_condition_and_the_last_value() -> None:
    tide = Tide()
    with pytest.raises(AssertionError) as failure:
        await until(
            tide.ask,
            lambda shoal: shoal.spec.size > 10**9,
            within=SOON,
        )
    message = str(failure.value)
    assert message.startswith(
        "condition not met within 0.05 s:\n    lambda shoal: shoal.spec.size > 10**9"
    )
    assert "await" not in message
    assert message.partition("last value:\n")[2] == (
        "    {\n"
        "        'apiVersion': 'waiting.capelin.dev/v1alpha1',\n"
        "        'kind': 'Shoal',\n"
        "        'metadata': {'name': 'a'},\n"
        f"        'spec': {{'size': {tide.level}}}\n"
        "    }"
    )


async def test_a_failure_shows_the_source_of_a_named_condition() -> None:
    async def is_high() -> bool:
        return tide.look() >= 10**9

    tide = Tide()
    expected = """condition not met within 0.05 s:
    async def is_high() -> bool:
        return tide.look() >= 10**9
last value:
    False"""
    with pytest.raises(AssertionError) as failure:
        await until(is_high, within=SOON)
    assert str(failure.value) == expected


def test_wait_until_fails_with_the_same_message() -> None:
    values: list[int] = []

    def has_values() -> list[int]:
        return values

    with pytest.raises(AssertionError) as failure:
        wait_until(has_values, within=SOON)
    assert str(failure.value) == (
        "condition not met within 0.05 s:\n"
        "    def has_values() -> list[int]:\n        return values\n"
        "last value:\n    []"
    )


async def test_a_failure_names_a_condition_without_source() -> None:
    nothing = repeat(0)
    with pytest.raises(AssertionError, match=r"method-wrapper '__next__' of itertools\.repeat"):
        await until(nothing.__next__, within=SOON)
    with pytest.raises(AssertionError, match=r"functools\.partial\(<function is_deep"):
        await until(partial(is_deep, Tide()), within=SOON)


async def test_a_failure_shows_no_secret_data_and_no_managed_fields() -> None:
    secret = Secret.of("s", "sea", data={"password": b"hunter2"})
    secret.metadata.managed_fields = [{"manager": "kubectl"}]
    secrets = [secret, secret]
    with pytest.raises(AssertionError) as failure:
        await until(lambda: secrets, lambda _: False, within=SOON)
    assert str(failure.value).count("'name': 's'") == 2
    assert "password" not in str(failure.value)
    assert "kubectl" not in str(failure.value)


async def test_until_ends_an_observation_that_does_not_return() -> None:
    with pytest.raises(AssertionError, match="none, because the first look has not ended"):
        await until(asyncio.Event().wait, within=SOON)


@pytest.mark.parametrize("error", [TimeoutError("of its own"), AssertionError("mine"), KeyError()])
async def test_an_error_ends_the_wait_at_once(error: Exception) -> None:
    def fail() -> bool:
        raise error

    async def fail_later() -> bool:
        return fail()

    with pytest.raises(type(error)) as failure:
        await until(fail)
    assert failure.value is error
    with pytest.raises(type(error)) as failure:
        await until(fail_later)
    assert failure.value is error
    with pytest.raises(type(error)) as failure:
        wait_until(fail)
    assert failure.value is error


@pytest.mark.parametrize(("took", "pause"), [(0, 0.005), (0.1, 0.4), (7, 0.5)])
def test_polls_take_a_fifth_of_the_time(took: float, pause: float) -> None:
    assert pause_after(took) == pause
