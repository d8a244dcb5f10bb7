"""Hints on failures of processes and of the machine."""

import errno

import pytest
from capelin.provider import Blocked
from capelin_control_plane.backends.processes.instance_status import disk_errors_block, hint_on
from capelin_control_plane.desired.control_plane import Component


@pytest.mark.parametrize(
    ("component", "complaint", "advice"),
    [
        (
            "kube-apiserver",
            "exited with code 1: Error: unknown flag: --shoal",
            "fix spec.apiServer.extraArgs[shoal]",
        ),
        (
            "kube-scheduler",
            'exited with code 1: Error: invalid argument "x" for "--shoal" flag',
            "fix spec.scheduler.extraArgs[shoal]",
        ),
        (
            "etcd",
            "exited with code 2: flag provided but not defined: -shoal",
            "fix spec.etcd.extraArgs[shoal]",
        ),
        ("etcd", "exited with code 1: bind: address already in use", "stop what else"),
        ("etcd", "was killed: write: no space left on device", "free space on the disk"),
        ("kube-apiserver", "was killed by SIGKILL", ""),
        ("kube-apiserver", "unknown flag: --shoals", ""),
    ],
)
def test_a_failure_has_its_hint(component: Component, complaint: str, advice: str) -> None:
    hint = hint_on(component, complaint, {"shoal": "x"})
    assert hint.startswith(advice) if advice else not hint


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/state/plan.json"),
            "DiskFull",
            "/state/plan.json: No space left on device; free space",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/state"),
            "StateFolderNotUsable",
            "/state: Permission denied; let the provider write to its --state-folder",
        ),
    ],
)
def test_machine_error_has_a_hint(error: OSError, reason: str, message: str) -> None:
    with pytest.raises(Blocked) as blocked, disk_errors_block():
        raise error
    assert blocked.value.reason == reason
    assert str(blocked.value).startswith(message)
