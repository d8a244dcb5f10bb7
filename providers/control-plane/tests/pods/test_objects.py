"""The objects of a control plane on pods, which an API server accepts."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.api.core import ServiceAccount
from capelin.client import Client
from capelin.controller import ObjectKey
from capelin_control_plane.backends.pods.membership import EtcdState
from capelin_control_plane.backends.pods.names import Names
from capelin_control_plane.backends.pods.objects import (
    DesiredObjects,
    etcd_state,
    pki_secret,
)
from capelin_control_plane.backends.pods.pod_security import pod_problems
from capelin_control_plane.backends.pods.workloads import termination_seconds
from capelin_control_plane.desired.control_plane import ComponentSettings, InvalidSpecError

from ..factories import with_arguments  # noqa: TID252 - a folder without a name
from .pod_objects import NAMES, objects_of, on_pods, settings


def workloads(objects: DesiredObjects) -> dict[str, Unstructured]:
    all_ = (objects.etcd, objects.api_server, *objects.controllers)
    return {workload.component: workload.manifest for workload in all_}


def container(workload: Unstructured) -> dict[str, Any]:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    return only


def test_pods_are_restricted_and_have_no_token() -> None:
    for component, workload in workloads(objects_of(on_pods())).items():
        pod = workload["spec"]["template"]["spec"]
        assert list(pod_problems(pod)) == [], component
        assert container(workload)["securityContext"]["readOnlyRootFilesystem"]


def test_each_component_mounts_only_the_files_it_names() -> None:
    for component, workload in workloads(objects_of(on_pods())).items():
        (pki,) = (
            volume
            for volume in workload["spec"]["template"]["spec"]["volumes"]
            if volume["name"] == "pki"
        )
        files = {item["path"] for item in pki["secret"]["items"]}
        text = " ".join(container(workload)["args"])
        named = {file for file in files if f"/etc/kubernetes/pki/{file}" in text}
        # Kubeconfigs name the rest.
        assert files - named <= {"scheduler.pem", "controller-manager.pem"}, component
        assert text.count("/etc/kubernetes/pki/") >= len(named)


def test_only_the_controller_manager_mounts_the_ca_key() -> None:
    holders = [
        component
        for component, workload in workloads(objects_of(on_pods())).items()
        if "ca-signing.pem" in str(workload["spec"]["template"]["spec"]["volumes"])
    ]
    assert holders == ["kube-controller-manager"]


def test_an_api_server_leaves_its_service_before_it_stops() -> None:
    workload = objects_of(on_pods(replicas=2)).api_server.manifest
    strategy = workload["spec"]["strategy"]["rollingUpdate"]
    assert strategy == {"maxUnavailable": 0, "maxSurge": 1}
    pod = workload["spec"]["template"]["spec"]
    # 15 s in which it leaves the endpoints, the longest request, and some more.
    assert pod["terminationGracePeriodSeconds"] > 15 + 60


@pytest.mark.parametrize("size", [1, 3, 5])
def test_api_server_uses_only_members_that_stay(size: int) -> None:
    """No other address: a Service leads to each ready member, also to one that leaves."""
    arguments = container(objects_of(on_pods(etcd_replicas=size)).api_server.manifest)["args"]
    (flag,) = (flag for flag in arguments if flag.startswith("--etcd-servers="))
    assert flag.removeprefix("--etcd-servers=").split(",") == [
        f"https://one-etcd-{index}.one-etcd-members.default.svc:2379" for index in range(size)
    ]


def test_kubelets_must_be_able_to_probe_api_servers() -> None:
    desired = with_arguments(on_pods(), "kube-apiserver", {"anonymous-auth": "false"})
    with pytest.raises(InvalidSpecError, match="anonymous-auth"):
        objects_of(desired)


def test_a_longer_shutdown_delay_extends_the_grace_period() -> None:
    assert termination_seconds(["--shutdown-delay-duration=70s"]) == 70 + 75
    assert termination_seconds(["--shutdown-delay-duration=shoal"]) == 75


def test_an_upgrade_does_not_change_etcd() -> None:
    old, new = objects_of(on_pods("v1.33.13")), objects_of(on_pods("v1.34.4"))
    assert old.etcd == new.etcd
    assert old.api_server.digest != new.api_server.digest


def test_the_passing_of_time_changes_nothing() -> None:
    desired = on_pods()
    later = replace(desired, now=datetime(2031, 1, 1, tzinfo=UTC))
    assert objects_of(desired) == objects_of(later)


def test_a_rollout_changes_all_components_except_etcd() -> None:
    desired = on_pods()
    moved = replace(desired, rollout_after=datetime(2026, 1, 1, tzinfo=UTC))
    before, after = objects_of(desired).digests, objects_of(moved).digests
    assert {component for component in before if before[component] == after[component]} == {"etcd"}


def test_limits_of_a_user_bound_the_garbage_collector_too() -> None:
    limited = ComponentSettings(memory_bytes=1000, cpus=0.5)
    desired = on_pods()
    desired = replace(desired, settings={**desired.settings, "kube-scheduler": limited})
    scheduler = container(workloads(objects_of(desired))["kube-scheduler"])
    assert scheduler["resources"]["limits"] == {"memory": "1000", "cpu": "500m"}
    assert {"name": "GOMEMLIMIT", "value": "900"} in scheduler["env"]


@pytest.mark.parametrize(
    "name", ["one", "1-begins-with-a-digit", "x" * 200, "with.dots", "ends-with-" + "a" * 22 + "-"]
)
def test_names_leave_room_for_the_suffixes_of_pods(name: str) -> None:
    names = Names.of(ObjectKey("default", name))
    assert len(f"{names.of_component('kube-controller-manager')}-0123456789") <= 63 + 11
    assert len(names.base) <= 32
    assert names.base[0].isalpha()


@pytest.mark.parametrize(
    ("name", "medium", "type_"),
    [
        ("one", "PersistentVolume", "LoadBalancer"),
        ("1-begins-with-a-digit-and-is-very-long" * 3, "Memory", "NodePort"),
        ("with.dots", "Memory", "ClusterIP"),
    ],
)
async def test_an_api_server_accepts_every_object(
    client: Client, namespace: str, name: str, medium: str, type_: str
) -> None:
    names = Names.of(ObjectKey(namespace, name))
    desired = replace(
        on_pods(replicas=2, etcd_replicas=3),
        pods=settings(
            exposure={"type": type_},
            etcdVolume={"medium": medium, "storageClass": "fast"},
            images={"pullSecrets": ["registry"]},
        ),
    )
    objects = objects_of(desired, names)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await client.request(
        "PATCH",
        f"/api/v1/namespaces/{namespace}",
        body={"metadata": {"labels": labels}},
        content_type="application/merge-patch+json",
    )
    for manifest in (
        *objects.supporting,
        *workloads(objects).values(),
        etcd_state(desired, names, EtcdState("new", (0,), 1)),
        pki_secret(desired, names, {"ca-ca.crt": b"none"}, owner={"metadata": {"uid": "x"}}),
    ):
        await client.apply(manifest, dry_run=True)
    await client.apply(ServiceAccount.of("default", namespace))
    for component, workload in workloads(objects).items():
        template = workload["spec"]["template"]
        template["metadata"] |= {"name": component, "namespace": namespace}
        if medium == "PersistentVolume":
            template["spec"]["volumes"].append({"name": "data", "emptyDir": {}})
        # Not only a warning, as for what makes pods.
        await client.create({"apiVersion": "v1", "kind": "Pod", **template}, dry_run=True)


def test_objects_of_two_control_planes_have_different_names() -> None:
    other = Names.of(ObjectKey("default", "two"))
    names = {
        (manifest["kind"], manifest["metadata"]["name"])
        for manifest in objects_of(on_pods()).supporting
    }
    assert names.isdisjoint(
        (manifest["kind"], manifest["metadata"]["name"])
        for manifest in objects_of(on_pods(), other).supporting
    )
    assert NAMES.pki != other.pki


def test_pods_can_be_required_to_spread() -> None:
    def constraints(**placement: str) -> list[dict[str, object]]:
        desired = replace(on_pods(), pods=settings(placement=placement))
        template = objects_of(desired).etcd.manifest["spec"]["template"]
        return template["spec"]["topologySpreadConstraints"]

    zone, host = constraints()
    assert [zone["whenUnsatisfiable"], host["whenUnsatisfiable"]] == ["ScheduleAnyway"] * 2
    # Another template would restart the members of existing control planes.
    assert "nodeTaintsPolicy" not in zone.keys() | host.keys()
    zone, host = constraints(nodes="Required")
    assert zone["whenUnsatisfiable"] == "ScheduleAnyway"
    assert (host["whenUnsatisfiable"], host["nodeTaintsPolicy"]) == ("DoNotSchedule", "Honor")


def test_the_time_on_a_lost_node_changes_no_pod() -> None:
    waiting = replace(on_pods(), pods=settings(placement={"replaceMembersAfterSeconds": 600}))
    assert objects_of(waiting) == objects_of(on_pods())
