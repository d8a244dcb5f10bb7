"""The checklist of steps, and their timings."""

import asyncio
import fcntl
import io
import os
import pty
import sys
import termios

import pytest
from capelin_cli.terminal.checklist import Checklist, timings_data, timings_table
from rich.console import Console

from tests.support.clock import MonotonicClock


def plain() -> tuple[Checklist, io.StringIO]:
    out = io.StringIO()
    return Checklist(Console(file=out, width=100)), out


def test_a_log_gets_a_line_for_each_step_that_ended() -> None:
    checklist, out = plain()
    with checklist.shown():
        line = checklist.begin("programs")
        checklist.update(line, "compiling")
        assert out.getvalue() == ""
        checklist.end(line, seconds=1.25, detail="Kubernetes v1.34.4")
        with checklist.step("cluster"):
            pass
    assert out.getvalue().splitlines()[0] == "✔ programs  1.2 s  Kubernetes v1.34.4"
    assert out.getvalue().splitlines()[1].startswith("✔ cluster  0.0 s")


def test_a_log_contains_the_notes_of_a_long_step() -> None:
    checklist, out = plain()
    with checklist.shown():
        line = checklist.begin("programs")
        checklist.note(line, "etcd: go build")
        checklist.end(line, seconds=1.25)
    assert out.getvalue().splitlines() == ["· etcd: go build", "✔ programs  1.2 s"]


def test_a_failed_step_shows_its_last_activity() -> None:
    checklist, out = plain()

    def fail() -> None:
        with checklist.step("programs") as line:
            checklist.update(line, "compiling")
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert out.getvalue().startswith("✘ programs")
    assert "compiling" in out.getvalue()


def test_a_terminal_shows_the_whole_list() -> None:
    out = io.StringIO()
    console = Console(file=out, width=60, force_terminal=True, color_system=None)
    checklist = Checklist(console)
    with checklist.shown():
        checklist.end(checklist.begin("first"), seconds=1.0)
        checklist.update(checklist.begin("second"), "doing it")
    with console.capture() as capture:
        console.print(checklist.render())
    first, second = capture.get().splitlines()
    assert first.split() == ["✔", "first", "1.0", "s"]
    assert "second" in second
    assert "doing it" in second


def test_a_terminal_does_not_cut_a_long_command() -> None:
    out = io.StringIO()
    console = Console(file=out, width=40, force_terminal=True, color_system=None)
    checklist = Checklist(console)
    annotation = "approval.runtime.example.com/production-upgrades=54ae4228:USER"
    line = checklist.begin("upgraded")
    checklist.update(line, f"kubectl annotate {annotation}")
    console.print(checklist.render())
    assert "…" not in out.getvalue()
    assert annotation in "".join(out.getvalue().split())


def test_without_a_terminal_a_long_step_reports_its_reason_periodically() -> None:
    out = io.StringIO()
    checklist = Checklist(Console(file=out), every=0)
    line = checklist.begin("cluster demo")
    checklist.update(line, "no leader")
    assert out.getvalue() == "· cluster demo  0 s  no leader\n"
    seldom = Checklist(Console(file=out), every=60)
    seldom.update(seldom.begin("cluster demo"), "no leader")
    assert out.getvalue().count("no leader") == 1


WAITS = """
import time
from capelin_cli.terminal.checklist import Checklist
from rich.console import Console

with Checklist(Console()).shown() as checklist, checklist.step("cluster") as line:
    checklist.update(line, "waits")
    time.sleep(60)
"""


SHELL = """
import signal, subprocess, sys

# Like a shell: it survives Ctrl-C, and its terminal outlives the command.
signal.signal(signal.SIGINT, lambda *_: None)
subprocess.run([sys.executable, "-c", sys.argv[1]])
print("prompt", flush=True)
signal.pause()
"""


async def test_ctrl_c_is_not_echoed_into_the_list() -> None:
    primary, secondary = pty.openpty()
    shell = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SHELL,
        WAITS,
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm"},
        preexec_fn=lambda: fcntl.ioctl(secondary, termios.TIOCSCTTY, 0),
    )

    async def screen_until(text: bytes) -> bytes:
        screen = b""
        while text not in screen:
            screen += await asyncio.to_thread(os.read, primary, 4096)
        return screen

    screen = await screen_until(b"waits")
    os.write(primary, b"\x03")
    screen += await screen_until(b"prompt")
    # The terminal is as it was.
    assert int(termios.tcgetattr(secondary)[3]) & termios.ECHOCTL
    shell.kill()
    await shell.wait()
    os.close(secondary)
    os.close(primary)
    assert "✘".encode() in screen
    assert b"^C" not in screen


@pytest.fixture
def clock() -> MonotonicClock:
    return MonotonicClock()


@pytest.fixture
def checklist(clock: MonotonicClock) -> Checklist:
    """Two steps that overlap, and a third that failed."""
    checklist = Checklist(Console(quiet=True), clock=clock)
    server = checklist.begin("etcd and the API server")
    clock.now += 0.5
    checklist.update(server, "etcd: Starting")
    clock.now += 1.0
    programs = checklist.begin("programs")
    for done in range(3):
        checklist.update(programs, f"etcd: go build: {done} of 3 packages", reason="etcd: go build")
        clock.now += 0.25
    checklist.end(programs)
    checklist.update(server, "kube-apiserver: Starting")
    clock.now += 2.0
    checklist.update(server, "etcd: Starting")
    clock.now += 0.25
    checklist.end(server)
    cluster = checklist.begin("cluster demo")
    checklist.fail(cluster, "it was deleted")
    return checklist


def test_seconds_are_counted_for_each_reason(checklist: Checklist) -> None:
    server, programs, cluster = timings_data(checklist.lines)
    assert server == {
        "stage": "etcd and the API server",
        "state": "done",
        "began": 0.0,
        "seconds": 4.5,
        "waitedFor": [
            {"reason": "etcd: Starting", "seconds": 2.0},
            {"reason": "kube-apiserver: Starting", "seconds": 2.0},
        ],
    }
    # Amounts that change all the time are one reason.
    assert (programs["began"], programs["seconds"]) == (1.5, 0.75)
    assert programs["waitedFor"] == [{"reason": "etcd: go build", "seconds": 0.75}]
    assert (cluster["state"], cluster["waitedFor"]) == ("failed", [])


def test_a_running_step_has_no_duration(clock: MonotonicClock) -> None:
    checklist = Checklist(Console(quiet=True), clock=clock)
    checklist.begin("programs")
    assert [stage["seconds"] for stage in timings_data(checklist.lines)] == [None]


def test_a_step_of_another_process_started_earlier(clock: MonotonicClock) -> None:
    checklist = Checklist(Console(quiet=True), clock=clock)
    checklist.end(checklist.begin("programs"))
    clock.now += 10.0
    checklist.end(checklist.begin("etcd and the API server"), seconds=4.0)
    stages = timings_data(checklist.lines)
    assert [(stage["began"], stage["seconds"]) for stage in stages] == [(0.0, 0.0), (6.0, 4.0)]


def test_timings_are_a_table_by_default(checklist: Checklist) -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(timings_table(checklist.lines))
    rows = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert rows == [
        "STAGE BEGAN TOOK WAITED FOR",
        "etcd and the API server 0.0 s 4.5 s 2.0 s etcd: Starting",
        "2.0 s kube-apiserver: Starting",
        "programs 1.5 s 0.8 s 0.8 s etcd: go build",
        "cluster demo 4.5 s 0.0 s",
    ]
