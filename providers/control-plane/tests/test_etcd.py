"""Rules of etcd clusters, which both backends follow."""

import pytest
from capelin_control_plane.etcd import (
    AddMember,
    ClusterState,
    ListedMember,
    Loss,
    Member,
    RemoveMember,
    Replacement,
    is_corruption,
    loss_of,
    next_cluster_state,
    next_membership_change,
    next_replacement,
    next_restarts,
    quorum,
)

URL = "https://127.64.0.9:2380"


def members_of(*states: str) -> list[Member]:
    """Members by their words: `outdated`, `down`, `recovering`, `gone`, `unusable`, or `absent`."""
    return [
        Member(
            index=index,
            ready="down" not in state,
            outdated="outdated" in state,
            recovering="recovering" in state,
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
