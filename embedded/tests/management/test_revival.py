"""A killed supervisor starts again. A stopped one does not."""

import os
import signal
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest
from capelin.testing.waiting import until
from capelin_embedded.management import Environment, Settings, current_status, resume
from capelin_embedded.management.resume import revive_supervisor, was_killed
from capelin_embedded.management.status_file import SUPERVISOR, StatusFile, supervisor_process
from capelin_embedded.processes import Command, Process, ProcessSpec, Supervisor, kill_all

SLEEP = Command(("/bin/sleep", "1000"))
SETTINGS = Settings(kubernetes_version="v1.34.4", capelin=version("capelin-core"))


async def start_sleeper(folder: Path, name: str) -> int:
    async with Supervisor(folder) as supervisor:
        supervisor.declare(ProcessSpec(name=name, command=SLEEP))
        await supervisor.ready()
        pid = supervisor.states[name].pid
    assert pid is not None
    return pid


@pytest.fixture
async def environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Environment]:
    """An environment with an idle supervisor and an idle process."""

    async def start_supervisor(environment: Environment, settings: Settings) -> None:
        assert settings == SETTINGS
        pid = await start_sleeper(environment.supervisor, SUPERVISOR)
        StatusFile(environment.status_file, pid=pid, now=datetime.now(UTC)).write()

    monkeypatch.setattr(resume, "start_supervisor", start_supervisor)
    environment = Environment(tmp_path / "lab")
    environment.make_folders()
    environment.write_settings(SETTINGS)
    await start_supervisor(environment, SETTINGS)
    await start_sleeper(environment.processes, "etcd")
    yield environment
    await kill_all(environment.supervisor)
    await kill_all(environment.processes)


async def kill(folder: Path, name: str) -> None:
    process = Process.adopt(folder, name)
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    await until(lambda: Process.adopt(folder, name) is None)


async def test_a_killed_supervisor_starts_again(
    environment: Environment,
) -> None:
    assert not await revive_supervisor(environment)
    await kill(environment.supervisor, SUPERVISOR)
    assert await revive_supervisor(environment)
    assert current_status(environment) is not None
    assert not await revive_supervisor(environment)


async def test_a_stopped_supervisor_stays_stopped(environment: Environment) -> None:
    async with Supervisor(environment.supervisor) as launcher:
        await launcher.stop()
    assert Process.adopt(environment.processes, "etcd") is not None
    assert not await revive_supervisor(environment)


async def test_a_supervisor_without_running_processes_does_not_start_again(
    environment: Environment,
) -> None:
    await kill(environment.supervisor, SUPERVISOR)
    await kill(environment.processes, "etcd")
    assert not was_killed(environment)
    assert not await revive_supervisor(environment)


async def test_a_running_command_prevents_a_revival(
    environment: Environment,
) -> None:
    await kill(environment.supervisor, SUPERVISOR)
    with environment.locked("down"):
        assert not await revive_supervisor(environment)
    assert supervisor_process(environment) is None


async def test_another_version_of_capelin_does_not_take_over(environment: Environment) -> None:
    await kill(environment.supervisor, SUPERVISOR)
    environment.write_settings(SETTINGS.model_copy(update={"capelin": "0.0.1"}))
    assert not await revive_supervisor(environment)
    assert supervisor_process(environment) is None
