"""The judge of watches notices each failure, and the documents show its results."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from core.tests.controller.chaos_world import World
from tests.watches.catalog import PAGE, SHOWN, Played, read_results, result_of, table
from tests.watches.judge import HasEnded, play

CORE = Path(__file__).parents[2] / "core" / "tests"


@asynccontextmanager
async def idle(_: World) -> AsyncGenerator[HasEnded]:
    """A manager that reconciles nothing."""
    yield lambda: False


@asynccontextmanager
async def ended(_: World) -> AsyncGenerator[HasEnded]:
    """A manager that has ended."""
    yield lambda: True


async def test_an_object_without_a_reconcile_is_outdated() -> None:
    (played,) = await play(World(), idle, [3], pace=0, limit=0.4)
    assert played.outdated
    assert not played.ended


async def test_the_end_of_a_process_does_not_count_as_outdated() -> None:
    (played,) = await play(World(), ended, [3], pace=0, limit=0.4)
    assert played.ended
    assert not played.outdated


def test_outdated_objects_count_by_whether_the_state_was_restored() -> None:
    result = result_of(
        [
            Played(1, False, False, (), False, 2.0),
            Played(2, True, True, (), False, 4.0),
            Played(3, False, True, ("a", "b"), False, 90.0),
            Played(4, False, False, ("c",), False, 90.0),
            Played(5, False, False, (), True, 0.1),
        ]
    )
    assert result.outdated == {"4": 1}
    assert result.outdated_after_restore == {"3": 2}
    assert (result.seeds, result.restored, result.ended) == (5, 1, [5])
    assert (result.median, result.longest) == (3.0, 4.0)


def test_page_has_the_results() -> None:
    assert SHOWN.read() == table(read_results())


def test_page_names_tests_that_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    defined = re.findall(
        r"def (test_\w+)", "".join(file.read_text() for file in CORE.rglob("test_*.py"))
    )
    assert named
    assert named <= set(defined)
