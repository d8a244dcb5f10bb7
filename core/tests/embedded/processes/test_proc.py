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
from capelin.embedded.processes import marked_processes
from capelin.embedded.processes.proc import Handle, Identity, boot_id, identify, kill

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
    """The pid of a process whose parent is gone."""
    script = "import subprocess as s; print(s.Popen(['/bin/sleep', '1000'], stdout=s.DEVNULL).pid)"
    return int(subprocess.check_output([sys.executable, "-c", script]))


@pytest.fixture
def has_pidfd() -> bool:
    return True


@pytest.fixture(autouse=True)
def _kernel(has_pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(errno.ENOSYS, "no pidfd")

    if not has_pidfd:
        monkeypatch.setattr(os, "pidfd_open", refuse)


def whoever(pid: int) -> Identity:
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


def test_a_program_with_brackets_in_its_name_is_identified(tmp_path: Path) -> None:
    program = tmp_path / "a) b (c"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "1000"]) as process:
        try:
            assert whoever(process.pid).start_time > 0
        finally:
            process.kill()


@BOTH
@pytest.mark.parametrize("differs", ["start_time", "boot"])
def test_reused_pid_cannot_be_held(child: subprocess.Popen[bytes], differs: str) -> None:
    other = {"start_time": {"start_time": 1}, "boot": {"boot": "an earlier one"}}[differs]
    assert Handle.open(dataclasses.replace(whoever(child.pid), **other)) is None


@BOTH
async def test_child_is_signalled_and_collected(
    child: subprocess.Popen[bytes],
) -> None:
    handle = hold(whoever(child.pid))
    assert handle.is_alive()
    handle.send(signal.SIGTERM)
    await handle.wait()
    assert not handle.is_alive()
    assert handle.reap() == -signal.SIGTERM
    assert handle.reap() is None
    child.returncode = 0


@BOTH
@pytest.mark.parametrize("arguments", [["/bin/sh", "-c", "exit 7"]])
async def test_an_exit_code_is_told(child: subprocess.Popen[bytes]) -> None:
    handle = hold(whoever(child.pid))
    await handle.wait()
    assert handle.reap() == 7
    child.returncode = 7


@BOTH
async def test_several_may_wait_for_one_end(child: subprocess.Popen[bytes]) -> None:
    handle = hold(whoever(child.pid))
    waiting = [asyncio.create_task(handle.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    handle.send(signal.SIGKILL)
    await asyncio.gather(*waiting)
    handle.send(signal.SIGKILL)


@BOTH
async def test_the_end_of_somebody_elses_child_is_seen(orphan: int) -> None:
    handle = hold(whoever(orphan))
    handle.send(signal.SIGKILL)
    await handle.wait()
    assert handle.reap() is None


async def test_waiting_leaves_no_descriptor_behind(child: subprocess.Popen[bytes]) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def lose_patience() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await hold(whoever(child.pid)).wait()

    await lose_patience()
    gc.collect()
    before = descriptors()
    for _ in range(20):
        await lose_patience()
    gc.collect()  # the exceptions hold on to the last of them
    assert descriptors() <= before


@pytest.mark.parametrize("has_pidfd", [False])
def test_reused_pid_is_not_signalled(
    child: subprocess.Popen[bytes],
) -> None:
    earlier = Handle(dataclasses.replace(whoever(child.pid), start_time=1), None)
    assert not earlier.is_alive()
    earlier.send(signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.05)


async def test_ending_a_stranger_with_our_pid_hits_nobody(child: subprocess.Popen[bytes]) -> None:
    await kill(Identity(child.pid, 1, boot_id()))
    with pytest.raises(subprocess.TimeoutExpired):
        await asyncio.to_thread(child.wait, 0.05)


def test_marked_processes_are_found_by_their_folder(tmp_path: Path) -> None:
    def start(folder: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sleep", "1000"],
            env={"CAPELIN_PROCESS": f"{folder}/a"},
            start_new_session=True,
        )

    ours, other = start(tmp_path), start(tmp_path.with_name("other"))
    try:
        found = marked_processes(tmp_path)
        assert [(one.identity.pid, one.session, one.name) for one in found] == [
            (ours.pid, ours.pid, "a")
        ]
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()
