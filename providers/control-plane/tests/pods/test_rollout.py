"""In what order the workloads of a control plane change."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from capelin.api import Unstructured
from capelin.api.core import Pod
from capelin_control_plane.backends.pods.names import DIGEST_ANNOTATION
from capelin_control_plane.backends.pods.objects import DesiredObjects, EtcdState
from capelin_control_plane.backends.pods.rollout import (
    is_complete,
    member_to_replace,
    members_to_restart,
    next_etcd_state,
    workloads_to_apply,
)
from capelin_control_plane.desired import Component
from capelin_control_plane.instances import InstanceStatus

from .pod_objects import objects_of, on_pods

ALL: tuple[Component, ...] = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
DESIRED = on_pods()
NEW = objects_of(DESIRED)
OLD = objects_of(on_pods("v1.33.13"))


def status(component: Component, *, ready: bool = True, current: bool = True) -> InstanceStatus:
    return InstanceStatus(
        name=f"{component}-x", component=component, version="v1.34.4", ready=ready, current=current
    )


def running(objects: DesiredObjects, *components: Component) -> dict[Component, Unstructured]:
    all_ = (objects.etcd, objects.api_server, *objects.controllers)
    return {each.component: each.manifest for each in all_ if each.component in components}


def applied(
    live: DesiredObjects,
    *statuses: InstanceStatus,
    components: tuple[Component, ...] = ALL,
    started: int = 1,
) -> list[Component]:
    live_ = running(live, *components)
    found = workloads_to_apply(DESIRED, NEW, live_, statuses, started_members=started)
    return [workload.component for workload in found]


def test_an_api_server_starts_as_soon_as_etcd_runs() -> None:
    assert applied(NEW, components=(), started=0) == ["etcd"]
    starting = status("etcd", ready=False)
    assert applied(NEW, starting, components=("etcd",)) == ["etcd", "kube-apiserver"]


def test_the_rest_starts_when_an_api_server_is_ready() -> None:
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
def test_controllers_are_upgraded_after_all_api_servers(
    servers: list[InstanceStatus], changed: list[str]
) -> None:
    assert applied(OLD, status("etcd"), *servers) == changed


@pytest.mark.parametrize("etcd", [status("etcd", ready=False), status("etcd", current=False)])
def test_api_servers_are_upgraded_after_etcd(etcd: InstanceStatus) -> None:
    assert "kube-apiserver" not in applied(OLD, etcd, status("kube-apiserver", current=False))


def test_what_stays_the_same_is_mended_at_any_time() -> None:
    assert applied(NEW, status("etcd", ready=False)) == list(ALL)


@pytest.mark.parametrize(
    ("present", "has_etcd", "ready", "expected"),
    [
        (None, False, False, "new"),
        ("new", True, False, "new"),
        ("new", True, True, "existing"),
        ("existing", True, False, "existing"),
        ("existing", False, False, "existing"),
        (None, True, False, "existing"),
    ],
)
def test_a_cluster_of_etcd_is_begun_once(
    present: EtcdState | None, *, has_etcd: bool, ready: bool, expected: str
) -> None:
    members = [status("etcd", ready=ready)] if has_etcd else []
    assert next_etcd_state(DESIRED, present, members, has_etcd=has_etcd) == expected


def test_a_cluster_has_formed_only_with_all_its_members() -> None:
    three = replace(DESIRED, etcd_replicas=3)
    two = [status("etcd"), status("etcd")]
    assert next_etcd_state(three, "new", two, has_etcd=True) == "new"


def test_it_is_complete_with_its_desired_pods_and_no_others() -> None:
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


@pytest.mark.parametrize(
    ("members", "replaced"),
    [
        ([member(0), member(1), member(2)], None),
        ([member(0), member(1), member(2, ready=False)], None),
        ([member(0), member(1), member(2, ready=False, message="flag not defined: -x")], None),
        ([member(0), member(1), member(2, ready=False, message=LOST)], "one-etcd-2"),
        ([member(0, ready=False, message=CORRUPT), member(1), member(2)], "one-etcd-0"),
        # The others have no quorum without it.
        ([member(0), member(1, ready=False), member(2, ready=False, message=LOST)], None),
        # It serves again: the message is that of its last start.
        ([member(0), member(1), member(2, message=LOST)], None),
    ],
)
def test_a_member_without_its_data_is_replaced_while_there_is_a_quorum(
    members: list[Pod], replaced: str | None
) -> None:
    found = member_to_replace(replace(DESIRED, etcd_replicas=3), members)
    assert (found and found[0].name) == replaced
    assert found is None or found[1].name in {"one-etcd-0", "one-etcd-1"}


def test_the_only_member_is_never_replaced() -> None:
    assert member_to_replace(DESIRED, [member(0, ready=False, message=LOST)]) is None


THREE = objects_of(on_pods(etcd_replicas=3))


def etcd_pod(index: int, state: str) -> Pod:
    """A member: `outdated` or not, `down` or ready, `going` or not."""
    digest = "another" if "outdated" in state else THREE.etcd.digest
    pod = member(index, ready="down" not in state)
    pod.metadata.annotations = {DIGEST_ANNOTATION: digest}
    if "going" in state:
        pod.metadata.deletion_timestamp = datetime(2026, 1, 1, tzinfo=UTC)
    return pod


def restarted(*states: str, observed_generation: int = 3) -> list[int]:
    live = {
        **THREE.etcd.manifest,
        "metadata": {**THREE.etcd.manifest["metadata"], "generation": 3},
        "status": {"observedGeneration": observed_generation},
    }
    pods = [etcd_pod(index, state) for index, state in enumerate(states)]
    found = members_to_restart(THREE, {"etcd": live}, pods)
    return [int(pod.name[-1]) for pod in found]


@pytest.mark.parametrize(
    ("states", "indexes"),
    [
        (("", "", ""), []),
        (("outdated", "outdated", "outdated"), [0]),
        (("", "outdated", "outdated"), [1]),
        # One that was restarted is not ready yet.
        (("down", "outdated", "outdated"), []),
        (("outdated going", "outdated", "outdated"), []),
        (("outdated", "outdated"), []),
        # Whichever is down may need just this change, and the others have a quorum without it.
        (("outdated", "outdated", "outdated down"), [2]),
        (("outdated", "", "outdated down"), [2]),
        (("outdated", "outdated down", "down"), []),
        # There is no quorum to lose, and none becomes ready alone.
        (("outdated down", "outdated down", "outdated down"), [0, 1, 2]),
        (("down", "outdated down", "outdated down"), [1, 2]),
    ],
)
def test_members_of_etcd_are_restarted_one_by_one_and_never_beside_one_that_is_down(
    states: tuple[str, ...], indexes: list[int]
) -> None:
    assert restarted(*states) == indexes


def test_no_member_is_restarted_before_its_stateful_set_is_noticed() -> None:
    assert restarted("outdated", "outdated", "outdated", observed_generation=2) == []
    assert members_to_restart(THREE, running(OLD, "etcd"), [etcd_pod(0, "outdated")]) == []
