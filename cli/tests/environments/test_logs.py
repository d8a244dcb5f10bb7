"""Logs, and new lines in them."""

import io
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from capelin.errors import MissingError
from capelin.testing.waiting import until
from capelin_cli.environments.logs import (
    LogQuery,
    Tail,
    begin_of,
    by_time,
    print_logs,
    without_old,
)
from capelin_embedded.management import Environment
from capelin_embedded.processes import Command, ProcessSpec, Supervisor

from cli.tests.command import capelin


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    environment = Environment(tmp_path / "capelin" / "demo")
    environment.make_folders()
    environment.processes.mkdir()
    (environment.processes / "etcd.log").write_text("one\ntwo\nthree\n")
    (environment.processes / "kube-apiserver.log").write_text("alpha\n")
    control_plane = environment.workloads / "control-plane-capelin" / "127.64.0.1"
    machines = environment.workloads / "infrastructure-capelin" / "team.blue"
    for folder, name in ((control_plane, "etcd-0"), (machines, "kwok")):
        (folder / "run").mkdir(parents=True)
        (folder / "run" / f"{name}.log").write_text(f"{name} of blue\n")
    (control_plane / "owner.json").write_text('{"namespace": "team", "cluster": "blue"}')
    return environment


async def test_the_last_lines_of_one_process(environment: Environment) -> None:
    out = io.StringIO()
    await print_logs(LogQuery(environment.name, ("etcd",), lines=2), out)
    assert out.getvalue() == "two\nthree\n"


async def test_the_last_lines_of_all_processes_have_their_names(environment: Environment) -> None:
    out = io.StringIO()
    await print_logs(LogQuery(environment.name, lines=1), out)
    assert out.getvalue() == "etcd: three\nkube-apiserver: alpha\n"


async def test_unknown_process_lists_the_known_ones(
    environment: Environment,
) -> None:
    with pytest.raises(MissingError, match=r"ones: etcd, kube-apiserver. Clusters: blue"):
        await print_logs(LogQuery(environment.name, ("nginx",)))


async def test_a_clusters_control_plane_and_machines_have_logs(environment: Environment) -> None:
    out = io.StringIO()
    await print_logs(LogQuery(environment.name, ("blue",), "team"), out)
    assert out.getvalue() == "etcd-0: etcd-0 of blue\nkwok: kwok of blue\n"
    out = io.StringIO()
    await print_logs(LogQuery(environment.name, ("blue", "etcd-0"), "team"), out)
    assert out.getvalue() == "etcd-0 of blue\n"
    with pytest.raises(MissingError, match=r"Cluster blue has no process nginx.*etcd-0, kwok"):
        await print_logs(LogQuery(environment.name, ("blue", "nginx"), "team"))
    with pytest.raises(MissingError, match="Clusters: blue"):
        await print_logs(LogQuery(environment.name, ("red", "etcd-0"), "team"))


async def test_logs_distinguish_running_processes_and_old_files(environment: Environment) -> None:
    run = environment.workloads / "control-plane-capelin" / "127.64.0.1" / "run"
    command = Command(("/bin/sh", "-c", "echo new API server; exec sleep 1000"))
    old = run / "kube-apiserver-0.log"
    old.write_text("old API server\n")
    os.utime(old, (0, 0))
    async with Supervisor(run) as supervisor:
        supervisor.declare(ProcessSpec(name="kube-apiserver-1", command=command))
        await supervisor.ready()
        await until((run / "kube-apiserver-1.log").read_text)
        with pytest.raises(MissingError, match="Cluster blue has no process nosuch") as caught:
            await print_logs(LogQuery(environment.name, ("blue", "nosuch"), "team"))
        assert caught.value.reason == (
            "Running processes: kube-apiserver-1. Logs of ended ones: etcd-0, kube-apiserver-0, "
            "kwok."
        )
        out = io.StringIO()
        await print_logs(LogQuery(environment.name, ("blue",), "team"), out)
        assert "kube-apiserver-1: new API server" in out.getvalue()
        assert "old" not in out.getvalue()
        out = io.StringIO()
        await print_logs(LogQuery(environment.name, ("blue", old.stem), "team"), out)
        assert out.getvalue() == "old API server\n"
        await supervisor.stop()


async def test_traces_of_slow_requests_do_not_hide_other_logs(environment: Environment) -> None:
    log = environment.processes / "kube-apiserver.log"
    log.write_text(
        "alpha\n"
        'I1123 10:00:00.000000  7 trace.go:236] Trace[1234]: "Update" (total time: 512ms):\n'
        'Trace[1234]: ---"About to write" 500ms (10:00:00.500)\n'
        "Trace[1234]: [512ms] [512ms] END\n"
    )
    (environment.processes / "etcd.log").write_text(
        '{"level":"warn","msg":"slow disk"}\n{"level":"info","msg":"trace[42] put","steps":[]}\n'
    )
    out = io.StringIO()
    await print_logs(LogQuery(environment.name, lines=1), out)
    assert out.getvalue() == 'etcd: {"level":"warn","msg":"slow disk"}\nkube-apiserver: alpha\n'
    out = io.StringIO()
    await print_logs(LogQuery(environment.name, ("kube-apiserver",), lines=1), out)
    assert out.getvalue() == "Trace[1234]: [512ms] [512ms] END\n"


def test_logs_of_a_stopped_environment_are_all_printed(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.log" for name in ("a", "b")}
    for file in files.values():
        file.touch()
    written = files["a"].stat().st_mtime
    assert without_old(files, written + 3600) == files
    os.utime(files["b"], (0, 0))
    assert without_old(files, written + 30) == {"a": files["a"]}


def test_logs_of_different_formats_are_merged_by_time() -> None:
    day = f"{datetime.now(UTC):%Y}-01-02"
    local = datetime.fromisoformat(f"{day}T10:00:02").astimezone(UTC)
    klog = ["I0102 10:00:02.500000   1 server.go:1] two", "a line of its trace"]
    zoned = [
        f'{{"ts":"{local - timedelta(seconds=1):%Y-%m-%dT%H:%M:%S.0Z}"}} one',
        f'{{"ts":"{local + timedelta(seconds=1):%Y-%m-%dT%H:%M:%S.0Z}"}} three',
    ]
    assert by_time([klog, zoned]) == [zoned[0], *klog, zoned[1]]


def test_new_lines_are_printed_once_even_after_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "etcd.log"
    path.write_text("old\n")
    tail = Tail(path, "")
    assert list(tail.last(0)) == []
    with path.open("a") as file:
        file.write("new\n")
    assert list(tail.new()) == ["new"]
    assert list(tail.new()) == []
    path.write_text("a\n")
    assert list(tail.new()) == ["a"]


def test_older_lines_are_omitted() -> None:
    now = datetime.now(UTC)
    old, new = now - timedelta(minutes=10), now - timedelta(seconds=10)
    log = [f"{old:%Y-%m-%dT%H:%M:%SZ} old", "its trace", f"{new:%Y-%m-%dT%H:%M:%SZ} new", "trace"]
    assert by_time([log, ["no time"]], begin_of("1m30s").timestamp()) == log[2:]


async def test_all_lines_since_a_moment(environment: Environment) -> None:
    now = datetime.now(UTC)
    lines = [f"{now:%Y-%m-%dT%H:%M:%SZ} {number}\n" for number in range(30)]
    (environment.processes / "etcd.log").write_text("".join(lines))
    out = io.StringIO()
    await print_logs(LogQuery(environment.name, ("etcd",), lines=None, since=begin_of("1m")), out)
    assert out.getvalue() == "".join(lines)


def test_an_invalid_duration_is_rejected(tmp_path: Path) -> None:
    ended = capelin("logs", "--since", "yesterday", "-e", "lab", home=tmp_path)
    assert ended.returncode == 2
    assert "examples: 1h30m, 90s" in ended.stderr.replace("\n", " ")
