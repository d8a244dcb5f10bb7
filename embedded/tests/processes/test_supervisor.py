"""A supervisor keeps declared processes running, also after its own crash."""

import asyncio
import errno
import os
import shutil
import signal
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from capelin.testing.waiting import until
from capelin_embedded.addresses import free_port
from capelin_embedded.processes import (
    AlreadySupervisedError,
    Backoff,
    Command,
    Limits,
    Liveness,
    NotReadyError,
    Phase,
    Probe,
    Process,
    ProcessSpec,
    Supervisor,
    SupervisorFailedError,
    liveness_probe,
    state_dir,
    tcp_probe,
)

SLEEP = ("/bin/sleep", "1000")
QUICK = Backoff(first=0.001, longest=0.002)


def declared(
    name: str, *after: str, arguments: tuple[str, ...] = SLEEP, ready: Probe | None = None
) -> ProcessSpec:
    return ProcessSpec(name=name, command=Command(arguments), after=after, readiness=ready)


def journaling(journal: Path, name: str) -> tuple[str, ...]:
    """A program that records its start and its SIGTERM."""
    write = f"echo {{}} {name} >> {journal}"
    script = (
        f"trap '{write.format('stop')}; exit 0' TERM; {write.format('start')}; sleep 1000 & wait"
    )
    return ("/bin/sh", "-c", script)


def entries(journal: Path) -> list[str]:
    return journal.read_text().splitlines() if journal.exists() else []


async def has_started(journal: Path, name: str) -> AsyncGenerator[str, None]:
    while True:
        yield "" if f"start {name}" in entries(journal) else "it has not recorded its start"


def pid_of(supervisor: Supervisor, name: str) -> int:
    pid = supervisor.states[name].pid
    assert pid is not None
    return pid


async def replaced(supervisor: Supervisor, pid: int, name: str = "a") -> int:
    """Kill a process and wait for its replacement."""
    os.kill(pid, signal.SIGKILL)
    await until(lambda: supervisor.states[name].pid not in {None, pid})
    return pid_of(supervisor, name)


def arguments_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


def exists(path: str) -> bool:
    return Path(path).exists()


def descriptors_of(pid: int) -> set[str]:
    return {path.name for path in Path(f"/proc/{pid}/fd").iterdir()}


async def test_declared_processes_run(folder: Path) -> None:
    async with Supervisor(folder) as supervisor:
        supervisor.declare(declared("a"), declared("b"))
        await supervisor.ready()
        assert {name: state.phase for name, state in supervisor.states.items()} == {
            "a": Phase.RUNNING,
            "b": Phase.RUNNING,
        }


async def test_processes_start_in_order_and_stop_in_reverse(folder: Path) -> None:
    journal = folder / "journal"
    names = ("etcd", "api", "manager")
    async with Supervisor(folder) as supervisor:
        supervisor.declare(
            *(
                declared(
                    name,
                    *names[max(0, index - 1) : index],
                    arguments=journaling(journal, name),
                    ready=partial(has_started, journal, name),
                )
                for index, name in enumerate(names)
            )
        )
        await supervisor.ready()
        await supervisor.stop()
        assert supervisor.states == {}
    assert entries(journal) == [
        "start etcd",
        "start api",
        "start manager",
        "stop manager",
        "stop api",
        "stop etcd",
    ]
    assert list(state_dir.recorded_names(folder)) == []


async def test_another_supervisor_stops_undeclared_processes_in_order(folder: Path) -> None:
    journal = folder / "journal"
    async with Supervisor(folder) as supervisor:
        supervisor.declare(
            *(
                declared(
                    name,
                    *after,
                    arguments=journaling(journal, name),
                    ready=partial(has_started, journal, name),
                )
                for name, after in (("api", ("etcd",)), ("etcd", ()))
            )
        )
        await supervisor.ready()
    async with Supervisor(folder) as supervisor:
        await supervisor.stop()
    assert entries(journal)[2:] == ["stop api", "stop etcd"]


async def test_a_killed_process_restarts(folder: Path) -> None:
    async with Supervisor(folder, backoff=QUICK) as supervisor:
        supervisor.declare(declared("a"))
        await supervisor.ready()
        first = await replaced(supervisor, pid_of(supervisor, "a"))
        await replaced(supervisor, first)
        await supervisor.ready()


async def test_process_restarts_when_its_children_cannot_be_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: Process) -> None:
        raise OSError(errno.EMFILE, "Too many open files", "/proc")

    monkeypatch.setattr(Process, "kill_session", fail)
    async with Supervisor(folder, backoff=QUICK) as supervisor:
        supervisor.declare(declared("a"), declared("b"))
        await supervisor.ready()
        other = pid_of(supervisor, "b")
        await replaced(supervisor, pid_of(supervisor, "a"))
        assert pid_of(supervisor, "b") == other
        monkeypatch.undo()


async def test_restarts_are_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with Supervisor(folder, backoff=QUICK) as supervisor:
        supervisor.declare(declared("a"), declared("b"))
        await supervisor.ready()
        await replaced(supervisor, pid_of(supervisor, "a"))
        await replaced(supervisor, pid_of(supervisor, "a"))
        states = supervisor.states
        assert (states["a"].restarts, states["b"].restarts) == (2, 0)
        assert states["a"].last_end == "was killed by SIGKILL"
        assert "a has ended and is started again: was killed by SIGKILL" in caplog.text
        supervisor.declare(declared("a", arguments=("/bin/sleep", "2000")), declared("b"))
        await supervisor.ready()
        assert supervisor.states["a"].restarts == 2, "a replacement is not a restart"


async def test_restarts_are_counted_across_supervisors(folder: Path) -> None:
    async with Supervisor(folder, backoff=QUICK) as supervisor:
        supervisor.declare(declared("a"), declared("b"))
        await supervisor.ready()
        await replaced(supervisor, pid_of(supervisor, "a"))
        lost = pid_of(supervisor, "b")
    os.kill(lost, signal.SIGKILL)
    await until(lambda: Process.adopt(folder, "b") is None)
    async with Supervisor(folder, backoff=QUICK) as supervisor:
        supervisor.declare(declared("a"), declared("b"))
        await supervisor.ready()
        first, second = supervisor.states["a"], supervisor.states["b"]
        assert (first.restarts, first.last_end) == (1, "was killed by SIGKILL")
        assert (second.restarts, second.last_end) == (
            1,
            "ended while nothing supervised it, cause unknown",
        )
        await supervisor.stop()
    async with Supervisor(folder, backoff=QUICK) as supervisor:
        supervisor.declare(declared("a"))
        await supervisor.ready()
        assert supervisor.states["a"].restarts == 0, "a start after a stop is not a restart"


async def test_a_killed_process_leaves_no_record_and_no_groups(folder: Path) -> None:
    limited = Command(SLEEP, limits=Limits(memory_bytes=50_000_000, cpus=1))
    async with Supervisor(folder, backoff=Backoff(first=3600, longest=3600)) as supervisor:
        supervisor.declare(ProcessSpec(name="a", command=limited))
        await supervisor.ready()
        record = state_dir.read_record(folder, "a")
        assert record is not None
        os.kill(pid_of(supervisor, "a"), signal.SIGKILL)
        await until(lambda: supervisor.states["a"].phase is Phase.BACKING_OFF)
        assert list(state_dir.recorded_names(folder)) == []
        # Without permissions for control groups, the record has none.
        assert not any(map(exists, record.groups))


SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[2]))
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def server(status: int) -> ProcessSpec:
    port = free_port("127.0.0.1")
    return ProcessSpec(
        name="a",
        command=Command((sys.executable, "-I", "-S", "-c", SERVER, str(port), str(status))),
        readiness=partial(tcp_probe, "127.0.0.1", port),
        liveness=Liveness(
            probe=partial(liveness_probe, f"http://127.0.0.1:{port}", within=0.2),
            period=0.01,
            retry_period=0.01,
        ),
    )


async def test_a_hung_process_restarts(folder: Path) -> None:
    async with Supervisor(folder, backoff=Backoff(first=0.2, longest=0.2)) as supervisor:
        supervisor.declare(server(403))
        await supervisor.ready()
        pid = pid_of(supervisor, "a")
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: supervisor.states["a"].phase is Phase.BACKING_OFF)
        assert supervisor.states["a"].reason.startswith("hung: http://127.0.0.1:")
        assert supervisor.states["a"].reason.endswith(" did not answer for 0.2 s")
        await supervisor.ready()
        assert pid_of(supervisor, "a") != pid


async def test_a_process_stopped_by_a_signal_restarts_before_the_threshold(folder: Path) -> None:
    """None of its threads runs, so it hangs regardless of the threshold."""
    spec = server(403)
    assert spec.liveness is not None
    patient = replace(spec, liveness=replace(spec.liveness, failure_threshold=10_000))
    async with Supervisor(folder, backoff=QUICK) as supervisor, asyncio.timeout(20):
        supervisor.declare(patient)
        await supervisor.ready()
        pid = pid_of(supervisor, "a")
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: supervisor.states["a"].pid not in {None, pid})


async def test_a_process_stopped_by_a_signal_before_it_is_ready_restarts(folder: Path) -> None:
    """Liveness probes begin only when it is ready."""
    spec = server(403)
    assert spec.liveness is not None
    began, free = asyncio.Event(), asyncio.Event()

    async def never_ready() -> AsyncGenerator[str, None]:
        while not free.is_set():
            began.set()
            yield "it is starting"
        yield ""

    starting = replace(
        spec, readiness=never_ready, liveness=replace(spec.liveness, stalled_seconds=0.5)
    )
    async with Supervisor(folder, backoff=QUICK) as supervisor, asyncio.timeout(30):
        supervisor.declare(starting)
        await began.wait()
        pid = pid_of(supervisor, "a")
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: supervisor.states["a"].pid not in {None, pid})
        free.set()
        await supervisor.ready()


async def test_a_live_process_that_stops_serving_is_not_ready(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capelin_embedded.processes.lifecycle._UNREADY_SECONDS", 0.05)
    monkeypatch.setattr("capelin_embedded.processes.lifecycle._PROBE_RETRY_SECONDS", 0.01)
    missing = ""

    async def serves() -> AsyncGenerator[str, None]:
        while True:
            yield missing

    spec = replace(declared("a", ready=serves), readiness_period=0.01)
    async with Supervisor(folder) as supervisor:
        supervisor.declare(spec)
        await supervisor.ready()
        pid = pid_of(supervisor, "a")
        missing = "not yet: etcd"
        await until(lambda: supervisor.states["a"].phase is Phase.NOT_READY)
        assert supervisor.states["a"].reason == "not yet: etcd"
        missing = ""
        await supervisor.ready()
        assert supervisor.states["a"].reason == ""
        assert pid_of(supervisor, "a") == pid


async def test_short_failures_are_ignored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capelin_embedded.processes.lifecycle._PROBE_RETRY_SECONDS", 0.01)
    answers = ["", "", "not yet: etcd", "not yet: etcd", ""]
    results: list[str] = []

    async def serves() -> AsyncGenerator[str, None]:
        while True:
            results.append(answers[len(results)] if len(results) < len(answers) else "")
            yield results[-1]

    spec = replace(declared("a", ready=serves), readiness_period=0.01)
    phases: set[Phase] = set()
    async with Supervisor(folder) as supervisor:
        supervisor.declare(spec)
        await supervisor.ready()

        def all_answers_are_used() -> bool:
            phases.add(supervisor.states["a"].phase)
            return len(results) > len(answers)

        await until(all_answers_are_used)
    assert phases == {Phase.RUNNING}


async def test_slow_start_is_not_a_hang(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capelin_embedded.processes.lifecycle._ACTIVITY_SECONDS", 0.0)
    checks = asyncio.Semaphore(0)

    async def never_ready() -> AsyncGenerator[str, None]:
        while True:
            checks.release()
            yield "it is starting"

    busy = ProcessSpec(
        name="a",
        command=Command(("/bin/sh", "-c", "while :; do :; done")),
        readiness=never_ready,
        liveness=Liveness(probe=never_ready, stalled_seconds=0.0),
    )
    async with Supervisor(folder, backoff=QUICK) as supervisor, asyncio.timeout(30):
        supervisor.declare(busy)
        for _ in range(25):
            await checks.acquire()
        assert supervisor.states["a"].phase is not Phase.BACKING_OFF
        assert pid_of(supervisor, "a") is not None


async def test_a_busy_process_that_does_not_answer_is_not_hung(folder: Path) -> None:
    checks = asyncio.Semaphore(0)

    async def never_answers() -> AsyncGenerator[str, None]:
        while True:
            checks.release()
            yield "it did not answer"

    busy = ProcessSpec(
        name="a",
        command=Command(("/bin/sh", "-c", "while :; do :; done")),
        liveness=Liveness(
            probe=never_answers, period=0.01, retry_period=0.02, failure_threshold=1000
        ),
    )
    async with Supervisor(folder, backoff=QUICK) as supervisor, asyncio.timeout(20):
        supervisor.declare(busy)
        await supervisor.ready()
        pid = pid_of(supervisor, "a")
        for _ in range(20):
            await checks.acquire()
        assert pid_of(supervisor, "a") == pid


async def test_a_process_that_was_ready_always_restarts_at_once(
    folder: Path,
) -> None:
    spec = server(200)
    backoff = Backoff(first=0.01, factor=1e6, longest=3600, settled_after=0.05)
    async with Supervisor(folder, backoff=backoff) as supervisor, asyncio.timeout(30):
        supervisor.declare(replace(spec, liveness=None))
        for _ in range(4):
            await supervisor.ready()
            pid, settled = pid_of(supervisor, "a"), asyncio.Event()
            asyncio.get_running_loop().call_later(0.1, settled.set)
            await settled.wait()
            await replaced(supervisor, pid)


async def test_a_stopping_process_is_not_hung(folder: Path) -> None:
    journal = folder / "journal"
    drain = f"trap 'sleep 0.5; echo drained a >> {journal}; exit 0' TERM"
    script = f"{drain}; echo start a >> {journal}; sleep 1000 & wait"
    stopping = False

    async def is_live() -> AsyncGenerator[str, None]:
        while True:
            yield "it does not accept connections" if stopping else ""

    draining = ProcessSpec(
        name="a",
        command=Command(("/bin/sh", "-c", script)),
        readiness=partial(has_started, journal, "a"),
        liveness=Liveness(probe=is_live, period=0.01, retry_period=0.05),
    )
    async with Supervisor(folder) as supervisor:
        supervisor.declare(draining)
        await supervisor.ready()
        supervisor.declare()
        stopping = True
        await until(lambda: supervisor.states == {})
    assert entries(journal) == ["start a", "drained a"]


async def test_a_failed_start_check_is_reported_and_repeated(folder: Path) -> None:
    reasons = ["its disk is missing"]
    blocked = ProcessSpec(
        name="a", command=Command(SLEEP), start_check=lambda: reasons[0] if reasons else ""
    )
    async with Supervisor(folder, backoff=QUICK) as supervisor:
        supervisor.declare(blocked)
        await until(lambda: supervisor.states["a"].phase is Phase.FAILED)
        assert supervisor.states["a"].reason == "its disk is missing"
        assert not (folder / "a.log").exists()
        reasons.clear()
        await until(lambda: supervisor.states["a"].phase is Phase.RUNNING)


async def test_a_process_can_start_after_some_of_its_dependencies(folder: Path) -> None:
    async def never() -> AsyncGenerator[str, None]:
        while True:
            yield "no answer"

    patient = ProcessSpec(name="c", command=Command(SLEEP), after=("a", "b"))
    async with Supervisor(folder) as supervisor:
        supervisor.declare(declared("a"), declared("b", ready=never), patient)
        await until(lambda: supervisor.states["a"].phase is Phase.RUNNING)
        assert supervisor.states["c"].phase is Phase.WAITING
        supervisor.declare(declared("a"), declared("b", ready=never), replace(patient, enough=1))
        await until(lambda: supervisor.states["c"].phase is Phase.RUNNING)


async def test_a_process_starts_when_its_dependency_is_reachable(folder: Path) -> None:
    answers: list[str] = ["nothing listens"]

    async def reachable() -> AsyncGenerator[str, None]:
        while True:
            yield answers[0]

    async def never() -> AsyncGenerator[str, None]:
        while True:
            yield "no leader"

    async with Supervisor(folder) as supervisor:
        supervisor.declare(
            replace(declared("a", ready=never), reachable=reachable), declared("b", "a")
        )
        await until(lambda: supervisor.states["a"].reason == "nothing listens")
        assert supervisor.states["b"].phase is Phase.WAITING
        answers[0] = ""
        await until(lambda: supervisor.states["b"].phase is Phase.RUNNING)
        await until(lambda: supervisor.states["a"].reason == "no leader")
        assert supervisor.states["a"].phase is Phase.STARTING


async def test_a_process_that_answers_500_restarts(folder: Path) -> None:
    async with Supervisor(folder, backoff=Backoff(first=0.2, longest=0.2)) as supervisor:
        supervisor.declare(server(500))
        await until(lambda: supervisor.states["a"].phase is Phase.BACKING_OFF)
        assert supervisor.states["a"].reason == "hung: it answers 500"


async def test_a_crash_loop_is_reported_with_its_reason(
    folder: Path,
) -> None:
    failing = declared("a", arguments=("/bin/sh", "-c", "echo Error: no disk; exit 3"))

    async def never() -> AsyncGenerator[str, None]:
        while True:
            yield "no answer"

    async with Supervisor(folder, backoff=QUICK) as supervisor:
        supervisor.declare(ProcessSpec(name="a", command=failing.command, readiness=never))
        with pytest.raises(NotReadyError) as error:
            await supervisor.ready()
        assert str(error.value) == (
            f"a is not ready (Failed): exited with code 3: Error: no disk (log: {folder}/a.log)"
        )


async def test_a_new_command_starts_at_once_after_a_failed_one(folder: Path) -> None:
    async with Supervisor(folder, backoff=Backoff(first=3600, longest=3600)) as supervisor:
        supervisor.declare(declared("a", arguments=("/no/such/program",)))
        await until(lambda: supervisor.states["a"].phase is Phase.BACKING_OFF)
        assert supervisor.states["a"].reason == (
            "cannot be started: No such file or directory: /no/such/program"
        )
        supervisor.declare(declared("a"))
        await supervisor.ready()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "Cannot allocate memory"),
        (OSError(errno.ENOENT, "No such file", "/shoal"), "No such file: /shoal"),
        (ChildProcessError("another process has reaped a"), "another process has reaped a"),
    ],
)
async def test_the_reason_of_a_failed_start_contains_the_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, expected: str
) -> None:
    async def fails(*_: object, **__: object) -> Process:
        raise error

    monkeypatch.setattr(Process, "start", fails)
    async with Supervisor(folder) as supervisor:
        supervisor.declare(declared("a"))
        await until(lambda: supervisor.states["a"].reason)
        assert supervisor.states["a"].reason == f"cannot be started: {expected}"


async def test_ready_fails_with_the_reason_for_each_unready_process(folder: Path) -> None:
    async def never() -> AsyncGenerator[str, None]:
        while True:
            yield "no answer"

    async with Supervisor(folder) as supervisor:
        supervisor.declare(declared("a", ready=never), declared("b", "a"))
        await until(lambda: supervisor.states["a"].reason == "no answer")
        with pytest.raises(NotReadyError) as error:
            await supervisor.ready(within=0.05)
        assert str(error.value) == (
            f"a is not ready (Starting): no answer (log: {folder}/a.log); "
            f"b is not ready (Waiting) (log: {folder}/b.log)"
        )


async def test_the_next_supervisor_adopts_processes(
    folder: Path,
) -> None:
    async with Supervisor(folder) as supervisor:
        supervisor.declare(declared("a"))
        await supervisor.ready()
        pid = pid_of(supervisor, "a")
    async with Supervisor(folder, backoff=QUICK) as supervisor:
        supervisor.declare(declared("a"))
        await supervisor.ready()
        assert pid_of(supervisor, "a") == pid
        await replaced(supervisor, pid)


async def test_probed_waits_for_the_first_results_of_probes(folder: Path) -> None:
    async def answers_late() -> AsyncGenerator[str, None]:
        await asyncio.sleep(0.05)
        yield ""

    async def never() -> AsyncGenerator[str, None]:
        while True:
            yield "no answer"

    async def hangs() -> AsyncGenerator[str, None]:
        await asyncio.sleep(1000)
        yield ""

    async with Supervisor(folder) as supervisor:
        supervisor.declare(declared("a"), declared("b"), declared("c"))
        await supervisor.ready()
    async with Supervisor(folder) as supervisor:
        supervisor.declare(declared("a", ready=answers_late), declared("b", ready=never))
        await supervisor.probed(within=20)
        states = supervisor.states
        assert (states["a"].phase, states["b"].phase) == (Phase.RUNNING, Phase.STARTING)
    async with Supervisor(folder) as supervisor:
        supervisor.declare(declared("a", ready=hangs))
        await supervisor.probed(within=0.05)
        assert supervisor.states["a"].phase is Phase.STARTING


async def test_a_changed_command_replaces_the_process(folder: Path) -> None:
    async with Supervisor(folder) as supervisor:
        supervisor.declare(declared("a"), declared("b"))
        await supervisor.ready()
        a, b = pid_of(supervisor, "a"), pid_of(supervisor, "b")
    async with Supervisor(folder) as supervisor:
        supervisor.declare(declared("a", arguments=("/bin/sleep", "1001")), declared("b"))
        await supervisor.ready()
        assert pid_of(supervisor, "a") != a
        assert pid_of(supervisor, "b") == b
        await until(lambda: arguments_of(pid_of(supervisor, "a")) == ["/bin/sleep", "1001"])


async def test_a_late_end_of_a_process_does_not_affect_its_successor(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, swept_late = Process.kill_session, asyncio.Event()
    slow = iter([True])

    async def sweeps(process: Process) -> None:
        if next(slow, False):
            await asyncio.sleep(0.3)
            swept_late.set()
        await sweep(process)

    monkeypatch.setattr(Process, "kill_session", sweeps)
    async with Supervisor(folder, backoff=QUICK) as supervisor:
        supervisor.declare(declared("a"))
        await supervisor.ready()
        first = pid_of(supervisor, "a")
        supervisor.declare(declared("a", arguments=("/bin/sleep", "1001")))
        await until(lambda: supervisor.states["a"].pid not in {None, first})
        second = pid_of(supervisor, "a")
        await swept_late.wait()
        # A wrongly attributed end would stop the second process within this time.
        await asyncio.sleep(0.2)
        assert running_in(folder) == [second]
        assert pid_of(supervisor, "a") == second


async def test_an_undeclared_process_is_stopped(folder: Path) -> None:
    async with Supervisor(folder) as supervisor:
        supervisor.declare(declared("a"), declared("b"))
        await supervisor.ready()
        supervisor.declare(declared("b"))
        await until(lambda: list(supervisor.states) == ["b"])
    assert list(state_dir.recorded_names(folder)) == ["b"]


async def test_new_dependencies_are_recorded_without_a_restart(folder: Path) -> None:
    async with Supervisor(folder) as supervisor:
        supervisor.declare(declared("a", "b"), declared("b"))
        await supervisor.ready()
        pid = pid_of(supervisor, "a")
        supervisor.declare(declared("a"), declared("b", "a"))
        await supervisor.ready()
        assert pid_of(supervisor, "a") == pid
    a, b = Process.adopt(folder, "a"), Process.adopt(folder, "b")
    assert a is not None
    assert b is not None
    assert (a.after, b.after) == ((), ("a",))


async def test_processes_of_a_killed_supervisor_are_adopted(
    folder: Path,
) -> None:
    script = f"""
import asyncio, pathlib
from capelin_embedded.processes import Command, ProcessSpec, Supervisor
async def main():
    async with Supervisor(pathlib.Path({str(folder)!r})) as supervisor:
        supervisor.declare(*(
            ProcessSpec(name=f"p{{n}}", command=Command({SLEEP!r})) for n in range(10)
        ))
        print("declared", flush=True)
        await asyncio.sleep(1000)
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    await parent.stdout.readline()
    parent.kill()
    await parent.wait()
    adopted = {name: Process.adopt(folder, name) for name in state_dir.recorded_names(folder)}
    async with Supervisor(folder) as supervisor:
        supervisor.declare(*(declared(f"p{n}") for n in range(10)))
        await supervisor.ready()
        states = supervisor.states
        for name, process in adopted.items():
            assert process is not None
            assert states[name].pid == process.pid
        await supervisor.stop()
    assert running_in(folder) == []


async def test_a_process_without_its_state_file_is_killed(folder: Path) -> None:
    process = await Process.start(folder, declared("a"))
    (folder / "a.process").unlink()
    async with Supervisor(folder) as supervisor:
        assert not process.is_running
        supervisor.declare(declared("a"))
        await supervisor.ready()
        assert pid_of(supervisor, "a") != process.pid


async def test_the_record_of_a_dead_process_is_removed(folder: Path) -> None:
    process = await Process.start(folder, declared("a"))
    process.signal(signal.SIGKILL)
    await process.wait()
    async with Supervisor(folder) as supervisor:
        assert supervisor.states == {}
    assert list(state_dir.recorded_names(folder)) == []


async def test_children_of_a_killed_process_end_before_its_restart(
    folder: Path,
) -> None:
    arguments = ("/bin/sh", "-c", "sleep 1000 & echo $!; wait")
    async with Supervisor(folder, backoff=QUICK) as supervisor:
        supervisor.declare(declared("a", arguments=arguments))
        await supervisor.ready()
        await until(lambda: (folder / "a.log").read_text() != "")
        child = int((folder / "a.log").read_text())
        await until(lambda: child in running_in(folder))
        await replaced(supervisor, pid_of(supervisor, "a"))
        assert child not in running_in(folder)


async def test_a_process_inherits_no_open_descriptors(folder: Path) -> None:
    descriptor = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    async with Supervisor(folder) as supervisor:
        supervisor.declare(declared("a"))
        await supervisor.ready()
        pid = pid_of(supervisor, "a")
        await until(lambda: arguments_of(pid) == list(SLEEP))
        # The dynamic loader opens libraries during the start.
        await until(lambda: descriptors_of(pid) == {"0", "1", "2"})
    os.close(descriptor)


async def test_two_supervisors_cannot_share_a_folder(folder: Path) -> None:
    async with Supervisor(folder):
        with pytest.raises(AlreadySupervisedError, match="another Capelin process supervises"):
            async with Supervisor(folder):
                pass
    async with Supervisor(folder):
        pass


async def test_a_long_log_is_rotated_while_its_process_runs(folder: Path) -> None:
    arguments = ("/bin/sh", "-c", "while :; do echo aaaaaaaaaaaaaaa; sleep 0.001; done")
    async with Supervisor(folder, log_bytes=100, log_check_seconds=0.01) as supervisor:
        supervisor.declare(declared("a", arguments=arguments))
        await supervisor.ready()
        pid = pid_of(supervisor, "a")
        await until((folder / "a.log.1").exists)
        await until(lambda: "a" in (folder / "a.log").read_text())
        assert pid_of(supervisor, "a") == pid


async def test_changes_yields_states_until_it_is_closed(folder: Path) -> None:
    async with Supervisor(folder) as supervisor:
        changes = supervisor.changes()
        supervisor.declare(declared("a"))
        phases: list[Phase] = []
        async with asyncio.timeout(10):
            async for states in changes:
                phases.append(states["a"].phase)
                if states["a"].phase is Phase.RUNNING:
                    break
        assert phases[-1] is Phase.RUNNING
        await changes.aclose()


async def test_a_broken_probe_is_reported(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    async def broken() -> AsyncGenerator[str, None]:
        calls.append(1)
        yield "not yet"
        if len(calls) == 1:
            raise ZeroDivisionError
        yield ""

    async with Supervisor(folder, backoff=QUICK) as supervisor, asyncio.timeout(20):
        supervisor.declare(declared("a", ready=broken), declared("b"))
        await until(lambda: "ZeroDivisionError" in supervisor.states["a"].reason)
        await supervisor.ready()
        assert supervisor.failure is None
    assert "ZeroDivisionError" in caplog.text


async def test_a_log_that_cannot_be_rotated_does_not_end_the_supervisor(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = asyncio.Event()
    loop = asyncio.get_running_loop()

    def is_full(*_: object) -> bool:
        loop.call_soon_threadsafe(full.set)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(state_dir, "rotate_log", is_full)
    async with Supervisor(folder, backoff=QUICK, log_check_seconds=0.01) as supervisor:
        supervisor.declare(declared("a"))
        await supervisor.ready()
        await full.wait()
        pid = await replaced(supervisor, pid_of(supervisor, "a"))
        supervisor.declare(declared("b"))
        await supervisor.ready()
        assert not exists(f"/proc/{pid}")
        assert supervisor.failure is None
    assert caplog.text.count("a.log: [Errno 28] No space left on device") == 1, (
        "the error must not repeat every few seconds"
    )


def test_a_failed_rotation_leaves_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.log").write_text("content")

    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", is_full)
    with pytest.raises(OSError, match="No space left"):
        state_dir.rotate_log(tmp_path / "a.log", 3)
    assert [file.name for file in tmp_path.iterdir()] == ["a.log"]


async def test_a_record_that_cannot_be_removed_does_not_end_the_supervisor(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_read_only(_: Path, __: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    async with Supervisor(folder, backoff=QUICK) as supervisor, asyncio.timeout(20):
        supervisor.declare(declared("a"), declared("b"))
        await supervisor.ready()
        with monkeypatch.context() as disk:
            disk.setattr(state_dir, "remove_record", is_read_only)
            supervisor.declare(declared("b"))
            await until(lambda: "a" not in supervisor.states)
        await replaced(supervisor, pid_of(supervisor, "b"), "b")
        assert supervisor.failure is None


async def test_a_start_check_that_raises_is_repeated(folder: Path) -> None:
    calls: list[int] = []

    def check() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/member")
        return ""

    async with Supervisor(folder, backoff=QUICK) as supervisor:
        supervisor.declare(replace(declared("a"), start_check=check))
        await until(lambda: supervisor.states["a"].phase is Phase.RUNNING)
    assert len(calls) == 3


async def test_declare_works_on_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with Supervisor(folder) as supervisor:
        supervisor.declare(declared("a"))
        await supervisor.ready()
        with monkeypatch.context() as disk:
            disk.setattr(state_dir, "write_record", is_full)
            supervisor.declare(replace(declared("a"), grace=3.0), declared("b"))
        await supervisor.ready()
        supervisor.declare(replace(declared("a"), grace=3.0), declared("b"))
        record = state_dir.read_record(folder, "a")
        assert record is not None
        assert record.grace == 3.0


async def test_a_failed_supervisor_raises_and_frees_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    async with Supervisor(folder) as supervisor, asyncio.timeout(20):
        supervisor.declare(declared("a"))
        await supervisor.ready()
        pid = pid_of(supervisor, "a")
        with monkeypatch.context() as broken:
            broken.setattr("capelin_embedded.processes.supervisor.next_steps", fails)
            supervisor.declare(declared("a"), declared("b"))
            with pytest.raises(SupervisorFailedError, match="ZeroDivisionError"):
                async for _ in supervisor.changes():
                    pass
        assert supervisor.failure is not None
        with pytest.raises(SupervisorFailedError):
            _ = supervisor.states
        with pytest.raises(SupervisorFailedError):
            await supervisor.stop()
    assert "ZeroDivisionError" in caplog.text
    async with Supervisor(folder) as successor:
        successor.declare(declared("a"), declared("b"))
        await successor.ready()
        assert pid_of(successor, "a") == pid


async def test_failed_start_frees_the_lock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Path) -> list[str]:
        raise OSError("the disk is missing")

    with monkeypatch.context() as away:
        away.setattr(state_dir, "recorded_names", fails)
        with pytest.raises(OSError, match="the disk is missing"):
            async with Supervisor(folder):
                pass
    async with Supervisor(folder) as supervisor:
        assert supervisor.states == {}


async def test_a_supervisor_without_declarations_keeps_running_processes(folder: Path) -> None:
    process = await Process.start(folder, declared("a"))
    async with Supervisor(folder) as supervisor:
        assert supervisor.states["a"].pid == process.pid
    assert process.is_running


def running_in(folder: Path) -> list[int]:
    """Pids of live processes with the marker of the folder."""
    pids: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"CAPELIN_PROCESS={folder}/".encode() in environment:
            pids.append(int(entry.name))
    return pids
