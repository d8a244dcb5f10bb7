"""When etcd compacts and defragments, and how it leaves the alarm about its space."""

from dataclasses import replace

import pytest
from capelin_control_plane.etcd.rules import MoveLeadership
from capelin_control_plane.etcd.space import (
    Compact,
    Defragment,
    Disarm,
    MemberSpace,
    SpaceStep,
    next_space_step,
)
from capelin_control_plane.operations.space import space_available

MIB = 2**20


def member(index: int = 0, *, size: int, used: int, leader: bool = False) -> MemberSpace:
    return MemberSpace(
        index=index,
        id=str(index),
        size=size * MIB,
        used=used * MIB,
        quota=2048 * MIB,
        leader=leader,
    )


@pytest.mark.parametrize(
    ("size", "used", "alarm", "compacted", "step"),
    [
        pytest.param(10, 5, False, False, None, id="small"),
        pytest.param(1000, 100, False, False, None, id="the only member keeps serving"),
        pytest.param(2048, 2000, True, False, Compact(), id="history may be the reason"),
        pytest.param(2048, 400, True, True, Defragment(0), id="compacted"),
        pytest.param(400, 400, True, True, Disarm(), id="defragmented"),
        pytest.param(2048, 2000, True, True, None, id="its data is too large"),
        pytest.param(2048, 2000, False, False, None, id="full without an alarm"),
    ],
)
def test_the_only_member_defragments_during_the_alarm(
    size: int, used: int, alarm: bool, compacted: bool, step: SpaceStep | None
) -> None:
    members = [member(size=size, used=used)]
    assert next_space_step(members, 1, alarm=alarm, compacted=compacted) == step


@pytest.mark.parametrize(
    ("used", "step"),
    [(300, Defragment(1)), (500, None)],
    ids=["half of it is unused", "the rest is not worthwhile"],
)
def test_members_defragment_one_at_a_time(used: int, step: SpaceStep | None) -> None:
    leader = member(0, size=600, used=300, leader=True)
    members = [leader, member(1, size=600, used=used), member(2, size=600, used=580)]
    if step is None:
        members[0] = replace(leader, size=300 * MIB)
    assert next_space_step(members, 3, alarm=False, compacted=False) == step


def test_small_databases_are_not_defragmented() -> None:
    members = [member(index, size=100, used=10) for index in range(3)]
    assert next_space_step(members, 3, alarm=False, compacted=False) is None


def test_leadership_moves_before_the_leader_defragments() -> None:
    leader, other = member(0, size=600, used=100, leader=True), member(1, size=100, used=100)
    step = next_space_step(
        [leader, other, replace(other, index=2)], 3, alarm=False, compacted=False
    )
    assert step == MoveLeadership(0, 1)


def test_no_member_defragments_while_another_is_down() -> None:
    members = [member(index, size=600, used=100) for index in range(2)]
    assert next_space_step(members, 3, alarm=False, compacted=False) is None
    full = [replace(each, size=2048 * MIB) for each in members]
    assert next_space_step(full, 3, alarm=True, compacted=True) == Defragment(0)


def test_every_pass_ends() -> None:
    """Each step has the effect of a real etcd. The alarm ends after all members have space."""
    members = [member(index, size=2048, used=1900, leader=index == 1) for index in range(3)]
    steps: list[SpaceStep] = []
    alarm = compacted = True
    compacted = False
    while step := next_space_step(members, 3, alarm=alarm, compacted=compacted):
        steps.append(step)
        match step:
            case Compact():
                compacted = True
                members = [replace(each, used=50 * MIB) for each in members]
            case Defragment(index):
                members[index] = replace(members[index], size=members[index].used)
            case MoveLeadership(_, to):
                members = [replace(each, leader=each.index == to) for each in members]
            case Disarm():
                alarm = False
    assert steps == [
        Compact(),
        Defragment(0),
        Defragment(2),
        MoveLeadership(1, 0),
        Defragment(1),
        Disarm(),
    ]


@pytest.mark.parametrize(
    ("used", "alarm", "status", "reason"),
    [
        (100, False, "True", "EtcdSpaceAvailable"),
        (1900, False, "False", "EtcdSpaceLow"),
        (2048, True, "False", "EtcdOutOfSpace"),
    ],
)
def test_the_condition_shows_the_quota(used: int, alarm: bool, status: str, reason: str) -> None:
    condition = space_available([member(size=2048, used=used)], alarm=alarm)
    assert (condition.status, condition.reason) == (status, reason)
    assert ("2048 MiB" in condition.message) == (status == "False")
