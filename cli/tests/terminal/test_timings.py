"""Durations of steps and the reasons for waiting."""

import io

import pytest
from capelin_cli.terminal.checklist import Checklist
from capelin_cli.terminal.timings import timings_data, timings_table
from rich.console import Console

from tests.support.clock import MonotonicClock


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
