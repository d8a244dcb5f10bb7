"""Moves of control planes to another management cluster: requirements and phases."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from capelin.api import Condition
from capelin.contract import BLOCK_MOVE_ANNOTATION, MOVE_LABEL, PAUSED, ConditionSpec
from capelin_control_plane.api import CapelinControlPlane, Spec, Status
from capelin_control_plane.desired.component_files import EncryptionFiles
from capelin_control_plane.desired.control_plane import (
    MOVE_ANNOTATION,
    MOVED_FROM_ANNOTATION,
    ControlPlane,
    InvalidSpecError,
)
from capelin_control_plane.desired.instances import InstanceStatus, Observed, Phase, Remains
from capelin_control_plane.operations.move_phases import (
    MOVABLE,
    MOVING,
    MovePhase,
    MoveRequest,
    accepted_move,
    is_moving,
    movable,
    move_phase,
    move_request,
    not_requested,
    user_objects,
)

from .factories import desired_control_plane

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
REQUESTED = NOW.isoformat()
LATER = (NOW + timedelta(minutes=5)).isoformat()
S3 = {
    "endpoint": "https://s3.example.com",
    "bucket": "backups",
    "credentials": {"name": "credentials"},
}
SERVES = Observed(
    statuses=(
        InstanceStatus(
            name="kube-apiserver-0",
            component="kube-apiserver",
            version="v1.34.4",
            ready=True,
            current=True,
        ),
    ),
    complete=True,
)


def control_plane(*, destination: dict[str, Any] | None = None, **pods: Any) -> CapelinControlPlane:
    backup = {
        "destination": {"s3": S3} if destination is None else destination,
        "encryptionKey": {"name": "backup-key"},
    }
    fields = {"version": "v1.34.4", "backend": "Pods", "pods": pods, "etcd": {"backup": backup}}
    mine = CapelinControlPlane.of("one", "default", spec=Spec.model_validate(fields))
    mine.metadata.uid = "here"
    mine.metadata.annotations = {MOVE_ANNOTATION: REQUESTED, BLOCK_MOVE_ANNOTATION: "true"}
    return mine


def check(
    mine: CapelinControlPlane,
    desired: ControlPlane | None = None,
    observed: Observed = SERVES,
    *,
    host: str = "api.example.com",
    own: tuple[str, ...] = ("192.0.2.1",),
    staying: tuple[str, ...] = (),
) -> ConditionSpec:
    desired = desired or desired_control_plane("v1.34.4")
    return movable(mine, desired, observed, host=host, own_hosts=own, staying=staying)


@pytest.mark.parametrize("host", ["api.example.com", "198.51.100.7"])
def test_a_portable_endpoint_and_a_bucket_let_a_control_plane_move(host: str) -> None:
    mine = control_plane()
    condition = check(mine, host=host)
    assert condition.status == "True"
    assert accepted_move(mine, condition) == REQUESTED
    assert accepted_move(mine, not_requested()) is None
    problem = InvalidSpecError("'soon' is not a moment")
    assert not_requested(problem) == ConditionSpec(MOVABLE, "False", "MoveRefused", str(problem))


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("192.0.2.1", ("192.0.2.1",)),
        ("lb-1.cloud.example.com", ("lb-1.cloud.example.com",)),
        ("one-kube-apiserver.default.svc", ()),
        ("api.cluster.local", ()),
    ],
)
def test_an_address_of_the_management_cluster_needs_a_declaration(
    host: str, own: tuple[str, ...]
) -> None:
    refused = check(control_plane(), host=host, own=own)
    assert (refused.status, refused.reason) == ("False", "MoveRefused")
    assert host in refused.message
    declared = control_plane(exposure={"portable": True})
    assert check(declared, host=host, own=own).status == "True"


def test_data_moves_through_a_bucket_only() -> None:
    assert "spec.etcd.backup" in check(control_plane(destination={"folder": "etcd"})).message
    without = control_plane()
    without.spec.etcd.backup = None
    assert check(without).reason == "MoveRefused"
    memory = control_plane(etcdVolume={"medium": "Memory"})
    assert "data in memory" in check(memory).message


def test_objects_that_clusterctl_leaves_behind_need_a_label() -> None:
    refused = check(control_plane(), staying=("secret backup-key",))
    assert f"kubectl label secret backup-key {MOVE_LABEL}=" in refused.message


@pytest.mark.parametrize(
    ("changes", "observed", "message"),
    [
        ({"restore": "20260131T030000Z"}, SERVES, "a restore"),
        ({}, replace(SERVES, restore=Phase.STARTING), "a restore"),
        ({"encryption": EncryptionFiles(changing=True)}, SERVES, "encryption"),
        ({"rotation": 1}, SERVES, "a rotation of CAs"),
        ({"asleep": True}, Observed(), "a sleep"),
        ({}, Observed(), "a rollout of API servers"),
        ({}, replace(SERVES, complete=False), "a change of etcd's members"),
    ],
)
def test_a_move_waits_for_other_operations(
    changes: dict[str, Any], observed: Observed, message: str
) -> None:
    desired = replace(desired_control_plane("v1.34.4"), **changes)
    postponed = check(control_plane(), desired, observed)
    assert (postponed.status, postponed.reason) == ("False", "MovePostponed")
    assert message in postponed.message


def test_a_request_is_valid_for_an_hour() -> None:
    mine = control_plane()
    valid = MoveRequest(valid=True, next=NOW + timedelta(hours=1))
    assert move_request(mine, NOW) == valid
    assert move_request(mine, NOW + timedelta(minutes=59)) == valid
    assert move_request(mine, NOW + timedelta(hours=1)) == MoveRequest()
    mine.metadata.annotations[MOVE_ANNOTATION] = "soon"
    with pytest.raises(InvalidSpecError, match="not a moment"):
        move_request(mine, NOW)


def test_a_request_of_a_client_whose_clock_is_ahead_begins_at_its_moment() -> None:
    earlier = NOW - timedelta(seconds=2)
    assert move_request(control_plane(), earlier) == MoveRequest(next=NOW)


def movable_status(status: str, *others: str) -> Status:
    """The status with a condition `Movable`, and other conditions that are true."""
    conditions = [
        Condition.model_validate(
            {
                "type": type_,
                "status": value,
                "reason": "X",
                "message": "",
                "lastTransitionTime": REQUESTED,
            }
        )
        for type_, value in ((MOVABLE, status), *((other, "True") for other in others))
    ]
    return Status(conditions=conditions, observed_generation=1, accepted_move=REQUESTED)


def test_only_the_pause_of_a_checked_request_stops_a_control_plane() -> None:
    mine = control_plane()
    mine.metadata.generation = 1
    assert not is_moving(mine, NOW)
    mine.status = movable_status("False")
    assert not is_moving(mine, NOW)
    mine.status = movable_status("True")
    assert is_moving(mine, NOW)
    mine.metadata.generation = 2
    assert not is_moving(mine, NOW)
    mine.metadata.generation = 1
    # Another request follows, and no provider has checked it yet.
    mine.metadata.annotations[MOVE_ANNOTATION] = LATER
    assert not is_moving(mine, NOW + timedelta(minutes=5))
    mine.status.accepted_move = LATER
    assert is_moving(mine, NOW + timedelta(minutes=5))
    mine.metadata.annotations[MOVE_ANNOTATION] = mine.status.accepted_move = "soon"
    assert not is_moving(mine, NOW)
    del mine.metadata.annotations[MOVE_ANNOTATION]
    assert not is_moving(mine, NOW)
    # The final backup is named: only the end of the pause returns from here.
    mine.metadata.annotations[MOVED_FROM_ANNOTATION] = "here"
    assert is_moving(mine, NOW + timedelta(days=1))
    # In the other management cluster, the object has another UID.
    mine.metadata.uid = "there"
    assert not is_moving(mine, NOW)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        # No provider withdrew the condition at the end of the hour.
        ((), False),
        ((PAUSED,), False),
        ((PAUSED, MOVING), True),
        # The pause of this move has ended.
        ((MOVING,), False),
    ],
)
def test_after_the_hour_only_a_move_that_has_begun_continues(
    others: tuple[str, ...],
    expected: bool,
) -> None:
    mine = control_plane()
    mine.metadata.generation = 1
    mine.status = movable_status("True", *others)
    assert is_moving(mine, NOW + timedelta(hours=1)) is expected
    del mine.metadata.annotations[MOVE_ANNOTATION]
    assert not is_moving(mine, NOW)


@pytest.mark.parametrize(
    ("handed_over", "blocks", "clients", "others", "phase"),
    [
        (False, True, True, True, MovePhase.STOPPING),
        (False, True, False, True, MovePhase.BACKING_UP),
        (True, True, False, True, MovePhase.RELEASING),
        (True, True, False, False, MovePhase.RELEASING),
        (True, False, True, False, MovePhase.RELEASING),
        (True, False, False, True, MovePhase.RELEASING),
        (True, False, False, False, MovePhase.READY),
    ],
)
def test_the_phase_follows_from_annotations_and_remaining_objects(
    *, handed_over: bool, blocks: bool, clients: bool, others: bool, phase: MovePhase
) -> None:
    mine = control_plane()
    if handed_over:
        mine.metadata.annotations[MOVED_FROM_ANNOTATION] = "here"
    if not blocks:
        del mine.metadata.annotations[BLOCK_MOVE_ANNOTATION]
    assert move_phase(mine, Remains(clients, others)) is phase


def test_the_objects_of_users_that_a_spec_names_have_to_move() -> None:
    mine = control_plane(images={"pullSecrets": ["registry"]})
    fields = {
        "encryption": {"keysFrom": {"name": "own-key"}},
        "auditPolicy": {"configMap": {"name": "audit"}},
    }
    mine.spec.api_server = type(mine.spec.api_server).model_validate(fields)
    assert user_objects(mine.spec) == [
        ("secret", "backup-key"),
        ("secret", "credentials"),
        ("secret", "own-key"),
        ("secret", "registry"),
        ("configmap", "audit"),
    ]
