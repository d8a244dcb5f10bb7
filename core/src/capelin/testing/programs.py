"""The programs that tests need, got before any test's time starts to run."""

from collections.abc import Collection, Iterable
from contextlib import suppress

from capelin.embedded.apiserver import Settings
from capelin.embedded.binaries import (
    TESTED_KUBERNETES,
    Binaries,
    BinariesError,
    default_progress,
)
from capelin.embedded.management import required_programs
from capelin.testing.run import run_elsewhere

_API_SERVERS = frozenset({"api_server", "own_api_server"})


def needed(fixtures: Collection[str], marked: Iterable[str]) -> list[str]:
    """The programs behind these fixtures, and those that tests are marked with."""
    names = {*marked}
    if not _API_SERVERS.isdisjoint(fixtures):
        names |= {*Settings().programs}
    if "management_cluster" in fixtures:
        names |= {*required_programs(TESTED_KUBERNETES[-1], ())}
    return sorted(names)


def get(names: Iterable[str]) -> None:
    """Get programs. Should that fail, the tests that need them say so."""
    with suppress(BinariesError):
        run_elsewhere(Binaries(progress=default_progress()).fetch(names))
