from pathlib import Path

import pytest
from capelin_embedded.processes import Limits
from capelin_embedded.processes.cgroups import (
    Group,
    confine,
    group_name,
    groups,
    own_groups,
    ran_out_of_memory,
)

BOTH = Limits(memory_bytes=64_000_000, cpus=1.5)


@pytest.fixture
def version_2(tmp_path: Path) -> Path:
    """Groups with systemd: slices delegate controllers, scopes with processes do not."""
    scope = tmp_path / "user.slice" / "app.scope"
    scope.mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    (tmp_path / "user.slice" / "cgroup.subtree_control").write_text("cpu memory\n")
    (scope / "cgroup.subtree_control").write_text("\n")
    return tmp_path


def groups_for(limits: Limits, own: dict[str, str], root: Path) -> list[Group]:
    return list(groups(limits, "capelin-x", own, root))


def test_version_2_has_one_group_next_to_our_own(version_2: Path) -> None:
    assert groups_for(BOTH, {"": "/user.slice/app.scope"}, version_2) == [
        Group(
            version_2 / "user.slice" / "capelin-x",
            {"memory.max": "64000000", "cpu.max": "150000 100000"},
        )
    ]


def test_version_2_uses_an_ancestor_that_delegates_the_controllers(version_2: Path) -> None:
    (version_2 / "user.slice" / "cgroup.subtree_control").write_text("memory\n")
    [needs_cpu] = groups_for(BOTH, {"": "/user.slice/app.scope"}, version_2)
    assert needs_cpu.folder == version_2 / "capelin-x"
    [memory_only] = groups_for(Limits(memory_bytes=1), {"": "/user.slice/app.scope"}, version_2)
    assert memory_only.folder == version_2 / "user.slice" / "capelin-x"


def test_no_hard_limits_without_delegation(
    version_2: Path,
) -> None:
    for file in (version_2 / "cgroup.subtree_control", version_2 / "user.slice"):
        (file / "cgroup.subtree_control" if file.is_dir() else file).write_text("\n")
    assert groups_for(BOTH, {"": "/user.slice/app.scope"}, version_2) == []


def test_version_1_has_a_group_for_each_controller(tmp_path: Path) -> None:
    (tmp_path / "memory" / "us").mkdir(parents=True)
    (tmp_path / "cpu").mkdir()
    assert groups_for(BOTH, {"memory": "/us", "cpu": "/"}, tmp_path) == [
        Group(tmp_path / "memory" / "us" / "capelin-x", {"memory.limit_in_bytes": "64000000"}),
        Group(
            tmp_path / "cpu" / "capelin-x",
            {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"},
        ),
    ]


def test_a_machine_without_control_groups_has_no_hard_limits(tmp_path: Path) -> None:
    assert groups_for(BOTH, {}, tmp_path) == []


def test_no_limits_need_no_group(version_2: Path) -> None:
    assert groups_for(Limits(nice=5), {"": "/user.slice/app.scope"}, version_2) == []


def test_two_state_folders_never_share_a_group() -> None:
    assert group_name(Path("/a"), "etcd") != group_name(Path("/b"), "etcd")
    assert group_name(Path("/a"), "etcd") == group_name(Path("/a"), "etcd")


def test_confine_returns_false_if_a_group_cannot_be_created(tmp_path: Path) -> None:
    assert not confine(1, Group(tmp_path / "missing" / "capelin-x", {}))


def test_own_groups_reads_the_groups_of_this_process() -> None:
    assert all(path.startswith("/") for path in own_groups().values())
    assert own_groups()


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("memory.events", "low 0\noom 1\noom_kill 1\n", True),
        ("memory.events", "low 0\noom 1\noom_kill 0\n", False),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", True),
        ("other", "", False),
    ],
)
def test_ran_out_of_memory_detects_an_oom_kill(
    tmp_path: Path, file: str, content: str, expected: bool
) -> None:
    (tmp_path / file).write_text(content)
    assert ran_out_of_memory(tmp_path) is expected
