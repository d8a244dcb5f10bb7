"""Logs, and what is added to them."""

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from capelin.embedded.management import Environment
from capelin.errors import MissingError
from capelin_infra.logs import LogQuery, Tail, begin_of, by_time, print_logs

from .command import capelin


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


async def test_the_last_lines_of_all_say_whose_they_are(environment: Environment) -> None:
    out = io.StringIO()
    await print_logs(LogQuery(environment.name, lines=1), out)
    assert out.getvalue() == "etcd: three\nkube-apiserver: alpha\n"


async def test_an_unknown_process_is_refused_with_the_known_ones(
    environment: Environment,
) -> None:
    with pytest.raises(MissingError, match=r"Processes: etcd, kube-apiserver; clusters: blue"):
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


def test_logs_are_merged_by_time_whatever_writes_them() -> None:
    day = f"{datetime.now(UTC):%Y}-01-02"
    local = datetime.fromisoformat(f"{day}T10:00:02").astimezone(UTC)
    klog = ["I0102 10:00:02.500000   1 server.go:1] two", "a line of its trace"]
    zoned = [
        f'{{"ts":"{local - timedelta(seconds=1):%Y-%m-%dT%H:%M:%S.0Z}"}} one',
        f'{{"ts":"{local + timedelta(seconds=1):%Y-%m-%dT%H:%M:%S.0Z}"}} three',
    ]
    assert by_time([klog, zoned]) == [zoned[0], *klog, zoned[1]]


def test_new_lines_are_printed_once_also_after_a_rotation(tmp_path: Path) -> None:
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


def test_what_is_older_is_left_out() -> None:
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


def test_what_is_no_duration_is_refused(tmp_path: Path) -> None:
    ended = capelin("logs", "--since", "yesterday", "-e", "lab", home=tmp_path)
    assert ended.returncode == 2
    assert "write it as 1h30m, 90s" in ended.stderr.replace("\n", " ")
