"""Complaints of the world, and what to do about them."""

import errno

import pytest
from capelin_control_plane.plan import Component
from capelin_control_plane.remedies import remedy, unusable


@pytest.mark.parametrize(
    ("component", "complaint", "advice"),
    [
        (
            "kube-apiserver",
            "exited with code 1: Error: unknown flag: --shoal",
            "mend spec.apiServer.extraArgs[shoal]",
        ),
        (
            "kube-scheduler",
            'exited with code 1: Error: invalid argument "x" for "--shoal" flag',
            "mend spec.scheduler.extraArgs[shoal]",
        ),
        (
            "etcd",
            "exited with code 2: flag provided but not defined: -shoal",
            "mend spec.etcd.extraArgs[shoal]",
        ),
        ("etcd", "exited with code 1: bind: address already in use", "stop what else"),
        ("etcd", "was killed: write: no space left on device", "make room on the disk"),
        ("kube-apiserver", "was killed by SIGKILL", ""),
        ("kube-apiserver", "unknown flag: --shoals", ""),
    ],
)
def test_a_complaint_has_its_remedy(component: Component, complaint: str, advice: str) -> None:
    found = remedy(component, complaint, {"shoal": "x"})
    assert found.startswith(advice) if advice else not found


def test_a_full_disk_is_called_so() -> None:
    problem = unusable(OSError(errno.ENOSPC, "No space left on device", "/state/plan.json"))
    assert problem.reason == "DiskFull"
    assert problem.message.startswith("/state/plan.json: No space left on device; make room")


def test_whatever_else_a_machine_refuses_names_the_folder() -> None:
    problem = unusable(PermissionError(errno.EACCES, "Permission denied", "/state"))
    assert problem.reason == "StateFolderNotUsable"
    assert "--state-folder" in problem.message
