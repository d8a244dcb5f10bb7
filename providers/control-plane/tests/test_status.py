"""What is said of a control plane."""

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
from capelin_control_plane.desired import Component, ControlPlane
from capelin_control_plane.etcd import Loss
from capelin_control_plane.instances import InstanceStatus, Observed
from capelin_control_plane.status import running_status

from .factories import desired_control_plane

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD, NEW = "v1.33.13", "v1.34.4"
WANTED = replace(desired_control_plane(NEW), now=NOW)


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


def said(
    seen: Observed, *, want: ControlPlane | None = None, of: CapelinControlPlane | None = None
) -> Status:
    return running_status(of or control_plane(), want or WANTED, seen)


def condition(current: Status, type_: str) -> tuple[str, str, str]:
    found = next(one for one in current.conditions if one.type == type_)
    return found.status, found.reason, found.message


def test_a_control_plane_that_runs_is_available_and_has_no_machines() -> None:
    current = said(observed(part("kube-apiserver")))
    assert condition(current, "Available") == ("True", "Available", "")
    assert current.external_managed_control_plane is True
    assert current.initialization.control_plane_initialized is True
    assert (current.replicas, current.ready_replicas, current.up_to_date_replicas) == (1, 1, 1)
    assert current.observed_generation == 7


@pytest.mark.parametrize("name", ["one", "a-name-that-is-longer-than-a-label-of-a-service-may-be"])
def test_the_selector_matches_the_pods_of_api_servers_and_no_others(name: str) -> None:
    mine = control_plane()
    mine.metadata.name = name
    selector = said(observed(part("kube-apiserver")), of=mine).selector or ""
    selected = dict(part.split("=") for part in selector.split(","))
    names = Names("default", name)
    assert selected.items() <= names.all_labels("one", "kube-apiserver").items()
    for component in ("etcd", "kube-controller-manager", "kube-scheduler"):
        assert not selected.items() <= names.all_labels("one", component).items()
    assert not selected.items() <= {CLUSTER_NAME_LABEL: "one"}.items()


def test_initialized_is_never_taken_back() -> None:
    down = observed(part("kube-apiserver", ready=False, failure="exited with code 1"))
    current = said(down, of=control_plane(initialized=True))
    assert current.initialization.control_plane_initialized is True
    assert condition(current, "Available")[:2] == ("False", "NotAvailable")
    assert "exited with code 1" in condition(current, "Available")[2]


def test_versions_are_listed_oldest_first_with_their_replicas() -> None:
    seen = observed(
        part("kube-apiserver", 1), part("kube-apiserver", 0, OLD), others=followers(OLD)
    )
    current = said(seen, want=replace(WANTED, replicas=2), of=control_plane(initialized=True))
    assert [(one.version, one.replicas) for one in current.versions] == [(OLD, 1), (NEW, 1)]
    assert current.version == OLD


def test_an_upgrade_is_not_over_before_the_controllers_are_upgraded() -> None:
    seen = observed(part("kube-apiserver"), others=followers(OLD))
    current = said(seen, of=control_plane(initialized=True))
    assert [(one.version, one.replicas) for one in current.versions] == [(OLD, None), (NEW, 1)]
    assert condition(current, "RollingOut")[0] == "True"


def test_a_new_version_that_cannot_be_had_is_said_where_people_look() -> None:
    seen = Observed(
        statuses=(part("etcd"), part("kube-apiserver", 0, OLD), *followers(OLD)),
        blocked=Blocked("VersionNotAvailable", "spec.version: v1.34.99 is unknown"),
    )
    current = said(seen, of=control_plane(initialized=True))
    assert condition(current, "RollingOut") == (
        "True",
        "VersionNotAvailable",
        "spec.version: v1.34.99 is unknown",
    )
    assert condition(current, "Available")[0] == "True"


def test_a_second_api_server_that_starts_is_scaling_and_not_remediation() -> None:
    seen = observed(part("kube-apiserver"), part("kube-apiserver", 1, ready=False))
    current = said(seen, want=replace(WANTED, replicas=2), of=control_plane(initialized=True))
    assert condition(current, "ScalingUp") == ("True", "ScalingUp", "from 1 to 2 API servers")
    assert condition(current, "Remediating")[0] == "False"


def test_an_api_server_that_died_is_remediated_and_not_scaled() -> None:
    failing = part("kube-apiserver", 1, ready=False, failure="was killed by SIGKILL")
    current = said(
        observed(part("kube-apiserver"), failing),
        want=replace(WANTED, replicas=2),
        of=control_plane(initialized=True),
    )
    message = "kube-apiserver-1 was killed by SIGKILL"
    assert condition(current, "Remediating") == ("True", "Remediating", message)
    assert condition(current, "ScalingUp")[0] == "False"
    again = said(
        observed(part("kube-apiserver"), part("kube-apiserver", 1, ready=False)),
        want=replace(WANTED, replicas=2),
        of=control_plane(initialized=True, conditions=current.conditions),
    )
    assert condition(again, "Remediating") == (
        "True",
        "Remediating",
        "kube-apiserver-1 is starting",
    )


def test_etcd_without_a_quorum_makes_it_unavailable() -> None:
    members = [part("etcd"), part("etcd", 1, ready=False), part("etcd", 2, ready=False)]
    current = said(
        observed(part("kube-apiserver"), etcd=members),
        want=replace(WANTED, etcd_replicas=3),
        of=control_plane(initialized=True),
    )
    assert condition(current, "EtcdClusterAvailable")[:2] == ("False", "QuorumLost")
    assert condition(current, "Available")[0] == "False"


def test_an_api_server_that_lives_and_serves_nobody_makes_it_unavailable() -> None:
    silent = part("kube-apiserver", ready=False, unready="it answers 401")
    current = said(observed(silent), of=control_plane(initialized=True))
    message = "kube-apiserver-0 is not ready any more (it answers 401)"
    assert condition(current, "Available") == ("False", "NotAvailable", message)
    # Nothing is restarted for that.
    assert condition(current, "Remediating")[0] == "False"


def test_members_without_data_are_a_lost_quorum_also_after_a_restart_of_the_provider() -> None:
    members = [part("etcd", slot, ready=False) for slot in range(3)]
    current = said(
        replace(
            observed(part("kube-apiserver"), etcd=members), losses=dict.fromkeys((0, 2), Loss.GONE)
        ),
        want=replace(WANTED, etcd_replicas=3),
        of=control_plane(initialized=True),
    )
    assert condition(current, "EtcdClusterAvailable")[:2] == ("False", "QuorumLost")


def test_one_lost_member_of_three_is_told_and_survived() -> None:
    members = [part("etcd"), part("etcd", 1), part("etcd", 2, ready=False)]
    current = said(
        observed(part("kube-apiserver"), etcd=members),
        want=replace(WANTED, etcd_replicas=3),
    )
    assert condition(current, "EtcdClusterAvailable")[:2] == ("True", "EtcdClusterDegraded")
    assert condition(current, "Available")[0] == "True"


def test_the_same_again_changes_nothing() -> None:
    seen = observed(part("kube-apiserver"))
    first = said(seen)
    later = control_plane()
    later.status = first
    second = running_status(later, replace(WANTED, now=NOW + timedelta(hours=1)), seen)
    assert second.dump() == first.dump()


def test_a_lost_etcd_member_is_told_of_while_it_is_replaced() -> None:
    lost = part("etcd", 1, ready=False, failure="lost its data, and is being replaced")
    seen = observed(part("kube-apiserver"), etcd=(part("etcd", 0), lost, part("etcd", 2)))
    current = said(seen, want=replace(WANTED, etcd_replicas=3), of=control_plane(initialized=True))
    assert condition(current, "EtcdClusterAvailable") == (
        "True",
        "EtcdClusterDegraded",
        "a quorum is up: etcd-1 lost its data, and is being replaced",
    )
    assert condition(current, "Remediating")[:2] == ("True", "Remediating")
    assert condition(current, "Available")[0] == "True"


def test_an_etcd_member_that_is_not_there_is_told_of() -> None:
    seen = observed(part("kube-apiserver"), etcd=(part("etcd", 0), part("etcd", 2)))
    current = said(seen, want=replace(WANTED, etcd_replicas=3), of=control_plane(initialized=True))
    assert condition(current, "EtcdClusterAvailable") == (
        "True",
        "EtcdClusterDegraded",
        "a quorum is up: members to be started: 1",
    )


def test_without_a_quorum_of_etcd_nothing_is_available() -> None:
    down = [part("etcd", slot, ready=False, failure="lost its data") for slot in (1, 2)]
    seen = observed(part("kube-apiserver"), etcd=(part("etcd", 0), *down))
    current = said(seen, want=replace(WANTED, etcd_replicas=3), of=control_plane(initialized=True))
    assert condition(current, "EtcdClusterAvailable")[:2] == ("False", "QuorumLost")
    assert condition(current, "Available")[:2] == ("False", "NotAvailable")
    assert "etcd-2 lost its data" in condition(current, "Available")[2]


@pytest.mark.parametrize(("version", "up_to_date"), [(NEW, 1), (OLD, 0)])
def test_status_while_programs_are_downloaded(version: str, up_to_date: int) -> None:
    parts = (part("etcd"), part("kube-apiserver", version=version), *followers(version))
    getting = Blocked("GettingPrograms", f"getting the programs of Kubernetes {NEW}")
    seen = Observed(statuses=tuple(replace(one, current=None) for one in parts), blocked=getting)
    current = said(seen, of=control_plane(initialized=True))
    assert (current.replicas, current.ready_replicas) == (1, 1)
    assert current.up_to_date_replicas == up_to_date
    assert condition(current, "RollingOut")[0] == ("False" if up_to_date else "True")
