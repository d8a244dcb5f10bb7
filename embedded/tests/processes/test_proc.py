import asyncio
import dataclasses
import errno
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from capelin_embedded.processes import marked_processes
from capelin_embedded.processes.proc import Handle, Identity, boot_id, identify, kill

BOTH = pytest.mark.parametrize("has_pidfd", [True, False])


@pytest.fixture
def arguments() -> list[str]:
    return ["/bin/sleep", "1000"]


@pytest.fixture
def child(arguments: list[str]) -> Generator[subprocess.Popen[bytes]]:
    with subprocess.Popen(arguments) as process:
        yield process
        process.kill()


@pytest.fixture
def orphan() -> int:
    """The pid of a process whose parent has ended."""
    script = "import subprocess as s; print(s.Popen(['/bin/sleep', '1000'], stdout=s.DEVNULL).pid)"
    return int(subprocess.check_output([sys.executable, "-c", script]))


@pytest.fixture
def has_pidfd() -> bool:
    return True


@pytest.fixture(autouse=True)
def _kernel(has_pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_pid: int) -> int:
        raise OSError(errno.ENOSYS, "no pidfd")

    if not has_pidfd:
        monkeypatch.setattr(os, "pidfd_open", fail)


def identity_of(pid: int) -> Identity:
    identity = identify(pid)
    assert identity is not None
    return identity


def hold(identity: Identity) -> Handle:
    handle = Handle.open(identity)
    assert handle is not None
    return handle


def test_identity_is_stable_and_unique(
    child: subprocess.Popen[bytes],
) -> None:
    assert identify(child.pid) == identify(child.pid)
    assert identify(child.pid) != identify(os.getpid())
    assert identify(2**22 + 1) is None


def test_a_program_with_brackets_in_its_name_has_an_identity(tmp_path: Path) -> None:
    program = tmp_path / "a) b (c"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "1000"]) as process:
        try:
            assert identity_of(process.pid).start_time > 0
        finally:
            process.kill()


@BOTH
@pytest.mark.parametrize("differs", ["start_time", "boot"])
def test_open_returns_none_for_a_reused_pid(child: subprocess.Popen[bytes], differs: str) -> None:
    other = {"start_time": {"start_time": 1}, "boot": {"boot": "an earlier one"}}[differs]
    assert Handle.open(dataclasses.replace(identity_of(child.pid), **other)) is None


@BOTH
async def test_a_child_is_signalled_and_reaped(
    child: subprocess.Popen[bytes],
) -> None:
    handle = hold(identity_of(child.pid))
    assert handle.is_alive()
    handle.send(signal.SIGTERM)
    await handle.wait()
    assert not handle.is_alive()
    assert handle.reap() == -signal.SIGTERM
    assert handle.reap() is None
    child.returncode = 0


@BOTH
@pytest.mark.parametrize("arguments", [["/bin/sh", "-c", "exit 7"]])
async def test_reap_returns_the_exit_code(child: subprocess.Popen[bytes]) -> None:
    handle = hold(identity_of(child.pid))
    await handle.wait()
    assert handle.reap() == 7
    child.returncode = 7


@BOTH
async def test_several_tasks_can_wait_for_one_process(child: subprocess.Popen[bytes]) -> None:
    handle = hold(identity_of(child.pid))
    waiting = [asyncio.create_task(handle.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    handle.send(signal.SIGKILL)
    await asyncio.gather(*waiting)
    handle.send(signal.SIGKILL)


@BOTH
async def test_wait_returns_when_an_unrelated_process_ends(orphan: int) -> None:
    handle = hold(identity_of(orphan))
    handle.send(signal.SIGKILL)
    await handle.wait()
    assert handle.reap() is None


async def test_waiting_tasks_share_one_descriptor(child: subprocess.Popen[bytes]) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    handle = hold(identity_of(child.pid))
    before = descriptors()
    waiting = [asyncio.create_task(handle.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert descriptors() == before
    waiting[0].cancel()
    handle.send(signal.SIGKILL)
    await asyncio.gather(*waiting[1:])


async def test_waiting_leaves_no_descriptor_behind(child: subprocess.Popen[bytes]) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def lose_patience() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await hold(identity_of(child.pid)).wait()

    await lose_patience()
    gc.collect()
    before = descriptors()
    for _ in range(20):
        await lose_patience()
    gc.collect()  # the exceptions reference the last of them
    assert descriptors() <= before


@pytest.mark.parametrize("has_pidfd", [False])
def test_a_reused_pid_is_not_signalled(
    child: subprocess.Popen[bytes],
) -> None:
    earlier = Handle(dataclasses.replace(identity_of(child.pid), start_time=1), None)
    assert not earlier.is_alive()
    earlier.send(signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.05)


async def test_kill_does_not_end_another_process_with_a_reused_pid(
    child: subprocess.Popen[bytes],
) -> None:
    await kill(Identity(child.pid, 1, boot_id()))
    with pytest.raises(subprocess.TimeoutExpired):
        await asyncio.to_thread(child.wait, 0.05)


def test_marked_processes_returns_processes_of_the_folder(tmp_path: Path) -> None:
    def start(folder: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sleep", "1000"],
            env={"CAPELIN_PROCESS": f"{folder}/a"},
            start_new_session=True,
        )

    ours, other = start(tmp_path), start(tmp_path.with_name("other"))
    try:
        marked = marked_processes(tmp_path)
        assert [(process.identity.pid, process.session, process.name) for process in marked] == [
            (ours.pid, ours.pid, "a")
        ]
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()
