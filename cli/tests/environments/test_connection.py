"""The next command restarts a killed supervisor and prints that."""

from pathlib import Path

import pytest
from capelin_cli.environments import connection
from capelin_embedded.management import Environment

from cli.tests.command import capelin


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records environments whose supervisors restart. All supervisors appear dead."""
    revived: list[str] = []

    async def revive(environment: Environment) -> bool:
        revived.append(environment.name)
        return True

    monkeypatch.setattr(connection, "revive_supervisor", revive)
    for name in ("lab", "prod"):
        environment = Environment(tmp_path / "capelin" / name)
        environment.make_folders()
        environment.processes.mkdir()
        (environment.processes / "etcd.log").write_text("one\n")
    return revived


MESSAGE = "The supervisor of environment lab was killed. It runs again.\n"


def test_command_starts_the_supervisor(tmp_path: Path, killed: list[str]) -> None:
    ended = capelin("logs", "etcd", "-e", "lab", home=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "one\n", MESSAGE)
    assert killed == ["lab"]


def test_status_starts_all_supervisors(tmp_path: Path, killed: list[str]) -> None:
    assert MESSAGE in capelin("status", home=tmp_path).stderr
    assert killed == ["lab", "prod"]
    capelin("status", "-e", "prod", home=tmp_path)
    assert killed[2:] == ["prod"]


@pytest.mark.parametrize("verb", ["stop", "start", "down"])
def test_commands_that_manage_supervisors_restart_none(
    verb: str, tmp_path: Path, killed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object, **__: object) -> bool:
        return True

    for work in (
        "environments.lifetime.stop",
        "clusters.up.start",
        "environments.lifetime.take_down",
    ):
        monkeypatch.setattr(f"capelin_cli.{work}", nothing)
    assert capelin(verb, "-e", "lab", home=tmp_path).returncode == 0
    assert killed == []


def test_an_invalid_name_is_rejected_by_the_command(tmp_path: Path, killed: list[str]) -> None:
    ended = capelin("logs", "-e", "No!", home=tmp_path)
    assert ended.returncode == 2
    assert "cannot be the name of an environment" in ended.stderr
    assert killed == []
