import os
import stat
import subprocess
from pathlib import Path

import pytest
from capelin_embedded.processes.state_dir import exit_reason, log_tail, open_log, rotate_log


def test_rotation_does_not_interrupt_the_writer_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    descriptor = open_log(log)
    writer = subprocess.Popen(
        ["/bin/sh", "-c", "echo before; read line; echo after"],
        stdin=subprocess.PIPE,
        stdout=descriptor,
    )
    os.write(descriptor, b"x" * 100 + b"\n")
    assert rotate_log(log, longest=50)
    writer.communicate(b"go\n")
    os.close(descriptor)
    # Earlier output may be in either file. Later output must be in the new one.
    assert log.read_text().endswith("after\n")
    assert "x" not in log.read_text()
    assert b"\0" not in log.read_bytes()
    assert "x" * 100 in (tmp_path / "a.log.1").read_text()
    assert stat.S_IMODE((tmp_path / "a.log.1").stat().st_mode) == 0o600
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_a_second_rotation_replaces_the_rotated_file(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    for text in ("first", "second"):
        log.write_text(text)
        assert rotate_log(log, longest=1)
    assert (tmp_path / "a.log.1").read_text() == "second"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.log", "a.log.1"]


def test_short_and_missing_logs_are_not_rotated(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert not rotate_log(log, longest=5)
    log.write_text("short")
    assert not rotate_log(log, longest=5)
    assert log.read_text() == "short"


def test_the_tail_starts_at_the_start_of_the_process(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("an earlier process\nnow\n")
    assert log_tail(log, len("an earlier process\n")) == ["now"]


def test_the_tail_of_a_truncated_log_is_the_whole_log(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("now\n")
    assert log_tail(log, 1000) == ["now"]


def test_the_tail_of_a_long_log_has_complete_lines(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {number:06}\n" for number in range(10_000)))
    lines = log_tail(log, 0)
    assert lines[-1] == "line 009999"
    assert all(len(line) == len("line 000000") for line in lines)
    assert len(lines) < 2000


def test_a_missing_log_has_no_tail(tmp_path: Path) -> None:
    assert log_tail(tmp_path / "a.log", 0) == []


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], ""),
        (["", "  "], ""),
        (["a", "b"], "b"),
        (
            [
                'E1121 01:29:48.644418    6943 run.go:72] "command failed" err="no etcd"',
                'I1121 01:29:48.644420    6943 stop.go:1] "Shutting down"',
            ],
            '"command failed" err="no etcd"',
        ),
        (
            [
                '{"level":"fatal","ts":"2026-11","msg":"discovery failed","error":"cannot listen"}',
                '{"level":"info","ts":"2026-11","msg":"bye"}',
            ],
            "discovery failed: cannot listen",
        ),
        (['{"level":"info","msg":"nothing to complain about"}'], ""),
        (["{not json"], "{not json"),
        (
            ["Error: unknown flag: --no-such", "Usage:", "  kube-apiserver [flags]"],
            "Error: unknown flag: --no-such",
        ),
        (
            ["panic: runtime error", "", "goroutine 1 [running]:", "main.main()", "\t/a/b.go:1"],
            "panic: runtime error",
        ),
        (
            [
                '{"level":"panic","msg":"failed to open database","error":"invalid database"}',
                "panic: failed to open database",
                "",
                "goroutine 128 [running]:",
            ],
            "failed to open database: invalid database",
        ),
        (["ERROR: " + "x" * 1000], "ERROR: " + "x" * 293),
        (
            [
                "2026-11-23T04:26:26.101Z ERROR   the port is in use",
                "2026-11-23T04:26:27.374Z WARNING etcd-0 has ended: was killed by SIGKILL",
            ],
            "the port is in use",
        ),
        (["2026-11-23 04:26:27,374 INFO Watching all kinds: their first lists are complete"], ""),
    ],
)
def test_exit_reason_returns_the_line_with_the_cause(lines: list[str], expected: str) -> None:
    assert exit_reason(lines) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("panic: no disk", "panic: no disk"),
        ("fatal error: all goroutines are asleep", "fatal error: all goroutines are asleep"),
        ("F1121 01:29:48.644418    6943 run.go:72] no etcd", "no etcd"),
        ('{"level":"fatal","msg":"no disk"}', "no disk"),
        ("2026-11-23T04:26:26.101Z CRITICAL no memory", "no memory"),
        ("Error: unknown flag", ""),
        ("E1121 01:29:48.644418    6943 run.go:72] no etcd", ""),
        ('{"level":"error","msg":"no disk"}', ""),
        ("the last line", ""),
    ],
)
def test_only_fatal_lines_explain_an_unknown_end(line: str, expected: str) -> None:
    assert exit_reason([line, "bye"], only_fatal=True) == expected
