"""Execution of the steps of `capelin up`."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Self

import pytest
from capelin_embedded.binaries import TESTED_KUBERNETES, Binaries, Binary, Component
from capelin_embedded.management import (
    Environment,
    FetchPrograms,
    FetchProviderPrograms,
    UpView,
    carry_out,
    up_steps,
)
from capelin_embedded.management.environment import Settings
from capelin_embedded.management.providers import own_programs, required_programs
from capelin_embedded.processes import ProcessSpec

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


class Launcher:
    """A supervisor that records whether a status existed when it started a process."""

    had_status: ClassVar[list[bool]] = []

    def __init__(self, folder: Path) -> None:
        self._status = folder.parent / "status.json"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def stop(self) -> None:
        pass

    def declare(self, _: ProcessSpec) -> None:
        self.had_status.append(self._status.exists())

    async def ready(self) -> None:
        pass


async def test_status_of_an_earlier_supervisor_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = Environment(tmp_path / "demo")
    environment.make_folders()
    environment.status_file.write_text("of the pid that the next supervisor gets")
    assert environment.status_file == environment.supervisor.parent / "status.json"
    monkeypatch.setattr(up_steps, "Supervisor", Launcher)
    await up_steps.start_supervisor(environment, SETTINGS)
    assert Launcher.had_status == [False]


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
