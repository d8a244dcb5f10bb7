"""Status and conditions of a control plane."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from capelin.api import Condition, ObjectMeta
from capelin.contract import CLUSTER_NAME_LABEL
from capelin.provider import Blocked, ControlPlaneInitialization
from capelin_control_plane.api import (
    CapelinControlPlane,
    Spec,
    Status,
)
from capelin_control_plane.backends.pods import Names
from capelin_control_plane.desired.control_plane import Component, ControlPlane
from capelin_control_plane.desired.instances import Instance, InstanceStatus, Observed, Plan
from capelin_control_plane.etcd.rules import Loss
from capelin_control_plane.status import running_status

from .factories import desired_control_plane

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD, NEW = "v1.33.13", "v1.34.4"
DESIRED = replace(desired_control_plane(NEW), now=NOW)


def control_plane(
    *, initialized: bool = False, conditions: Iterable[Condition] = ()
) -> CapelinControlPlane:
    return CapelinControlPlane(
        metadata=ObjectMeta(name="one", namespace="default", generation=7),
        spec=Spec(version=NEW),
        status=Status(
            initialization=ControlPlaneInitialization(control_plane_initialized=initialized),
            conditions=list(conditions),
        ),
    )


def part(
    component: Component, slot: int = 0, version: str = NEW, **state: object
) -> InstanceStatus:
    merged = {"ready": True, "current": version == NEW, "failure": "", "unready": ""} | state
    return InstanceStatus(
        name=f"{component}-{slot}",
        component=component,
        version=version,
        ready=bool(merged["ready"]),
        current=None if merged["current"] is None else bool(merged["current"]),
        failure=str(merged["failure"]),
        unready=str(merged["unready"]),
    )


def followers(version: str = NEW) -> list[InstanceStatus]:
    return [
        part("kube-controller-manager", version=version),
        part("kube-scheduler", version=version),
        part("relay", current=True),
    ]


def observed(
    *servers: InstanceStatus,
    etcd: Iterable[InstanceStatus] = (),
    others: Iterable[InstanceStatus] | None = None,
) -> Observed:
    rest = followers() if others is None else others
    return Observed(statuses=(*(etcd or (part("etcd"),)), *servers, *rest), complete=True)


def status_of(
    observation: Observed,
    *,
    desired: ControlPlane | None = None,
    of: CapelinControlPlane | None = None,
) -> Status:
    return running_status(of or control_plane(), desired or DESIRED, observation)


def condition(current: Status, type_: str) -> tuple[str, str, str]:
    found = next(one for one in current.conditions if one.type == type_)
    return found.status, found.reason, found.message


def test_a_running_control_plane_is_available_and_has_no_machines() -> None:
    current = status_of(observed(part("kube-apiserver")))
    assert condition(current, "Available") == ("True", "Available", "")
    assert current.external_managed_control_plane is True
    assert current.initialization.control_plane_initialized is True
    assert (current.replicas, current.ready_replicas, current.up_to_date_replicas) == (1, 1, 1)
    assert current.observed_generation == 7


@pytest.mark.parametrize("name", ["one", "a-name-that-is-longer-than-a-label-of-a-service-may-be"])
def test_the_selector_matches_only_the_pods_of_api_servers(name: str) -> None:
    mine = control_plane()
    mine.metadata.name = name
    selector = status_of(observed(part("kube-apiserver")), of=mine).selector or ""
    selected = dict(part.split("=") for part in selector.split(","))
    names = Names("default", name)
    assert selected.items() <= names.all_labels("one", "kube-apiserver").items()
    for component in ("etcd", "kube-controller-manager", "kube-scheduler"):
        assert not selected.items() <= names.all_labels("one", component).items()
    assert not selected.items() <= {CLUSTER_NAME_LABEL: "one"}.items()


def test_initialized_stays_true() -> None:
    down = observed(part("kube-apiserver", ready=False, failure="exited with code 1"))
    current = status_of(down, of=control_plane(initialized=True))
    assert current.initialization.control_plane_initialized is True
    assert condition(current, "Available")[:2] == ("False", "NotAvailable")
    assert "exited with code 1" in condition(current, "Available")[2]


@pytest.mark.parametrize(("restore", "initialized"), [(None, True), ("20260131T030000Z", False)])
def test_a_new_control_plane_is_initialized_after_its_restore(
    restore: str | None, initialized: bool
) -> None:
    desired = replace(DESIRED, restore=restore)
    status = running_status(control_plane(), desired, observed(part("kube-apiserver")))
    assert status.initialization.control_plane_initialized is initialized
    before = control_plane(initialized=True)
    status = running_status(before, desired, observed(part("kube-apiserver")))
    assert status.initialization.control_plane_initialized


@pytest.mark.parametrize(
    ("servers", "versions"),
    [
        # The oldest version first. A version that only controllers have ends no upgrade.
        ((NEW,), [(OLD, None), (NEW, 1)]),
        ((NEW, OLD), [(OLD, 1), (NEW, 1)]),
        ((NEW, NEW), [(OLD, None), (NEW, 2)]),
    ],
)
def test_an_upgrade_ends_after_the_controllers_are_upgraded(
    servers: tuple[str, ...], versions: list[tuple[str, int | None]]
) -> None:
    running = [part("kube-apiserver", slot, version) for slot, version in enumerate(servers)]
    current = status_of(
        observed(*running, others=followers(OLD)), of=control_plane(initialized=True)
    )
    assert [(it.version, it.replicas) for it in current.versions] == versions
    assert current.version == OLD
    assert condition(current, "RollingOut")[0] == "True"


def test_the_rollout_condition_reports_an_unavailable_version() -> None:
    observation = Observed(
        statuses=(part("etcd"), part("kube-apiserver", 0, OLD), *followers(OLD)),
        blocked=Blocked("VersionNotAvailable", "spec.version: v1.34.99 is unknown"),
    )
    current = status_of(observation, of=control_plane(initialized=True))
    assert condition(current, "RollingOut") == (
        "True",
        "VersionNotAvailable",
        "spec.version: v1.34.99 is unknown",
    )
    assert condition(current, "Available")[0] == "True"


def test_a_starting_second_api_server_is_scaling_and_not_remediation() -> None:
    observation = observed(part("kube-apiserver"), part("kube-apiserver", 1, ready=False))
    current = status_of(
        observation, desired=replace(DESIRED, replicas=2), of=control_plane(initialized=True)
    )
    assert condition(current, "ScalingUp") == ("True", "ScalingUp", "from 1 to 2 API servers")
    assert condition(current, "Remediating")[0] == "False"


def test_a_dead_api_server_is_remediation_and_not_scaling() -> None:
    failing = part("kube-apiserver", 1, ready=False, failure="was killed by SIGKILL")
    current = status_of(
        observed(part("kube-apiserver"), failing),
        desired=replace(DESIRED, replicas=2),
        of=control_plane(initialized=True),
    )
    message = "kube-apiserver-1 was killed by SIGKILL"
    assert condition(current, "Remediating") == ("True", "Remediating", message)
    assert condition(current, "ScalingUp")[0] == "False"
    again = status_of(
        observed(part("kube-apiserver"), part("kube-apiserver", 1, ready=False)),
        desired=replace(DESIRED, replicas=2),
        of=control_plane(initialized=True, conditions=current.conditions),
    )
    assert condition(again, "Remediating") == (
        "True",
        "Remediating",
        "kube-apiserver-1 is starting",
    )


def test_a_control_plane_without_etcd_quorum_is_unavailable() -> None:
    members = [part("etcd"), part("etcd", 1, ready=False), part("etcd", 2, ready=False)]
    current = status_of(
        observed(part("kube-apiserver"), etcd=members),
        desired=replace(DESIRED, etcd_replicas=3),
        of=control_plane(initialized=True),
    )
    assert condition(current, "EtcdClusterAvailable")[:2] == ("False", "QuorumLost")
    assert condition(current, "Available")[0] == "False"


def test_a_control_plane_with_an_unready_api_server_is_unavailable() -> None:
    silent = part("kube-apiserver", ready=False, unready="it answers 401")
    current = status_of(observed(silent), of=control_plane(initialized=True))
    message = "kube-apiserver-0 is not ready any more (it answers 401)"
    assert condition(current, "Available") == ("False", "NotAvailable", message)
    # The provider restarts nothing.
    assert condition(current, "Remediating")[0] == "False"


def test_members_without_data_are_a_lost_quorum_even_after_a_restart_of_the_provider() -> None:
    members = [part("etcd", slot, ready=False) for slot in range(3)]
    current = status_of(
        replace(
            observed(part("kube-apiserver"), etcd=members), losses=dict.fromkeys((0, 2), Loss.GONE)
        ),
        desired=replace(DESIRED, etcd_replicas=3),
        of=control_plane(initialized=True),
    )
    assert condition(current, "EtcdClusterAvailable")[:2] == ("False", "QuorumLost")


def test_a_control_plane_with_two_of_three_members_is_degraded_and_available() -> None:
    members = [part("etcd"), part("etcd", 1), part("etcd", 2, ready=False)]
    current = status_of(
        observed(part("kube-apiserver"), etcd=members),
        desired=replace(DESIRED, etcd_replicas=3),
    )
    assert condition(current, "EtcdClusterAvailable")[:2] == ("True", "EtcdClusterDegraded")
    assert condition(current, "Available")[0] == "True"


def test_an_unchanged_observation_does_not_change_the_status() -> None:
    observation = observed(part("kube-apiserver"))
    first = status_of(observation)
    later = control_plane()
    later.status = first
    second = running_status(later, replace(DESIRED, now=NOW + timedelta(hours=1)), observation)
    assert second.dump() == first.dump()


def test_a_condition_reports_the_replacement_of_a_lost_etcd_member() -> None:
    lost = part("etcd", 1, ready=False, failure="lost its data, and is being replaced")
    observation = observed(part("kube-apiserver"), etcd=(part("etcd", 0), lost, part("etcd", 2)))
    current = status_of(
        observation, desired=replace(DESIRED, etcd_replicas=3), of=control_plane(initialized=True)
    )
    assert condition(current, "EtcdClusterAvailable") == (
        "True",
        "EtcdClusterDegraded",
        "a quorum is up: etcd-1 lost its data, and is being replaced",
    )
    assert condition(current, "Remediating")[:2] == ("True", "Remediating")
    assert condition(current, "Available")[0] == "True"


@pytest.mark.parametrize(
    ("planned", "desired", "expected"),
    [
        # A learner does not count: one of one member is up.
        ((False, True), 3, ("True", "a quorum is up: members to be started: 1")),
        ((False, False, False), 1, ("True", "a quorum is up: members to be removed: 2")),
    ],
)
def test_a_condition_reports_a_change_of_the_number_of_etcd_members(
    planned: tuple[bool, ...], desired: int, expected: tuple[str, str]
) -> None:
    members = [
        Instance("etcd", index, NEW, ("etcd",), is_learner=is_learner)
        for index, is_learner in enumerate(planned)
    ]
    running = [part("etcd", member.index) for member in members]
    plan = Plan(tuple(members))
    observation = replace(
        observed(part("kube-apiserver"), etcd=running), plan=plan, voters=len(plan.voters)
    )
    current = status_of(
        observation,
        desired=replace(DESIRED, etcd_replicas=desired),
        of=control_plane(initialized=True),
    )
    status, reason, message = condition(current, "EtcdClusterAvailable")
    assert (status, message) == expected
    assert reason == "EtcdClusterDegraded"


def test_a_condition_names_the_api_server_that_keeps_members_from_leaving() -> None:
    running = [part("etcd", index) for index in range(3)]
    observation = replace(
        observed(part("kube-apiserver"), etcd=running),
        stopping=frozenset({"demo-kube-apiserver-x7", "demo-kube-scheduler-y2"}),
    )
    current = status_of(observation, of=control_plane(initialized=True))
    expected = "a quorum is up: members to be removed after the end of demo-kube-apiserver-x7: 2"
    assert condition(current, "EtcdClusterAvailable")[2] == expected


def test_two_ready_members_of_five_lose_the_quorum_while_etcd_shrinks() -> None:
    running = [part("etcd", index, ready=index < 2) for index in range(5)]
    observation = replace(observed(part("kube-apiserver"), etcd=running), voters=5)
    current = status_of(observation, of=control_plane(initialized=True))
    assert condition(current, "EtcdClusterAvailable")[:2] == ("False", "QuorumLost")


def test_a_lost_quorum_names_the_members_without_data() -> None:
    down = [part("etcd", slot, ready=False, failure="lost its data") for slot in (1, 2)]
    observation = observed(part("kube-apiserver"), etcd=(part("etcd", 0), *down))
    current = status_of(
        observation, desired=replace(DESIRED, etcd_replicas=3), of=control_plane(initialized=True)
    )
    assert condition(current, "EtcdClusterAvailable")[:2] == ("False", "QuorumLost")
    assert condition(current, "Available")[:2] == ("False", "NotAvailable")
    assert "etcd-2 lost its data" in condition(current, "Available")[2]


@pytest.mark.parametrize(("version", "up_to_date"), [(NEW, 1), (OLD, 0)])
def test_status_while_programs_are_downloaded(version: str, up_to_date: int) -> None:
    parts = (part("etcd"), part("kube-apiserver", version=version), *followers(version))
    getting = Blocked("GettingPrograms", f"getting the programs of Kubernetes {NEW}")
    observation = Observed(
        statuses=tuple(replace(one, current=None) for one in parts), blocked=getting
    )
    current = status_of(observation, of=control_plane(initialized=True))
    assert (current.replicas, current.ready_replicas) == (1, 1)
    assert current.up_to_date_replicas == up_to_date
    assert condition(current, "RollingOut")[0] == ("False" if up_to_date else "True")


SERVER = part("kube-apiserver")
"""A ready API server."""
FIRST_START = part("kube-apiserver", ready=False)
WAITS_FOR_API = ("False", "WaitingForAPIServer", "it starts after the API server")
HEALTHY = {
    **{
        type_: ("True", type_, "")
        for type_ in (
            "Available",
            "CertificatesAvailable",
            "EtcdClusterAvailable",
            "APIServersAvailable",
            "ControllerManagerAvailable",
            "SchedulerAvailable",
        )
    },
    **{
        type_: ("False", f"Not{type_}", "")
        for type_ in ("RollingOut", "ScalingUp", "ScalingDown", "Remediating")
    },
}
"""The conditions of a control plane that runs as desired."""


@pytest.mark.parametrize(
    ("statuses", "replicas", "different"),
    [
        pytest.param((SERVER, *followers()), 1, {}, id="runs as desired"),
        pytest.param(
            (SERVER, part("kube-apiserver", 1), *followers()),
            1,
            {"ScalingDown": ("True", "ScalingDown", "from 2 to 1 API servers")},
            id="fewer replicas",
        ),
        pytest.param(
            (),
            0,
            {
                "Available": ("False", "NoReplicas", "spec.replicas is 0: no API server runs"),
                "APIServersAvailable": ("False", "Starting", "no API server runs yet"),
                "ControllerManagerAvailable": WAITS_FOR_API,
                "SchedulerAvailable": WAITS_FOR_API,
            },
            id="no replicas",
        ),
        pytest.param(
            (),
            1,
            {
                "Available": ("False", "NotAvailable", "no API server is ready yet"),
                "APIServersAvailable": ("False", "Starting", "no API server runs yet"),
                "ControllerManagerAvailable": WAITS_FOR_API,
                "SchedulerAvailable": WAITS_FOR_API,
                "ScalingUp": ("True", "ScalingUp", "from 0 to 1 API servers"),
            },
            id="no API server",
        ),
        pytest.param(
            (FIRST_START, *followers()),
            1,
            {
                "Available": ("False", "NotAvailable", "kube-apiserver-0 is starting"),
                "APIServersAvailable": ("False", "Starting", "kube-apiserver-0 is starting"),
                "ScalingUp": ("True", "ScalingUp", "from 0 to 1 API servers"),
            },
            id="the API server starts",
        ),
        pytest.param(
            (SERVER, part("kube-apiserver", 1), *followers()),
            3,
            {
                "APIServersAvailable": ("True", "APIServersDegraded", ""),
                "ScalingUp": ("True", "ScalingUp", "from 2 to 3 API servers"),
            },
            id="more replicas",
        ),
        pytest.param(
            (SERVER, part("kube-apiserver", 1, ready=False), *followers()),
            1,
            {
                "APIServersAvailable": (
                    "True",
                    "APIServersDegraded",
                    "kube-apiserver-1 is starting",
                ),
                "ScalingDown": ("True", "ScalingDown", "from 2 to 1 API servers"),
            },
            id="one API server too many starts",
        ),
        pytest.param(
            (SERVER, *followers()[:2], part("relay", ready=False)),
            1,
            {
                "Available": ("False", "NotAvailable", "no API server is ready yet"),
                "APIServersAvailable": ("False", "Starting", "relay-0 is starting"),
            },
            id="the relay starts",
        ),
        pytest.param(
            (SERVER, *followers(), part("kube-controller-manager", 1, ready=False)),
            1,
            {
                "ControllerManagerAvailable": (
                    "False",
                    "Starting",
                    "kube-controller-manager-1 is starting",
                ),
            },
            id="one of two controller managers starts",
        ),
        pytest.param(
            (part("kube-apiserver", 0, OLD), *followers()),
            2,
            {
                "APIServersAvailable": ("True", "APIServersDegraded", ""),
                # The extra replicas of a rollout do not count as scaling.
                "RollingOut": (
                    "True",
                    "RollingOut",
                    "to be replaced one by one: kube-apiserver-0",
                ),
            },
            id="a rollout",
        ),
        pytest.param(
            (
                part("kube-apiserver", 0, OLD),
                part("kube-apiserver", 1, ready=False),
                *followers(),
            ),
            2,
            {
                "APIServersAvailable": (
                    "True",
                    "APIServersDegraded",
                    "kube-apiserver-1 is starting",
                ),
                "RollingOut": (
                    "True",
                    "RollingOut",
                    "to be replaced one by one: kube-apiserver-0; kube-apiserver-1 is starting",
                ),
            },
            id="a rollout with a new API server that starts",
        ),
    ],
)
def test_a_status_has_these_conditions(
    statuses: tuple[InstanceStatus, ...],
    replicas: int,
    different: dict[str, tuple[str, str, str]],
) -> None:
    current = status_of(
        observed(*statuses, others=()),
        desired=replace(DESIRED, replicas=replicas),
        of=control_plane(initialized=True),
    )
    conditions = {it.type: (it.status, it.reason, it.message) for it in current.conditions}
    assert conditions == HEALTHY | different


@pytest.mark.parametrize("servers", [0, 2])
def test_a_blocked_control_plane_does_not_scale(servers: int) -> None:
    running = [part("kube-apiserver", slot) for slot in range(servers)]
    # etcd has versions of its own.
    etcd = part("etcd", version="v3.6.5")
    observation = replace(observed(*running, etcd=[etcd]), blocked=Blocked("Waiting", "wait"))
    current = status_of(observation, of=control_plane(initialized=True))
    for type_ in ("RollingOut", "ScalingUp", "ScalingDown"):
        assert condition(current, type_) == HEALTHY[type_]


def test_a_control_plane_that_never_ran_is_not_initialized() -> None:
    current = status_of(observed(others=()))
    assert condition(current, "Available") == (
        "False",
        "NotInitialized",
        "no API server is ready yet",
    )
