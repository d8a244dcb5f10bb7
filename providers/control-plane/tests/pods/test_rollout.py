"""The order in which the workloads of a control plane change."""

from datetime import UTC, datetime

import pytest
from capelin.api import Unstructured
from capelin.api.core import Pod
from capelin_control_plane.backends.pods.names import DIGEST_ANNOTATION
from capelin_control_plane.backends.pods.objects import DesiredObjects
from capelin_control_plane.backends.pods.rollout import (
    etcd_members,
    is_complete,
    workloads_to_apply,
)
from capelin_control_plane.desired.control_plane import Component
from capelin_control_plane.desired.instances import InstanceStatus
from capelin_control_plane.etcd.rules import Loss, Member

from ..factories import with_arguments  # noqa: TID252 - a folder without a name
from .pod_objects import objects_of, on_pods

ALL: tuple[Component, ...] = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
DESIRED = on_pods()
NEW = objects_of(DESIRED)
OLD = objects_of(on_pods("v1.33.13"))


def status(
    component: Component, index: int = 0, *, ready: bool = True, current: bool = True
) -> InstanceStatus:
    return InstanceStatus(
        name=f"{component}-{index}",
        component=component,
        version="v1.34.4",
        ready=ready,
        current=current,
    )


def running(objects: DesiredObjects, *components: Component) -> dict[Component, Unstructured]:
    all_ = (objects.etcd, objects.api_server, *objects.controllers)
    return {each.component: each.manifest for each in all_ if each.component in components}


def applied(
    live: DesiredObjects,
    *statuses: InstanceStatus,
    components: tuple[Component, ...] = ALL,
    started: int = 1,
    members: int = 1,
    voters: int = 1,
) -> list[Component]:
    live_ = running(live, *components)
    found = workloads_to_apply(
        DESIRED, NEW, live_, statuses, members=members, voters=voters, started_members=started
    )
    return [workload.component for workload in found]


def test_an_api_server_starts_as_soon_as_etcd_runs() -> None:
    assert applied(NEW, components=(), started=0) == ["etcd"]
    starting = status("etcd", ready=False)
    assert applied(NEW, starting, components=("etcd",)) == ["etcd", "kube-apiserver"]


def test_an_api_server_does_not_start_before_its_data_is_restored() -> None:
    def started(*live: Component) -> list[Component]:
        found = workloads_to_apply(
            DESIRED,
            NEW,
            running(NEW, *live),
            [status("etcd")],
            members=1,
            voters=1,
            started_members=1,
            awaits_data=True,
        )
        return [workload.component for workload in found]

    assert started("etcd") == ["etcd"]
    # One that serves continues until the data is replaced.
    assert "kube-apiserver" in started("etcd", "kube-apiserver")


def test_no_member_restarts_because_their_number_changes() -> None:
    assert THREE.etcd.digest == objects_of(on_pods(etcd_replicas=5)).etcd.digest


def test_api_servers_use_new_members_after_all_of_them_vote() -> None:
    members = [status("etcd", index) for index in range(3)]
    growing = workloads_to_apply(
        on_pods(etcd_replicas=3),
        THREE,
        running(NEW, *ALL),
        members,
        members=3,
        voters=2,
        started_members=3,
    )
    assert "kube-apiserver" not in [workload.component for workload in growing]
    grown = workloads_to_apply(
        on_pods(etcd_replicas=3),
        THREE,
        running(NEW, *ALL),
        members,
        members=3,
        voters=3,
        started_members=3,
    )
    assert "kube-apiserver" in [workload.component for workload in grown]


def test_api_servers_stop_using_members_before_these_leave() -> None:
    members = [status("etcd", index) for index in range(3)]
    etcd, *others = workloads_to_apply(
        DESIRED, NEW, running(THREE, *ALL), members, members=3, voters=3, started_members=3
    )
    assert etcd.manifest["spec"]["replicas"] == 3
    assert "kube-apiserver" in [workload.component for workload in others]


@pytest.mark.parametrize("voters", [3, 2, 1])
def test_api_servers_do_not_wait_for_restarts_while_members_leave(voters: int) -> None:
    # Members restart after the others have left, and leave after API servers use them no more.
    members = [status("etcd", index, current=False) for index in range(3)]
    found = workloads_to_apply(
        DESIRED, NEW, running(OLD, *ALL), members, members=3, voters=voters, started_members=3
    )
    assert "kube-apiserver" in [workload.component for workload in found]


@pytest.mark.parametrize(
    ("size", "broken", "is_allowed"),
    [(1, 2, True), (1, 0, False), (3, 2, True), (3, 0, True)],
    ids=["leaves", "stays alone", "one of three", "another of three"],
)
def test_api_servers_do_not_wait_for_a_broken_member_without_need(
    size: int, broken: int, is_allowed: bool
) -> None:
    members = [status("etcd", index, ready=index != broken) for index in range(3)]
    found = workloads_to_apply(
        on_pods(etcd_replicas=size),
        objects_of(on_pods(etcd_replicas=size)),
        running(OLD, *ALL),
        members,
        members=3,
        voters=3,
        started_members=3,
    )
    assert ("kube-apiserver" in [workload.component for workload in found]) is is_allowed


def test_api_servers_do_not_change_without_a_quorum() -> None:
    members = [status("etcd", 0), status("etcd", 1, ready=False), status("etcd", 2, ready=False)]
    found = workloads_to_apply(
        on_pods(etcd_replicas=3),
        THREE,
        running(OLD, *ALL),
        members,
        members=3,
        voters=3,
        started_members=3,
    )
    assert [workload.component for workload in found] == ["etcd"]


def test_api_servers_wait_for_restarts_of_members_that_stay() -> None:
    found = workloads_to_apply(
        on_pods(etcd_replicas=3),
        THREE,
        running(OLD, *ALL),
        [status("etcd", index, current=False) for index in range(3)],
        members=3,
        voters=3,
        started_members=3,
    )
    assert "kube-apiserver" not in [workload.component for workload in found]


def test_the_other_components_start_when_an_api_server_is_ready() -> None:
    there: tuple[Component, ...] = ("etcd", "kube-apiserver")
    waiting = status("kube-apiserver", ready=False)
    assert applied(NEW, status("etcd"), waiting, components=there) == list(there)
    assert applied(NEW, status("etcd"), status("kube-apiserver"), components=there) == list(ALL)


@pytest.mark.parametrize(
    ("servers", "changed"),
    [
        ([status("kube-apiserver", current=False)], ["etcd", "kube-apiserver"]),
        (
            [status("kube-apiserver"), status("kube-apiserver", current=False)],
            ["etcd", "kube-apiserver"],
        ),
        ([status("kube-apiserver", ready=False)], ["etcd", "kube-apiserver"]),
        ([status("kube-apiserver")], list(ALL)),
    ],
)
def test_controllers_are_upgraded_last(servers: list[InstanceStatus], changed: list[str]) -> None:
    assert applied(OLD, status("etcd"), *servers) == changed


@pytest.mark.parametrize("etcd", [status("etcd", ready=False), status("etcd", current=False)])
def test_api_servers_are_upgraded_after_etcd(etcd: InstanceStatus) -> None:
    assert "kube-apiserver" not in applied(OLD, etcd, status("kube-apiserver", current=False))


def test_unchanged_workloads_are_applied_at_any_time() -> None:
    assert applied(NEW, status("etcd", ready=False)) == list(ALL)


def test_a_control_plane_is_complete_with_exactly_its_desired_pods() -> None:
    pods = [status(component) for component in ALL]
    assert is_complete(DESIRED, NEW, pods)
    assert not is_complete(DESIRED, NEW, [*pods, status("kube-apiserver", current=False)])
    assert not is_complete(DESIRED, NEW, pods[1:])


def member(index: int, *, ready: bool = True, message: str = "") -> Pod:
    ended = {"terminated": {"exitCode": 2, "message": message}} if message else {}
    return Pod.read(
        {
            "metadata": {
                "name": f"one-etcd-{index}",
                "labels": {"app.kubernetes.io/component": "etcd"},
            },
            "status": {
                "conditions": [{"type": "Ready", "status": str(ready)}],
                "containerStatuses": [{"name": "etcd", "lastState": ended}],
            },
        }
    )


LOST = "panic: tocommit(42) is out of range [lastIndex(0)]. Was the raft log corrupted or lost?"
CORRUPT = '{"level":"fatal","msg":"failed to open WAL","error":"wal: crc mismatch"}'


THREE = objects_of(on_pods(etcd_replicas=3))


def etcd_pod(index: int, state: str = "") -> Pod:
    """A member: `outdated` or not, `down` or ready, `going` or not."""
    digest = "another" if "outdated" in state else THREE.etcd.digest
    pod = member(index, ready="down" not in state)
    pod.metadata.annotations = {DIGEST_ANNOTATION: digest}
    if "going" in state:
        pod.metadata.deletion_timestamp = datetime(2026, 1, 1, tzinfo=UTC)
    return pod


def members_of(
    *pods: Pod, objects: DesiredObjects = THREE, observed_generation: int = 3
) -> list[Member]:
    """The members, with a StatefulSet whose controller has observed generation 3 or another."""
    live = {
        **THREE.etcd.manifest,
        "metadata": {**THREE.etcd.manifest["metadata"], "generation": 3},
        "status": {"observedGeneration": observed_generation},
    }
    return etcd_members(objects, {"etcd": live}, pods)


def test_members_of_etcd_are_described_by_their_pods() -> None:
    pods = (etcd_pod(0), etcd_pod(1, "outdated down"), etcd_pod(2, "outdated going"))
    assert members_of(*pods) == [
        Member(index=0, ready=True),
        Member(index=1, ready=False, outdated=True),
    ]


def test_members_on_lost_nodes_are_replaced_although_their_pods_never_end() -> None:
    pods = (etcd_pod(0), etcd_pod(1, "down going"), etcd_pod(2, "down going"))
    live = running(THREE, "etcd")
    assert [found.index for found in etcd_members(THREE, live, pods)] == [0]
    found = etcd_members(THREE, live, pods, displaced={2})
    assert [(each.index, each.loss) for each in found] == [(0, None), (2, Loss.DISPLACED)]


@pytest.mark.parametrize(
    ("pod", "loss"),
    [
        (member(0, ready=False, message=LOST), Loss.UNUSABLE),
        (member(0, ready=False, message=CORRUPT), Loss.UNUSABLE),
        (member(0, ready=False, message="flag not defined: -x"), None),
        (member(0, ready=False), None),
        # It serves again: the message is that of its last start.
        (member(0, message=LOST), None),
    ],
)
def test_termination_message_shows_a_loss(pod: Pod, loss: Loss | None) -> None:
    assert [found.loss for found in members_of(pod)] == [loss]


def test_no_member_is_outdated_before_the_controller_has_observed_the_template() -> None:
    assert members_of(etcd_pod(0, "outdated"))[0].outdated
    assert not members_of(etcd_pod(0, "outdated"), observed_generation=2)[0].outdated
    other = objects_of(with_arguments(on_pods(etcd_replicas=3), "etcd", {"snapshot-count": "1000"}))
    assert not members_of(etcd_pod(0, "outdated"), objects=other)[0].outdated
