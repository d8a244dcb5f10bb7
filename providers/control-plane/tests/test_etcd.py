"""Rules of etcd clusters, which both backends follow."""

import pytest
from capelin_control_plane.etcd.rules import (
    AddLearner,
    AddMember,
    ClusterState,
    ListedMember,
    Loss,
    Member,
    MemberChange,
    Membership,
    MoveLeadership,
    PlannedMember,
    Promote,
    Promoted,
    Remove,
    Removed,
    RemoveMember,
    Replacement,
    StartLearner,
    is_corruption,
    loss_of,
    next_cluster_state,
    next_leadership,
    next_membership_change,
    next_replacement,
    next_resizing,
    next_restarts,
    quorum,
)

URL = "https://127.64.0.9:2380"


def members_of(*states: str) -> list[Member]:
    """Members by their words: `outdated`, `down`, `recovering`, `leader`, `gone`, `unusable`.

    One that is `absent` does not run.
    """
    return [
        Member(
            index=index,
            ready="down" not in state,
            outdated="outdated" in state,
            recovering="recovering" in state,
            leader="leader" in state,
            loss=next((loss for loss in Loss if loss.value in state), None),
        )
        for index, state in enumerate(states)
        if state != "absent"
    ]


@pytest.mark.parametrize(("size", "needed"), [(1, 1), (3, 2), (5, 3)])
def test_a_quorum_is_more_than_half(size: int, needed: int) -> None:
    assert quorum(size) == needed


@pytest.mark.parametrize(
    ("states", "indexes"),
    [
        (("", "", ""), ()),
        (("outdated", "outdated", "outdated"), (0,)),
        (("", "outdated", "outdated"), (1,)),
        # One that was restarted is not ready yet.
        (("down", "outdated", "outdated"), ()),
        (("outdated", "outdated", "absent"), ()),
        # A member that is down may need just this change, and the others keep their quorum.
        (("outdated", "outdated", "outdated down"), (2,)),
        (("outdated", "", "outdated down"), (2,)),
        (("outdated down", "outdated down", "outdated"), (0,)),
        (("outdated", "outdated down", "down"), ()),
        # The one that failed goes first: the other may serve already.
        (("outdated down recovering", "outdated down", "outdated"), (1,)),
        # No quorum exists, and no single member becomes ready.
        (("outdated down", "outdated down", "outdated down"), (0, 1, 2)),
        (("down", "outdated down", "outdated down"), (1, 2)),
        # Those that recover may have a quorum that has not been observed yet.
        (("outdated down recovering",) * 3, ()),
        (("outdated down", "outdated down recovering", "outdated down"), (0, 2)),
        # The only member is changed in any case.
        (("outdated down recovering",), (0,)),
        (("outdated",), (0,)),
        # A member that was stopped to be replaced is a missing vote.
        (("outdated", "absent", "outdated"), ()),
        (("outdated", "absent", "outdated down"), (2,)),
        # A lost member becomes ready only as a new one: another that is down does not wait for it.
        (("", "down gone", "outdated down"), (2,)),
        (("outdated", "gone", "outdated"), ()),
        # The leader is the last, so that leadership moves once.
        (("outdated leader", "outdated", "outdated"), (1,)),
        (("outdated leader", "", ""), (0,)),
    ],
)
def test_order_of_restarts(states: tuple[str, ...], indexes: tuple[int, ...]) -> None:
    size = 1 if len(states) == 1 else 3
    assert next_restarts(members_of(*states), size) == indexes


@pytest.mark.parametrize(
    ("states", "replacement"),
    [
        (("", "", ""), None),
        (("", "", "down"), None),
        (("", "", "down gone"), Replacement(2, 0, Loss.GONE)),
        (("down unusable", "", ""), Replacement(0, 1, Loss.UNUSABLE)),
        # The others have no quorum without it.
        (("", "down", "down gone"), None),
        (("down gone",), None),
        (("down gone", "down gone", ""), None),
        # One that is ready still has everything in memory.
        (("gone", "down gone", ""), Replacement(1, 0, Loss.GONE)),
        (("down gone", "down gone", "", "", ""), Replacement(0, 2, Loss.GONE)),
        # A member with data waits: another attempt may read it.
        (("down unusable", "down gone", "", "", ""), Replacement(1, 2, Loss.GONE)),
        (("", "", "down displaced"), Replacement(2, 0, Loss.DISPLACED)),
        (("", "down", "down displaced"), None),
        (("down displaced",), None),
        (("down displaced", "down displaced", "", "", ""), Replacement(0, 2, Loss.DISPLACED)),
        # The data of one on a lost node may return with the node.
        (("down displaced", "down unusable", "", "", ""), Replacement(1, 2, Loss.UNUSABLE)),
    ],
)
def test_replacement_of_members(states: tuple[str, ...], replacement: Replacement | None) -> None:
    assert next_replacement(members_of(*states), len(states)) == replacement


@pytest.mark.parametrize(
    ("present", "ready", "has_etcd", "expected"),
    [
        (None, (), False, "new"),
        (None, (False,), True, "existing"),
        ("new", (False, True, True), True, "new"),
        ("new", (True, True), True, "new"),
        ("new", (True, True, True), True, "existing"),
        ("existing", (False, False, False), True, "existing"),
        ("existing", (), False, "existing"),
    ],
)
def test_a_cluster_starts_once_and_is_complete_with_all_its_members(
    present: ClusterState | None, *, ready: tuple[bool, ...], has_etcd: bool, expected: str
) -> None:
    assert next_cluster_state(present, ready, 3, has_etcd=has_etcd) == expected


def test_a_member_is_removed_before_it_is_added_again() -> None:
    others = [ListedMember("1", "https://127.64.0.9:2390", started=True)]
    lost = ListedMember("9", URL, started=True)
    assert next_membership_change(URL, [*others, lost]) == RemoveMember("9")
    assert next_membership_change(URL, others) == AddMember(URL)
    assert next_membership_change(URL, [*others, ListedMember("8", URL, started=False)]) is None


@pytest.mark.parametrize(
    ("failure", "is_corrupt", "loss"),
    [
        ("exited with code 2: wal: crc mismatch", True, Loss.UNUSABLE),
        (
            "exited with code 1: failed to recover v3 backend from snapshot",
            True,
            Loss.UNUSABLE,
        ),
        (
            "exited with code 2: failed to open database: invalid database",
            True,
            Loss.UNUSABLE,
        ),
        ("ended: panic: cannot use none as id", True, Loss.UNUSABLE),
        ("member 8e9e05c52164694d has already been bootstrapped", False, Loss.UNUSABLE),
        ("the member has been permanently removed from the cluster", False, Loss.UNUSABLE),
        ("exited with code 2: flag provided but not defined: -corrupt-check", False, None),
        ("exited with code 1: write: no space left on device", False, None),
        ("was killed by SIGKILL", False, None),
        ("", False, None),
    ],
)
def test_last_message_shows_loss(failure: str, *, is_corrupt: bool, loss: Loss | None) -> None:
    assert is_corruption(failure) == is_corrupt
    assert loss_of(failure) is loss


@pytest.mark.parametrize(
    ("states", "move"),
    [
        (("outdated leader", "", ""), MoveLeadership(0, 1)),
        (("outdated", "", "outdated leader"), None),
        (("", "down", "outdated leader"), MoveLeadership(2, 0)),
        (("outdated leader",), None),
        (("outdated leader", "down", "down"), None),
        (("outdated", "", ""), None),
    ],
)
def test_leadership_moves_before_the_leader_restarts(
    states: tuple[str, ...], move: MoveLeadership | None
) -> None:
    members = members_of(*states)
    restarts = [0] if "outdated" in states[0] else [len(states) - 1]
    assert next_leadership(members, restarts) == move


def test_leadership_moves_to_a_member_that_does_not_restart_next() -> None:
    members = members_of("outdated leader", "outdated", "")
    assert next_leadership(members, [0]) == MoveLeadership(0, 2)


Step = MemberChange | Promoted | Removed


class Cluster:
    """A cluster of etcd, and the plan of its members."""

    def __init__(self, size: int) -> None:
        self.listed = {index: listed(index) for index in range(size)}
        self.planned = {index: PlannedMember(ready=True) for index in range(size)}
        self.leader = size - 1

    def next(self, size: int, *, may_shrink: bool = True) -> Step | None:
        membership = Membership(members=self.listed, leader=self.leader)
        return next_resizing(self.planned, membership, size, may_shrink=may_shrink)

    def take(self, step: Step) -> None:
        match step:
            case MoveLeadership(leader, to):
                assert self.leader == leader
                self.leader = to
            case AddLearner(index):
                assert index not in self.listed
                self.listed[index] = listed(index, started=False, learner=True)
            case StartLearner(index):
                self.planned[index] = PlannedMember(ready=True, learner=True)
                self.listed[index] = listed(index, learner=True)
            case Promote(index):
                self.listed[index] = listed(index)
            case Promoted(index):
                self.planned[index] = PlannedMember(ready=True)
            case Remove(index):
                assert index != self.leader
                del self.listed[index]
            case Removed(index):
                assert index not in self.listed
                del self.planned[index]
        self.check()

    def check(self) -> None:
        """The ready members that vote are a quorum, and include the leader."""
        voters = {index for index, member in self.listed.items() if not member.learner}
        ready = {index for index in voters if index in self.planned}
        assert len(ready) >= quorum(len(voters))
        assert self.leader in ready
        assert len(self.listed) - len(voters) <= 1


def listed(index: int, *, started: bool = True, learner: bool = False) -> ListedMember:
    return ListedMember(str(index), f"https://127.64.0.9:{2380 + index}", started, learner)


SIZES = (1, 3, 5, 3, 1)


def test_cluster_is_resized_with_a_quorum_throughout() -> None:
    cluster = Cluster(1)
    for size in SIZES:
        while (step := cluster.next(size)) is not None:
            cluster.take(step)
        assert set(cluster.listed) == set(cluster.planned) == set(range(size))
        assert not any(member.learner for member in cluster.listed.values())


@pytest.mark.parametrize("before", {*SIZES})
@pytest.mark.parametrize("first", {*SIZES})
@pytest.mark.parametrize("then", {*SIZES})
def test_size_can_change_again_at_any_point(before: int, first: int, then: int) -> None:
    for point in range(30):
        cluster = Cluster(before)
        for size, most in ((first, point), (then, 100)):
            for _ in range(most):
                step = cluster.next(size)
                if step is None:
                    break
                cluster.take(step)
        assert set(cluster.listed) == set(cluster.planned) == set(range(then))


def test_no_member_is_added_while_another_is_down() -> None:
    cluster = Cluster(3)
    cluster.planned[1] = PlannedMember(ready=False)
    assert cluster.next(5) is None


@pytest.mark.parametrize(("size", "down"), [(3, 0), (5, 3), (3, 2)])
def test_removal_leaves_a_quorum(size: int, down: int) -> None:
    cluster = Cluster(size)
    cluster.leader = 1
    cluster.planned[down] = PlannedMember(ready=False)
    step = cluster.next(1)
    # A surplus member that is down is removed. Of three members, the other two are needed.
    assert step == (None if (size, down) == (3, 0) else Remove(size - 1))


def test_members_go_after_the_api_servers_that_use_them() -> None:
    assert Cluster(3).next(1, may_shrink=False) is None


def test_listed_member_without_a_plan_is_removed_with_a_quorum() -> None:
    cluster = Cluster(3)
    del cluster.planned[1]
    assert cluster.next(3) == Remove(1)
    cluster.planned[0] = PlannedMember(ready=False)
    assert cluster.next(3) is None


def test_learner_is_promoted_when_it_is_ready() -> None:
    cluster = Cluster(1)
    cluster.listed[1] = listed(1, learner=True)
    cluster.planned[1] = PlannedMember(ready=False, learner=True)
    assert cluster.next(3) is None
    cluster.planned[1] = PlannedMember(ready=True, learner=True)
    assert cluster.next(3) == Promote(1)
    cluster.planned[1] = PlannedMember(ready=False, learner=True, lost=True)
    assert cluster.next(3) == Remove(1)
    # Without a plan, its data may be incomplete.
    del cluster.planned[1]
    assert cluster.next(3) == Remove(1)
