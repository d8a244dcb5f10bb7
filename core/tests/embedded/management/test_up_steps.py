"""Execution of the steps of `capelin up`."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

import pytest
from capelin.embedded.binaries import TESTED_KUBERNETES, Binaries, Binary, Component
from capelin.embedded.management import (
    Environment,
    FetchPrograms,
    FetchProviderPrograms,
    UpView,
    carry_out,
)
from capelin.embedded.management.environment import Settings
from capelin.embedded.management.providers import own_programs, required_programs

SETTINGS = Settings(kubernetes_version=TESTED_KUBERNETES[0])


class FakeBinaries(Binaries):
    """Has all programs or none, and records fetched ones."""

    def __init__(self, *, warm: bool) -> None:
        super().__init__(cache=Path("unused"), environment={})
        self.warm = warm
        self.fetched: list[str] = []

    async def has(self, names: Iterable[str | Component]) -> bool:
        del names
        return self.warm

    async def fetch(self, names: Iterable[str | Component]) -> dict[str, Binary]:
        self.fetched = [*map(str, names)]
        return {}


class View(UpView):
    def __init__(self, binaries: Binaries) -> None:
        self._binaries = binaries

    @contextmanager
    def fetching(self, step: FetchPrograms | FetchProviderPrograms) -> Generator[Binaries]:
        del step
        yield self._binaries


@pytest.mark.parametrize("warm", [True, False])
async def test_a_cold_cache_fetches_all_required_programs(warm: bool, tmp_path: Path) -> None:
    binaries = FakeBinaries(warm=warm)
    await carry_out(Environment(tmp_path / "demo"), [FetchPrograms(SETTINGS)], View(binaries))
    programs = own_programs if warm else required_programs
    assert binaries.fetched == programs(SETTINGS.kubernetes_version, [])
