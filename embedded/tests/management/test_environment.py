"""Names, settings and locks of environments."""

import fcntl
import multiprocessing
import shutil
import stat
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from capelin.errors import BusyError, InvalidInputError, UserError
from capelin_embedded.folders import provider_folder
from capelin_embedded.management.environment import (
    Environment,
    Settings,
    all_environments,
    environment_named,
)

SETTINGS = Settings(
    kubernetes_version="v1.34.4",
    providers=["kubeadm"],
    ports={"cluster-api/health": 31000},
)


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return environment_named("demo", {"XDG_STATE_HOME": str(tmp_path)})


@pytest.mark.parametrize("name", ["", "Demo", "-a", "a-", "1a", "a/b", "..", "a" * 31, "ä"])
def test_environment_named_rejects_unportable_names(name: str) -> None:
    with pytest.raises(InvalidInputError, match="cannot be the name of an environment"):
        environment_named(name)


@pytest.mark.parametrize("name", ["a", "demo", "demo-2", "a" * 30])
def test_environment_named_accepts_simple_names(name: str) -> None:
    assert environment_named(name).name == name


def test_settings_survive_a_round_trip(environment: Environment) -> None:
    assert environment.settings() is None
    environment.make_folders()
    environment.write_settings(SETTINGS)
    assert environment.settings() == SETTINGS
    assert environment.exists


def test_invalid_settings_fail_with_a_hint(environment: Environment) -> None:
    environment.make_folders()
    environment.settings_file.write_text('{"kubernetesVersion": 5, "ports": {"a": 0}}')
    with pytest.raises(UserError, match="capelin down -e demo"):
        environment.settings()


def test_other_users_cannot_read_an_environment(environment: Environment) -> None:
    environment.make_folders()
    environment.write_settings(SETTINGS)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in environment.folder.iterdir()}
    assert stat.S_IMODE(environment.folder.stat().st_mode) == 0o700
    assert modes == {0o700, 0o600}


def test_all_environments_returns_sorted_environments(tmp_path: Path) -> None:
    variables = {"XDG_STATE_HOME": str(tmp_path)}
    assert all_environments(variables) == []
    for name in ("zoo", "alpha"):
        environment_named(name, variables).make_folders()
    (tmp_path / "capelin" / "not-a-folder").touch()
    assert [environment.name for environment in all_environments(variables)] == ["alpha", "zoo"]


def test_all_environments_ignores_state_of_providers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = provider_folder("machines")
    folder.mkdir(parents=True)
    assert all_environments() == []
    with pytest.raises(InvalidInputError):
        environment_named(folder.name)


def hold(environment: Environment, pipe: Connection) -> None:
    with environment.locked("up"):
        pipe.send("held")
        pipe.recv()


def test_a_second_command_fails_with_the_name_of_the_running_one(environment: Environment) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    other = context.Process(target=hold, args=(environment, theirs))
    other.start()
    try:
        assert ours.recv() == "held"
        with (
            pytest.raises(BusyError, match="capelin up is changing it"),
            environment.locked("down"),
        ):
            pytest.fail("two commands changed one environment")
        other.kill()
        other.join()
        with environment.locked("down"):
            pass
    finally:
        other.kill()
        other.join()
        other.close()
        ours.close()
        theirs.close()


def test_a_failed_command_leaves_no_empty_environment(environment: Environment) -> None:
    with pytest.raises(RuntimeError), environment.locked("up"):
        raise RuntimeError
    assert not environment.folder.exists()
    with environment.locked("up"):
        environment.write_settings(SETTINGS)
    assert environment.settings() == SETTINGS
    with environment.locked("down"):
        shutil.rmtree(environment.folder)
    assert not environment.folder.exists()


def test_a_lock_works_if_its_file_was_removed_meanwhile(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lock = environment.folder / "lock", fcntl.flock
    removals = [path]

    def remove_then_lock(descriptor: int, operation: int) -> None:
        for removal in removals:
            removal.unlink()
        removals.clear()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_then_lock)
    with environment.locked("up"):
        assert path.read_text() == "up"
