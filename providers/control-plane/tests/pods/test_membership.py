"""The order in which members of etcd join, leave and restart on pods."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from capelin_control_plane.backends.pods import Names
from capelin_control_plane.backends.pods.membership import (
    EtcdState,
    is_resized,
    next_change,
    next_etcd_state,
    ordered_restarts,
    peer_url,
    planned_members,
    voters_of,
)
from capelin_control_plane.etcd.rules import (
    AddLearner,
    ListedMember,
    Loss,
    Member,
    Membership,
    MoveLeadership,
    Promote,
    Remove,
    Removed,
    StartLearner,
)
from hypothesis import given
from hypothesis import strategies as st

NAMES = Names("default", "one")


def listed(*indexes: int, learners: frozenset[int] = frozenset(), leader: int = 0) -> Membership:
    return Membership(
        members={
            index: ListedMember(
                f"id-{index}", peer_url(NAMES, index), started=True, learner=index in learners
            )
            for index in indexes
        },
        leader=leader,
    )


def ready(*indexes: int) -> list[Member]:
    return [Member(index=index, ready=True) for index in indexes]


def test_a_learner_joins_starts_and_votes_before_the_next_one() -> None:
    one = listed(0)
    assert next_change(
        ready(0), one, started={0}, planned=1, size=3, may_shrink=False
    ) == AddLearner(1)
    expected = replace(
        one,
        members={
            **one.members,
            1: ListedMember("id-1", peer_url(NAMES, 1), started=False, learner=True),
        },
    )
    assert next_change(
        ready(0), expected, started={0}, planned=1, size=3, may_shrink=False
    ) == StartLearner(1)
    learning = listed(0, 1, learners=frozenset({1}))
    pods = [*ready(0), Member(index=1, ready=False)]
    # Its container runs, and does not answer yet.
    assert next_change(pods, learning, started={0}, planned=2, size=3, may_shrink=False) is None
    # A learner answers its liveness probe, and is never ready.
    assert next_change(
        pods, learning, started={0, 1}, planned=2, size=3, may_shrink=False
    ) == Promote(1)
    assert next_change(
        ready(0, 1), listed(0, 1), started={0, 1}, planned=2, size=3, may_shrink=False
    ) == AddLearner(2)


def test_a_lost_learner_leaves_and_its_pod_stops() -> None:
    pods = [*ready(0), Member(index=1, ready=False, loss=Loss.UNUSABLE)]
    learning = listed(0, 1, learners=frozenset({1}))
    assert next_change(pods, learning, started=(), planned=2, size=3, may_shrink=False) == Remove(1)
    assert next_change(pods, listed(0), started=(), planned=2, size=3, may_shrink=False) == Removed(
        1
    )


def test_a_member_leaves_after_api_servers_stopped_using_it_and_never_as_the_leader() -> None:
    three = ready(0, 1, 2)
    everything: dict[str, Any] = {"started": {0, 1, 2}, "planned": 3, "size": 1}
    assert next_change(three, listed(0, 1, 2), may_shrink=False, **everything) is None
    assert next_change(
        three, listed(0, 1, 2, leader=2), may_shrink=True, **everything
    ) == MoveLeadership(2, 0)
    assert next_change(three, listed(0, 1, 2), may_shrink=True, **everything) == Remove(2)
    assert next_change(three, listed(0, 1), may_shrink=True, **everything) == Removed(2)


def test_the_pod_of_a_removed_member_in_the_middle_does_not_stop_the_last_one() -> None:
    assert (
        next_change(ready(0, 2), listed(0, 2), started={0, 2}, planned=3, size=3, may_shrink=True)
        is None
    )


def test_the_leader_restarts_last_and_leadership_moves_once() -> None:
    members = [Member(index=index, ready=True, outdated=True) for index in range(3)]
    first = ordered_restarts(members, listed(0, 1, 2), 3)
    assert (first.members, first.move) == ((1,), None)
    members[1] = replace(members[1], outdated=False)
    members[2] = replace(members[2], outdated=False)
    last = ordered_restarts(members, listed(0, 1, 2), 3)
    assert (last.members, last.move) == ((0,), MoveLeadership(0, 1))
    after = ordered_restarts(members, listed(0, 1, 2, leader=1), 3)
    assert (after.members, after.move) == ((0,), None)


def test_an_unknown_leader_does_not_stop_a_restart() -> None:
    members = [Member(index=index, ready=True, outdated=True) for index in range(3)]
    assert ordered_restarts(members, None, 3).members == (0,)


def test_the_state_is_read_as_it_was_stored() -> None:
    state = EtcdState("existing", (0, 1, 2), 2)
    assert EtcdState.read({"data": dict(state.data(NAMES))}) == state
    unknown = replace(state, voters=None)
    assert EtcdState.read({"data": dict(unknown.data(NAMES))}) == unknown
    assert EtcdState.read({"data": {}}) is None
    assert EtcdState.read(None) is None
    # From a provider that could not change the number of members.
    assert EtcdState.read({"data": {"initial-cluster-state": "existing"}}) == EtcdState(
        "existing", (), None
    )


def test_a_member_starts_with_the_list_that_etcd_has() -> None:
    state = EtcdState("existing", (0,), 1).of_membership(listed(0, 1, learners=frozenset({1})))
    assert (state.members, state.voters) == ((0, 1), 1)
    assert state.data(NAMES)["initial-cluster"] == (
        "one-etcd-0=https://one-etcd-0.one-etcd-members.default.svc:2380,"
        "one-etcd-1=https://one-etcd-1.one-etcd-members.default.svc:2380"
    )


def test_a_restore_begins_a_cluster_of_the_desired_size() -> None:
    """The number of members may differ from that at the time of the backup, or be changing."""
    growing = EtcdState("existing", (0, 1), 1, restored="first")
    assert growing.of_restore("second", 3) == EtcdState("existing", (0, 1, 2), 3, "second")
    stored = growing.of_restore("second", 3).data(NAMES)
    assert EtcdState.read({"data": dict(stored)}) == growing.of_restore("second", 3)
    # The StatefulSet begins with all of them.
    restored = growing.of_restore("second", 3)
    assert next_etcd_state(restored, (), 3, has_etcd=False) == restored


@pytest.mark.parametrize(
    ("present", "has_etcd", "expected"),
    [
        (None, False, EtcdState("new", (0, 1, 2), 3)),
        # The provider does not know whether all of them vote.
        (None, True, EtcdState("existing", (0, 1, 2), None)),
        (EtcdState("existing", (), None), True, EtcdState("existing", (0, 1, 2), None)),
        (EtcdState("existing", (0, 1), 1), True, EtcdState("existing", (0, 1), 1)),
        # The size changed before the first member started.
        (EtcdState("new", (0,), 1), False, EtcdState("new", (0, 1, 2), 3)),
    ],
)
def test_a_lost_state_is_completed(
    present: EtcdState | None, has_etcd: bool, expected: EtcdState
) -> None:
    assert next_etcd_state(present, (), 3, has_etcd=has_etcd) == expected


def test_a_resize_ends_when_all_desired_members_vote() -> None:
    assert is_resized(EtcdState("existing", (0, 1, 2), 3), 3, 3)
    assert not is_resized(EtcdState("existing", (0, 1, 2), 2), 3, 3)
    assert not is_resized(EtcdState("existing", (0, 1, 2), None), 3, 3)
    assert not is_resized(EtcdState("existing", (0, 1, 2), 3), 3, 1)
    assert not is_resized(None, 3, 3)


def test_a_stateful_set_shows_how_many_members_run() -> None:
    assert planned_members(None, 3) == 3
    assert planned_members({"spec": {"replicas": 2}}, 3) == 2


def test_learners_do_not_count_for_the_quorum() -> None:
    members = ready(0, 1)
    assert voters_of(members, listed(0, 1, learners=frozenset({1}))) == ready(0)
    assert voters_of(members, None) == members


@dataclass
class World:
    """etcd's list and the pods, which a provider changes one step at a time."""

    voters: set[int]
    leader: int
    learner: int | None = None
    pods: set[int] = field(default_factory=set[int])

    @property
    def membership(self) -> Membership:
        learners = frozenset[int]() if self.learner is None else frozenset({self.learner})
        members = listed(*sorted(self.voters | learners), learners=learners, leader=self.leader)
        if self.learner is None or self.learner in self.pods:
            return members
        unstarted = replace(members.members[self.learner], started=False)
        return replace(members, members={**members.members, self.learner: unstarted})

    def apply(self, change: object) -> None:
        match change:
            case AddLearner(index):
                assert self.learner is None
                self.learner = index
            case StartLearner(index):
                assert index == len(self.pods), "a StatefulSet starts its pods in order"
                self.pods.add(index)
            case Promote(index):
                assert index in self.pods
                self.voters.add(index)
                self.learner = None
            case Remove(index):
                assert index != self.leader
                self.voters.discard(index)
                self.learner = None if self.learner == index else self.learner
            case Removed(index):
                assert index not in self.voters
                assert index == max(self.pods)
                self.pods.discard(index)
            case MoveLeadership(_, to):
                assert to in self.voters
                self.leader = to
            case _:
                raise AssertionError(change)
        assert self.voters <= self.pods


@given(
    before=st.sampled_from([1, 3, 5]),
    sizes=st.lists(st.sampled_from([1, 3, 5]), min_size=1, max_size=4),
    steps=st.lists(st.integers(0, 12), min_size=4, max_size=4),
    leader=st.integers(0, 4),
)
def test_every_sequence_of_sizes_ends_with_the_last_one(
    before: int, sizes: list[int], steps: list[int], leader: int
) -> None:
    """The size changes again after any number of steps, and a new provider continues."""
    world = World(set(range(before)), leader % before, pods=set(range(before)))
    for size, count in zip(sizes, [*steps[: len(sizes) - 1], 60], strict=True):
        for _ in range(count):
            members = [
                Member(index=index, ready=index in world.voters) for index in sorted(world.pods)
            ]
            change = next_change(
                members,
                world.membership,
                started=world.pods,
                planned=len(world.pods),
                size=size,
                may_shrink=True,
            )
            if change is None:
                break
            world.apply(change)
    assert world.voters == world.pods == set(range(sizes[-1]))
    assert world.learner is None
