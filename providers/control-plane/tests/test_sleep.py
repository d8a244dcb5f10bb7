"""When a control plane sleeps, the requests that wait meanwhile, and its status."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from capelin.api import Condition
from capelin.contract import ASLEEP, ConditionSpec, find_condition
from capelin.provider import ControlPlaneInitialization, VersionCount
from capelin_control_plane.api import (
    CapelinControlPlane,
    ControlPlaneEndpoint,
    LastBackup,
    Sleep,
    Spec,
    Status,
)
from capelin_control_plane.backup.manifests import BACKUP_ANNOTATION
from capelin_control_plane.desired.control_plane import InvalidSpecError
from capelin_control_plane.desired.instances import Observed
from capelin_control_plane.keys.rotation import NO_ROTATION, Progress
from capelin_control_plane.operations.move_phases import MOVING
from capelin_control_plane.operations.rotation import ROTATE_ANNOTATION
from capelin_control_plane.operations.sleep import (
    SLEEP_ANNOTATION,
    WAKE_ANNOTATION,
    sleep_state,
    stays_asleep,
    waiting_requests,
)
from capelin_control_plane.status import after_sleep, asleep_status

from .factories import desired_control_plane

NIGHTS = Sleep(start="0 20 * * 1-5", end="0 7 * * 1-5", time_zone="Europe/Berlin")
EVENING = datetime(2026, 11, 25, 19, 0, tzinfo=UTC)
"""A Wednesday, 20:00 in Berlin."""
MORNING = datetime(2026, 11, 26, 6, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def control_plane(schedule: Sleep | None = None, /, **annotations: datetime) -> CapelinControlPlane:
    spec = Spec(version="v1.34.4", sleep=schedule, control_plane_endpoint=ControlPlaneEndpoint())
    mine = CapelinControlPlane.of("one", "default", spec=spec)
    names = {"sleep": SLEEP_ANNOTATION, "wake": WAKE_ANNOTATION}
    mine.metadata.annotations = {
        names[name]: moment.isoformat() for name, moment in annotations.items()
    }
    mine.metadata.generation = 3
    return mine


@pytest.mark.parametrize(
    ("now", "asleep", "following"),
    [
        (EVENING - MINUTE, False, EVENING),
        (EVENING, True, MORNING),
        (MORNING - MINUTE, True, MORNING),
        (MORNING, False, EVENING + timedelta(days=1)),
        # From Friday evening to Monday morning.
        (EVENING + timedelta(days=4), True, MORNING + timedelta(days=4)),
    ],
)
def test_a_schedule_lets_it_sleep(now: datetime, asleep: bool, following: datetime) -> None:
    state = sleep_state(control_plane(NIGHTS), now)
    assert (state.asleep, state.next) == (asleep, following)


def test_the_latest_moment_decides() -> None:
    night = EVENING + timedelta(hours=2)
    assert not sleep_state(control_plane(), night).asleep
    assert sleep_state(control_plane(sleep=night), night).asleep
    assert not sleep_state(control_plane(sleep=night, wake=night), night).asleep
    # A person wakes it in the night, until the next evening.
    woken = control_plane(NIGHTS, wake=night)
    assert not sleep_state(woken, night + MINUTE).asleep
    assert sleep_state(woken, EVENING + timedelta(days=1)).asleep
    # A person lets it sleep by day, until the next morning.
    noon = MORNING + timedelta(hours=5)
    sleeping = control_plane(NIGHTS, sleep=noon)
    assert sleep_state(sleeping, noon + MINUTE).asleep
    assert not sleep_state(sleeping, MORNING + timedelta(days=1)).asleep


def test_a_moment_in_the_future_waits() -> None:
    state = sleep_state(control_plane(sleep=EVENING), EVENING - MINUTE)
    assert (state.asleep, state.next) == (False, EVENING)


def test_a_control_plane_that_never_served_does_not_sleep() -> None:
    mine = control_plane(NIGHTS)
    mine.spec.control_plane_endpoint = None
    assert not sleep_state(mine, EVENING).asleep


@pytest.mark.parametrize(
    ("sleep", "message"),
    [
        (Sleep(start="20:00", end="0 7 * * *"), "spec.sleep.start: '20:00' is not a cron"),
        (
            Sleep(start="0 20 * * *", end="0 7 30 2 *"),
            "sleep.end: '0 7 30 2 .*' is not a cron",
        ),
        (
            Sleep(start="0 20 * * *", end="0 7 * * *", time_zone="Mars"),
            "spec.sleep.timeZone: 'Mars' is not a time zone",
        ),
    ],
)
def test_an_invalid_schedule_changes_nothing(sleep: Sleep, message: str) -> None:
    mine = control_plane(sleep)
    with pytest.raises(InvalidSpecError, match=message):
        sleep_state(mine, EVENING)
    assert not stays_asleep(mine, EVENING)
    condition = Condition(
        type=ASLEEP, status="True", reason=ASLEEP, message="", last_transition_time=EVENING
    )
    mine.status = Status(conditions=[condition])
    assert stays_asleep(mine, EVENING)


def test_requests_wait_until_it_wakes() -> None:
    mine = control_plane()
    desired = replace(desired_control_plane("v1.34.4", etcd_replicas=3), now=EVENING)
    mine.status = Status(
        versions=[VersionCount(version="v1.34.4")],
        backup=LastBackup(name="20260131T030000Z", time=EVENING - MINUTE, revision=1, bytes=1),
    )
    assert waiting_requests(mine, desired, Observed(voters=3), NO_ROTATION) == ()
    mine.metadata.annotations = {
        BACKUP_ANNOTATION: EVENING.isoformat(),
        ROTATE_ANNOTATION: EVENING.isoformat(),
    }
    upgraded = replace(desired, version="v1.35.0")
    assert waiting_requests(mine, upgraded, Observed(voters=1), NO_ROTATION) == (
        "the upgrade to v1.35.0",
        "the change of etcd to 3 members",
        "a backup",
        "a rotation of CAs",
    )
    earlier = {
        BACKUP_ANNOTATION: (EVENING - 2 * MINUTE).isoformat(),
        ROTATE_ANNOTATION: "tomorrow",
    }
    mine.metadata.annotations = earlier
    assert waiting_requests(mine, desired, Observed(voters=3), NO_ROTATION) == ()
    assert waiting_requests(mine, desired, Observed(voters=3), Progress(step=2)) == (
        "a rotation of CAs",
    )


def test_a_sleep_is_not_a_failure() -> None:
    mine = control_plane()
    desired = replace(desired_control_plane("v1.34.4"), now=EVENING, asleep=True)
    healthy = Condition(
        type="BackupHealthy",
        status="True",
        reason="BackupHealthy",
        message="",
        last_transition_time=EVENING,
    )
    mine.status = Status(
        conditions=[healthy],
        initialization=ControlPlaneInitialization(control_plane_initialized=True),
        replicas=1,
        ready_replicas=1,
        version="v1.34.4",
        versions=[VersionCount(version="v1.34.4", replicas=1)],
    )
    falling = asleep_status(mine, desired, Observed(alive=frozenset({"etcd-0"})), ())
    reasons = {it.type: (it.status, it.reason) for it in falling.conditions}
    assert reasons[ASLEEP] == ("True", "FallingAsleep")
    assert mine.status is not None
    mine.status.conditions.append(healthy.model_copy(update={"type": MOVING}))
    status = asleep_status(mine, desired, Observed(), ("a backup",))
    conditions = {it.type: (it.status, it.reason) for it in status.conditions}
    assert conditions[ASLEEP] == ("True", ASLEEP)
    assert conditions["Available"] == ("False", ASLEEP)
    assert conditions["EtcdClusterAvailable"] == ("False", ASLEEP)
    assert conditions["Remediating"] == ("False", "NotRemediating")
    assert conditions["BackupHealthy"] == ("True", "BackupHealthy")
    assert MOVING not in conditions
    message = find_condition(status.conditions, "Available")
    assert message is not None
    assert message.message.endswith("Until it wakes, these wait: a backup")
    assert (status.replicas, status.ready_replicas, status.version) == (0, 0, "v1.34.4")
    assert [(count.version, count.replicas) for count in status.versions] == [("v1.34.4", None)]
    assert status.initialization.control_plane_initialized


def test_a_control_plane_that_wakes_has_not_failed() -> None:
    starting = ConditionSpec("Available", "False", "NotAvailable", "etcd-0 is starting")
    serving = ConditionSpec("Available", "True", "Available")

    def last(reason: str) -> Status:
        condition = Condition(
            type="Available",
            status="False",
            reason=reason,
            message="",
            last_transition_time=EVENING,
        )
        return Status(conditions=[condition])

    assert after_sleep(starting, last(ASLEEP)).reason == "Waking"
    assert after_sleep(starting, last("Waking")).message == "etcd-0 is starting"
    assert after_sleep(starting, last("NotAvailable")) == starting
    assert after_sleep(starting, Status()) == starting
    assert after_sleep(serving, last("Waking")) == serving
