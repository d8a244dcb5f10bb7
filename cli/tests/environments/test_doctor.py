"""Findings of `capelin doctor`."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from capelin_cli.environments.doctor import MachineFacts, judge, this_machine

FIT = MachineFacts(
    system="linux",
    memory_bytes=8_000_000_000,
    free_bytes=50_000_000_000,
    fullest=Path("/cache"),
    writable=True,
    loopback=True,
    open_files=65536,
    watches=1024,
    missing_programs=0,
    go="1.26.8",
    needed_go="1.26.0",
)


def test_a_suitable_machine_has_no_problems() -> None:
    findings = judge(FIT)
    assert {finding.verdict for finding in findings} == {"good"}
    assert {finding.hint for finding in findings} == {""}


@pytest.mark.parametrize(
    ("machine", "verdict", "hint"),
    [
        (replace(FIT, system="darwin"), "bad", "virtual machine"),
        (replace(FIT, writable=False), "bad", "XDG_STATE_HOME"),
        (replace(FIT, loopback=False), "bad", "ip link set lo up"),
        (replace(FIT, memory_bytes=1_000_000_000), "poor", "stop other programs"),
        (replace(FIT, free_bytes=1_000_000_000), "poor", "XDG_CACHE_HOME"),
        (replace(FIT, open_files=256), "poor", "ulimit"),
        (replace(FIT, watches=8), "poor", "sysctl"),
        (replace(FIT, go="1.22.2"), "poor", "GOTOOLCHAIN"),
        (replace(FIT, go=None), "poor", "Without it only programs in the cache"),
    ],
)
def test_problems_have_a_hint(machine: MachineFacts, verdict: str, hint: str) -> None:
    (found,) = [finding for finding in judge(machine) if finding.verdict != "good"]
    assert found.verdict == verdict
    assert hint in found.hint


def test_go_is_reported_with_its_version() -> None:
    assert "Go 1.26.8, which builds programs that cannot be pulled" in [
        finding.what for finding in judge(FIT)
    ]


def test_missing_binaries_and_a_missing_go_are_both_reported() -> None:
    found = [
        finding for finding in judge(replace(FIT, missing_programs=5, go=None)) if finding.hint
    ]
    assert [finding.verdict for finding in found] == ["poor", "poor"]
    assert "install Go" in found[0].hint
    assert "Install Go 1.26.0 or later" in found[1].hint


def test_go_can_build_missing_binaries() -> None:
    findings = judge(replace(FIT, missing_programs=5))
    assert "5 programs are not in the cache, and Go can build them" in [
        finding.what for finding in findings
    ]


def test_doctor_inspects_this_machine() -> None:
    machine = this_machine()
    assert machine.memory_bytes > 0
    assert machine.free_bytes > 0
    assert machine.loopback


def test_fullest_file_system_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    free = {small: 20_000_000, large: 68_000_000_000}
    for path in free:
        path.mkdir()

    def usage(path: Path) -> SimpleNamespace:
        # The cache may have a folder of its own in there.
        return SimpleNamespace(free=free[small if small in (path, *path.parents) else large])

    monkeypatch.setenv("XDG_CACHE_HOME", str(large))
    monkeypatch.setenv("XDG_STATE_HOME", str(small))
    monkeypatch.setattr(shutil, "disk_usage", usage)
    machine = this_machine()
    assert machine.free_bytes == 20_000_000
    assert any(
        finding.verdict == "poor" and str(small) in finding.what for finding in judge(machine)
    )
