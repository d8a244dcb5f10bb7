"""Processes start, are adopted and end. Unrelated processes are never signalled."""

import asyncio
import dataclasses
import errno
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from capelin.testing.waiting import until
from capelin_embedded.processes import (
    Command,
    Limits,
    Process,
    ProcessSpec,
    cgroups,
    kill_all,
    state_dir,
)
from capelin_embedded.processes.proc import identify

SLEEP = ("/bin/sleep", "1000")


def shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


def declared(
    *arguments: str,
    environment: dict[str, str] | None = None,
    limits: Limits | None = None,
    grace: float = 10.0,
) -> ProcessSpec:
    command = Command(arguments, environment or {}, limits=limits or Limits())
    return ProcessSpec(name="a", command=command, grace=grace)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


async def first_line(process: Process) -> str:
    """Wait until a process has written a line."""
    return (await until(lambda: lines(process.log)))[0]


def link(pid: int, what: str) -> Path:
    return Path(f"/proc/{pid}/{what}").readlink()


def slack() -> set[str]:
    """Timer slack of our own threads."""
    slacks: set[str] = set()
    for thread in Path("/proc/self/task").iterdir():
        # Threads of the pool can end between the listing and the read.
        with suppress(FileNotFoundError, ProcessLookupError):
            slacks.add(Path(f"/proc/{thread.name}/timerslack_ns").read_text())
    return slacks


def modes(folder: Path) -> list[int]:
    return [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()]


def exists(path: str) -> bool:
    return Path(path).exists()


def has_quota(group: str) -> bool:
    return any((Path(group) / file).exists() for file in ("cpu.max", "cpu.cfs_quota_us"))


def is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def _input() -> Iterator[None]:
    """A standard input that could be read from."""
    before = os.dup(0)
    readable, writable = os.pipe()
    os.dup2(readable, 0)
    yield
    os.dup2(before, 0)
    for descriptor in (before, readable, writable):
        os.close(descriptor)


@pytest.mark.usefixtures("_input")
async def test_a_process_has_its_own_session_and_no_input(folder: Path) -> None:
    process = await Process.start(folder, declared(*SLEEP))
    assert process.is_running
    assert os.getsid(process.pid) == process.pid
    assert link(process.pid, "fd/0") == Path("/dev/null")
    assert link(process.pid, "cwd") == folder
    assert modes(folder) == [0o600, 0o600]
    await process.stop()
    assert not process.is_running


async def test_the_output_of_a_process_goes_to_its_log(folder: Path) -> None:
    process = await Process.start(folder, declared(*shell("echo out; echo err >&2")))
    await process.wait()
    assert lines(process.log) == ["out", "err"]


async def test_environment_of_a_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/ours")
    limits = Limits(memory_bytes=1_000_000_000)
    spec = declared("/usr/bin/env", environment={"GIVEN": "1"}, limits=limits)
    process = await Process.start(folder, spec)
    await process.wait()
    environment = dict(line.split("=", 1) for line in lines(process.log))
    assert (
        environment.items()
        >= {
            "GIVEN": "1",
            "GOMEMLIMIT": "900000000B",
            "PATH": os.environ["PATH"],
            "CAPELIN_PROCESS": f"{folder}/a",
        }.items()
    )
    assert "KUBECONFIG" not in environment


async def test_adopt_returns_a_running_process_by_name(folder: Path) -> None:
    started = await Process.start(folder, declared(*SLEEP))
    adopted = Process.adopt(folder, "a")
    assert adopted is not None
    assert (adopted.pid, adopted.hash) == (started.pid, declared(*SLEEP).command.hash)
    await adopted.stop()
    assert not started.is_running
    assert Process.adopt(folder, "a") is None


async def test_adopt_returns_none_for_an_unknown_process(folder: Path) -> None:
    assert Process.adopt(folder, "a") is None


async def test_a_process_survives_its_python_parent(folder: Path) -> None:
    script = f"""
import asyncio, os, pathlib, signal
from capelin_embedded.processes import Command, ProcessSpec, Process
async def main():
    a = ProcessSpec(name="a", command=Command({SLEEP!r}))
    await Process.start(pathlib.Path({str(folder)!r}), a)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    assert await parent.wait() == -signal.SIGKILL
    process = Process.adopt(folder, "a")
    assert process is not None
    assert process.is_running
    ended = await process.stop()
    assert ended.status is None
    assert ended.reason == "ended, cause unknown"


async def test_record_with_a_reused_pid_is_ignored(
    folder: Path,
) -> None:
    stranger = subprocess.Popen(SLEEP)  # noqa: ASYNC220 - this process does not belong to the event loop
    try:
        await (await Process.start(folder, declared(*SLEEP))).stop()
        identity = identify(stranger.pid)
        assert identity is not None
        earlier = dataclasses.replace(identity, start_time=identity.start_time - 1)
        state_dir.write_record(folder, state_dir.Record("a", earlier, "hash", 0, (), 1.0))
        assert Process.adopt(folder, "a") is None
        await kill_all(folder)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_stop_sends_sigterm(folder: Path) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo hello; while :; do sleep 0.01; done"
    process = await Process.start(folder, declared(*shell(script)))
    await first_line(process)
    ended = await process.stop()
    assert ended.status == 0
    assert lines(process.log) == ["hello", "bye"]


async def test_stop_kills_a_process_after_its_grace_period(folder: Path) -> None:
    script = "trap '' TERM; echo hello; while :; do sleep 0.01; done"
    process = await Process.start(folder, declared(*shell(script), grace=0.05))
    await first_line(process)
    began = time.monotonic()
    ended = await process.stop()
    assert time.monotonic() - began >= 0.05
    assert ended.reason == "was killed by SIGKILL"


@pytest.mark.parametrize("adopted", [False, True])
async def test_stop_also_ends_children_of_the_process(folder: Path, adopted: bool) -> None:
    process = await Process.start(folder, declared(*shell("sleep 1000 & echo $!; wait")))
    child = int(await first_line(process))
    assert not is_dead(child)
    if adopted:
        process = Process.adopt(folder, "a") or process
    await process.stop()
    assert is_dead(child)


async def test_the_reason_of_an_exit_contains_the_last_error(folder: Path) -> None:
    process = await Process.start(folder, declared(*shell("echo Error: no disk; exit 3")))
    ended = await process.wait()
    assert (ended.status, ended.reason) == (3, "exited with code 3: Error: no disk")
    silent = await Process.start(folder, declared(*shell("exit 4")))
    assert (await silent.wait()).reason == "exited with code 4"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("error: the other process was killed", "ended, cause unknown"),
        ("panic: no disk", "ended: panic: no disk"),
    ],
)
async def test_end_of_an_adopted_process(folder: Path, log: str, reason: str) -> None:
    script = f"""
import asyncio, pathlib
from capelin_embedded.processes import Command, ProcessSpec, Process
a = ProcessSpec(name="a", command=Command(("/bin/sh", "-c", "echo {log}; exec sleep 1000")))
asyncio.run(Process.start(pathlib.Path({str(folder)!r}), a))
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    assert await parent.wait() == 0
    process = Process.adopt(folder, "a")
    assert process is not None
    await first_line(process)
    process.signal(signal.SIGKILL)
    assert (await process.wait()).reason == reason


async def test_a_missing_program_leaves_no_record(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await Process.start(folder, declared("/no/such/program"))
    assert Process.adopt(folder, "a") is None


@pytest.mark.parametrize(
    "unusable",
    [
        declared(*SLEEP, environment={"A=B": "1"}),
        declared(*SLEEP, environment={"A\0": "1"}),
        declared(*SLEEP, environment={"A": "\0"}),
        declared(*SLEEP, "\0"),
    ],
)
async def test_invalid_arguments_fail_the_start(folder: Path, unusable: ProcessSpec) -> None:
    with pytest.raises(OSError, match="cannot be passed") as error:
        await Process.start(folder, unusable)
    assert error.value.strerror is not None
    assert error.value.filename == SLEEP[0]
    assert Process.adopt(folder, "a") is None


async def test_unrecorded_process_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def is_full(_: Path, record: state_dir.Record) -> None:
        started.append(record.identity.pid)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(state_dir, "write_record", is_full)
    with pytest.raises(OSError, match="No space left"):
        await Process.start(folder, declared(*SLEEP))
    (pid,) = started
    assert identify(pid) is None


async def test_a_process_has_the_given_niceness(folder: Path) -> None:
    # Tests may run with a niceness of their own.
    nice = min(os.nice(0) + 7, 19)
    process = await Process.start(folder, declared(*SLEEP, limits=Limits(nice=nice)))
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == nice


async def test_a_limited_process_without_cgroups_is_niced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = declared(*SLEEP, limits=Limits(memory_bytes=50_000_000, cpus=0.5))
    process = await Process.start(folder, limited)
    record = state_dir.read_record(folder, "a")
    assert record is not None
    is_limited = any(has_quota(group) for group in record.groups)
    nice = os.getpriority(os.PRIO_PROCESS, process.pid)
    await process.stop()
    niced = max(10, os.nice(0))
    assert nice == (os.nice(0) if is_limited else niced)

    def no_groups(*_: object) -> Iterator[cgroups.Group]:
        return iter(())

    monkeypatch.setattr(cgroups, "groups", no_groups)
    process = await Process.start(folder, limited)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == niced


async def test_timer_slack_applies_only_to_the_process(folder: Path) -> None:
    before = slack()
    limits = Limits(timer_slack=0.05)
    process = await Process.start(
        folder, declared(*shell("exec cat /proc/self/timerslack_ns"), limits=limits)
    )
    assert await first_line(process) == "50000000"
    assert slack() == before


@pytest.mark.integration
@pytest.mark.representative
async def test_control_groups_enforce_a_memory_limit(folder: Path) -> None:
    limits = Limits(memory_bytes=50_000_000)
    greedy = shell(f"sleep 0.2; exec {sys.executable} -c 'x = b\"x\" * 10**9; input()'")
    process = await Process.start(folder, declared(*greedy, limits=limits))
    record = state_dir.read_record(folder, "a")
    assert record is not None
    assert record.groups, "only a user who can create control groups can run this test"
    ended = await process.wait()
    assert ended.reason == "was killed by SIGKILL: it needed more memory than its limit"
    assert all(exists(group) for group in record.groups)
    state_dir.remove_record(folder, "a")
    assert not any(exists(group) for group in record.groups)


async def test_kill_all_kills_all_processes_of_a_folder(folder: Path) -> None:
    names = ("a", "b", "c")
    command = Command(SLEEP)
    started = [await Process.start(folder, ProcessSpec(name=n, command=command)) for n in names]
    state_dir.remove_record(folder, "b")
    await kill_all(folder)
    assert not any(process.is_running for process in started)
