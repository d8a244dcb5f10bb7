"""Patches of generated objects, and their limits."""

from dataclasses import replace
from typing import Any

import pytest
from capelin_control_plane.desired.control_plane import InvalidSpecError

from .pod_objects import objects_of, on_pods, settings

SERVERS = {"kind": "Deployment", "component": "kube-apiserver"}


def pod_after(*patches: dict[str, Any]) -> dict[str, Any]:
    desired = replace(on_pods(), pods=settings(patches=list(patches)))
    return objects_of(desired).api_server.manifest["spec"]["template"]["spec"]


def of_pod(spec: dict[str, Any]) -> dict[str, Any]:
    return {"target": SERVERS, "merge": {"spec": {"template": {"spec": spec}}}}


def test_a_merge_patch_merges_containers_and_volumes_by_name() -> None:
    pod = pod_after(
        of_pod(
            {
                "priorityClassName": "control-planes",
                "containers": [
                    {
                        "name": "kube-apiserver",
                        "volumeMounts": [{"name": "audit", "mountPath": "/audit"}],
                    }
                ],
                "volumes": [{"name": "audit", "emptyDir": {}}],
            }
        )
    )
    (container,) = pod["containers"]
    assert pod["priorityClassName"] == "control-planes"
    assert container["image"].endswith("kube-apiserver:v1.34.4")
    assert [mount["name"] for mount in container["volumeMounts"]] == ["pki", "audit"]
    assert [volume["name"] for volume in pod["volumes"]] == ["pki", "audit"]


def test_a_merge_patch_removes_null_fields_and_deleted_items() -> None:
    pod = pod_after(
        of_pod(
            {
                "enableServiceLinks": None,
                "topologySpreadConstraints": [
                    {"topologyKey": "kubernetes.io/hostname", "$patch": "delete"}
                ],
            }
        )
    )
    assert "enableServiceLinks" not in pod
    assert len(pod["topologySpreadConstraints"]) == 1


def test_a_json_patch_changes_one_place() -> None:
    path = "/spec/template/spec/containers/0/resources/requests/memory"
    operation = {"op": "replace", "path": path, "value": "1Gi"}
    pod = pod_after({"target": SERVERS, "json": [operation]})
    assert pod["containers"][0]["resources"]["requests"]["memory"] == "1Gi"


def test_a_patch_changes_only_the_digest_of_its_target() -> None:
    desired = on_pods()
    patch = of_pod({"priorityClassName": "high"})
    before = objects_of(desired).digests
    after = objects_of(replace(desired, pods=settings(patches=[patch]))).digests
    assert [component for component in before if before[component] != after[component]] == [
        "kube-apiserver"
    ]


def of_container(fields: dict[str, Any]) -> dict[str, Any]:
    return {"containers": [{"name": "kube-apiserver", **fields}]}


def with_context(context: dict[str, Any]) -> dict[str, Any]:
    return of_container({"securityContext": context})


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"serviceAccount": "robot"}, "serviceAccount"),
        ({"priorityClassName": "system-node-critical"}, "priorityClassName"),
        ({"nodeName": "node-1"}, "nodeName"),
        ({"hostUsers": True}, "hostUsers"),
        ({"hostPID": True}, "hostPID"),
        ({"hostIPC": True}, "hostIPC"),
        ({"restartPolicy": "Never"}, "restartPolicy"),
        ({"shareProcessNamespace": True}, "shareProcessNamespace"),
        ({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}, "sysctls"),
        ({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "seLinuxOptions"),
        ({"securityContext": {"seLinuxOptions": {"user": "system_u"}}}, "seLinuxOptions"),
        ({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}, "appArmorProfile"),
        ({"securityContext": {"windowsOptions": {"hostProcess": True}}}, "windowsOptions"),
        (with_context({"seLinuxOptions": {"role": "system_r"}}), "seLinuxOptions"),
        (with_context({"appArmorProfile": {"type": "Unconfined"}}), "appArmorProfile"),
        (with_context({"windowsOptions": {"hostProcess": True}}), "windowsOptions"),
        (with_context({"runAsUser": 0}), "root"),
        (with_context({"runAsNonRoot": False}), "root"),
        (with_context({"procMount": "Unmasked"}), "procMount"),
        (with_context({"capabilities": {"drop": ["NET_RAW"]}}), "capabilities"),
        (with_context({"seccompProfile": {"type": "Unconfined"}}), "seccomp"),
        (of_container({"ports": [{"containerPort": 1, "hostPort": 1}]}), "hostPort"),
        (of_container({"ports": [{"containerPort": 1, "hostIP": "127.0.0.1"}]}), "hostIP"),
        (
            of_container({"livenessProbe": {"httpGet": {"host": "169.254.169.254"}}}),
            "probe",
        ),
        (of_container({"readinessProbe": {"tcpSocket": {"host": "10.0.0.1", "port": 1}}}), "probe"),
        (of_container({"startupProbe": {"httpGet": {"host": "10.0.0.1"}}}), "probe"),
        (
            of_container({"lifecycle": {"preStop": {"httpGet": {"host": "10.0.0.1"}}}}),
            "hook",
        ),
        (of_container({"stdin": True}), "stdin"),
        (of_container({"volumeDevices": [{"name": "data", "devicePath": "/dev/x"}]}), "Devices"),
        (
            {
                "volumes": [
                    {"name": "x", "projected": {"sources": [{"podCertificate": {"keyType": "x"}}]}}
                ]
            },
            "podCertificate",
        ),
        ({"volumes": [{"name": "x", "nfs": {"server": "x", "path": "/"}}]}, "nfs"),
        ({"containers": [{"name": "kube-apiserver", "$patch": "delete"}]}, "cannot be patched"),
        ({"containers": ["kube-apiserver"]}, "has no name"),
        ({"hostNetwork": True}, "hostNetwork"),
        ({"automountServiceAccountToken": True}, "automountServiceAccountToken"),
        ({"serviceAccountName": "admin"}, "serviceAccountName"),
        ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, "hostPath"),
        (
            {
                "volumes": [
                    {
                        "name": "x",
                        "projected": {"sources": [{"serviceAccountToken": {"path": "x"}}]},
                    }
                ]
            },
            "token",
        ),
        ({"securityContext": {"runAsUser": 0}}, "root"),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "seccomp"),
        ({"containers": [{"name": "more", "image": "x"}]}, "container more"),
        (
            {
                "containers": [
                    {"name": "kube-apiserver", "securityContext": {"privileged": True}},
                ]
            },
            "privileged",
        ),
        (
            {
                "containers": [
                    {
                        "name": "kube-apiserver",
                        "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}},
                    },
                ]
            },
            "NET_BIND_SERVICE",
        ),
    ],
)
def test_a_patch_cannot_leave_the_restricted_standard(spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidSpecError, match=problem) as refused:
        pod_after(of_pod(spec))
    assert "spec.pods.patches[0]" in str(refused.value)


@pytest.mark.parametrize(
    "merge",
    [
        {"metadata": {"name": "other"}},
        {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}},
        {"spec": {"selector": {"matchLabels": {"a": "b"}}}},
        {"spec": {"template": {"metadata": {"labels": {"app.kubernetes.io/component": "x"}}}}},
        {"metadata": {"finalizers": ["example.com/stay"]}},
        {
            "metadata": {
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}]
            }
        },
        {"metadata": {"annotations": None}},
        {"metadata": {"labels": "none"}},
        {"spec": {"replicas": 5000}},
        {"spec": {"paused": True}},
        {"spec": {"template": {"metadata": {"finalizers": ["example.com/stay"]}}}},
        {"status": {"replicas": 3}},
    ],
)
def test_a_patch_cannot_set_protected_fields(merge: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpecError, match="cannot be patched"):
        pod_after({"target": SERVERS, "merge": merge})


@pytest.mark.parametrize(
    "path", ["/spec/nothing/here", "/spec/strategy/x", "spec", "/spec/template/spec/containers/9"]
)
def test_a_json_patch_that_does_not_fit_is_rejected_with_its_number(path: str) -> None:
    fits = of_pod({"priorityClassName": "high"})
    with pytest.raises(InvalidSpecError, match=r"spec.pods.patches\[1\]"):
        pod_after(fits, {"target": SERVERS, "json": [{"op": "remove", "path": path}]})


def supporting_after(kind: str, merge: dict[str, Any], component: str = "kube-apiserver") -> Any:
    patch = {"target": {"kind": kind, "component": component}, "merge": merge}
    objects = objects_of(replace(on_pods(), pods=settings(patches=[patch])))
    (manifest,) = (
        manifest
        for manifest in objects.supporting
        if manifest["kind"] == kind and manifest["metadata"]["name"].endswith(f"-{component}")
    )
    return manifest


ANY_PORT = {"from": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Service", {"externalIPs": ["192.0.2.8"]}),
        ("Service", {"type": "ExternalName", "externalName": "example.com"}),
        ("Service", {"selector": {"app": "neighbour"}}),
        ("Service", {"ports": [{"port": 6443, "targetPort": 22}]}),
        ("Service", {"clusterIP": "10.0.0.1"}),
        ("NetworkPolicy", {"podSelector": None}),
        ("NetworkPolicy", {"podSelector": {"matchLabels": {"app": "neighbour"}}}),
        ("NetworkPolicy", {"policyTypes": ["Egress"]}),
        ("NetworkPolicy", {"egress": [ANY_PORT]}),
        ("NetworkPolicy", {"ingress": [ANY_PORT]}),
        ("PodDisruptionBudget", {"maxUnavailable": 0}),
        ("PodDisruptionBudget", {"selector": {"matchLabels": {"app": "neighbour"}}}),
    ],
)
def test_a_patch_cannot_reach_other_pods_and_addresses(kind: str, spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpecError, match=r"spec.pods.patches\[0\]: spec"):
        supporting_after(kind, {"spec": spec})


@pytest.mark.parametrize("kind", ["Service", "NetworkPolicy", "PodDisruptionBudget"])
@pytest.mark.parametrize("field", ["finalizers", "ownerReferences"])
def test_a_patch_cannot_set_finalizers_or_owners(kind: str, field: str) -> None:
    with pytest.raises(InvalidSpecError, match=f"metadata.{field} cannot be patched"):
        supporting_after(kind, {"metadata": {field: [{}]}})


def test_a_patch_can_set_how_a_service_is_exposed() -> None:
    spec = {"externalTrafficPolicy": "Local", "loadBalancerSourceRanges": ["192.0.2.0/24"]}
    service = supporting_after("Service", {"spec": spec, "metadata": {"labels": {"a.b/c": "d"}}})
    assert service["spec"].items() >= spec.items()
    assert service["metadata"]["labels"]["a.b/c"] == "d"


def test_a_patch_can_add_ingress_to_a_network_policy() -> None:
    operation = {"op": "add", "path": "/spec/ingress/-", "value": ANY_PORT}
    patch = {
        "target": {"kind": "NetworkPolicy", "component": "etcd"},
        "json": [operation],
    }
    before = objects_of(on_pods()).supporting
    after = objects_of(replace(on_pods(), pods=settings(patches=[patch]))).supporting
    ((old, new),) = ((a, b) for a, b in zip(before, after, strict=True) if a != b)
    assert new["spec"]["ingress"] == [*old["spec"]["ingress"], ANY_PORT]


def test_a_patch_can_add_a_container_within_the_standard() -> None:
    context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    more = {"name": "shipper", "image": "registry.example/shipper", "securityContext": context}
    pod = pod_after(of_pod({"containers": [more], "tolerations": [{"key": "control-planes"}]}))
    assert pod["containers"][1] == more
