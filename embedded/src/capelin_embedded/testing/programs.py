"""The binaries that tests need, downloaded or built before the time limit of any test starts."""

from collections.abc import Collection, Iterable

from capelin_embedded.apiserver import Settings
from capelin_embedded.binaries import (
    TESTED_KUBERNETES,
    Binaries,
    BinariesError,
    Component,
    default_progress,
)
from capelin_embedded.management import required_programs
from capelin_embedded.testing.run import run_elsewhere

_API_SERVERS = frozenset({"api_server", "own_api_server"})


def needed(fixtures: Collection[str], marked: Iterable[str | Component]) -> list[str | Component]:
    """The binaries for these fixtures, and those in the markers of tests."""
    names: set[str | Component] = {*marked}
    if not _API_SERVERS.isdisjoint(fixtures):
        names |= {*Settings().programs}
    if "management_cluster" in fixtures:
        names |= {*required_programs(TESTED_KUBERNETES[-1], ())}
    return sorted(names, key=str)


def get(names: Iterable[str | Component]) -> BinariesError | None:
    """Download or build binaries. Returns a failure: only the tests that need them fail."""
    try:
        run_elsewhere(Binaries(progress=default_progress()).fetch(names))
    except BinariesError as error:
        return error
    return None
