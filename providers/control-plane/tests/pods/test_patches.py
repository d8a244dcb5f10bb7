"""What patches of generated objects do, and what they may not do."""

from dataclasses import replace
from typing import Any

import pytest
from capelin_control_plane.desired import InvalidSpecError

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
                "priorityClassName": "system-cluster-critical",
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
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert container["image"].endswith("kube-apiserver:v1.34.4")
    assert [mount["name"] for mount in container["volumeMounts"]] == ["pki", "audit"]
    assert [volume["name"] for volume in pod["volumes"]] == ["pki", "audit"]


def test_a_merge_patch_removes_what_is_null_and_items_that_it_deletes() -> None:
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


def test_a_patch_changes_the_digest_of_what_it_is_for_and_nothing_else() -> None:
    desired = on_pods()
    patch = of_pod({"priorityClassName": "high"})
    before = objects_of(desired).digests
    after = objects_of(replace(desired, pods=settings(patches=[patch]))).digests
    assert [component for component in before if before[component] != after[component]] == [
        "kube-apiserver"
    ]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
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
    ],
)
def test_a_patch_cannot_take_an_object_away(merge: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpecError, match="cannot be patched"):
        pod_after({"target": SERVERS, "merge": merge})


@pytest.mark.parametrize(
    "path", ["/spec/nothing/here", "/spec/strategy/x", "spec", "/spec/template/spec/containers/9"]
)
def test_a_json_patch_that_does_not_fit_is_refused_with_its_number(path: str) -> None:
    fits = of_pod({"priorityClassName": "high"})
    with pytest.raises(InvalidSpecError, match=r"spec.pods.patches\[1\]"):
        pod_after(fits, {"target": SERVERS, "json": [{"op": "remove", "path": path}]})
