"""The restricted Pod Security Standard, compared with the API server that enforces it."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

import pytest
from capelin.api import Unstructured
from capelin.api.core import Namespace, ServiceAccount
from capelin.client import Client, Forbidden
from capelin_control_plane.backends.pods.pod_security import pod_problems

from .pod_objects import objects_of, on_pods

CONTAINER: Final = "spec.containers.0"
APPARMOR: Final = "container.apparmor.security.beta.kubernetes.io/kube-apiserver"

REFUSED: Final[list[tuple[str, Any]]] = [
    ("spec.hostNetwork", True),
    ("spec.hostPID", True),
    ("spec.hostIPC", True),
    ("spec.volumes.0", {"name": "pki", "hostPath": {"path": "/"}}),
    ("spec.volumes.0", {"name": "pki", "nfs": {"server": "192.0.2.1", "path": "/"}}),
    ("spec.volumes.0", {"name": "pki", "gitRepo": {"repository": "https://example.com"}}),
    (
        "spec.volumes.0",
        {"name": "pki", "iscsi": {"targetPortal": "a", "iqn": "iqn.2026-01.a:b"}},
    ),
    ("spec.volumes.0", {"name": "pki", "rbd": {"monitors": ["a"], "image": "a"}}),
    ("spec.volumes.0", {"name": "pki", "cephfs": {"monitors": ["a"]}}),
    ("spec.volumes.0", {"name": "pki", "azureFile": {"secretName": "a", "shareName": "b"}}),
    ("spec.volumes.0", {"name": "pki", "flexVolume": {"driver": "a/b"}}),
    ("spec.volumes.0", {"name": "pki", "fc": {"wwids": ["a"]}}),
    ("spec.securityContext.runAsNonRoot", False),
    ("spec.securityContext.runAsNonRoot", None),
    ("spec.securityContext.runAsUser", 0),
    ("spec.securityContext.seccompProfile", {"type": "Unconfined"}),
    ("spec.securityContext.seccompProfile", None),
    ("spec.securityContext.appArmorProfile", {"type": "Unconfined"}),
    ("spec.securityContext.seLinuxOptions", {"type": "spc_t"}),
    ("spec.securityContext.seLinuxOptions", {"user": "system_u"}),
    ("spec.securityContext.seLinuxOptions", {"role": "system_r"}),
    ("spec.securityContext.sysctls", [{"name": "kernel.msgmax", "value": "65536"}]),
    (f"{CONTAINER}.securityContext", {"privileged": True}),
    (f"{CONTAINER}.securityContext.allowPrivilegeEscalation", None),
    (f"{CONTAINER}.securityContext.allowPrivilegeEscalation", True),
    (f"{CONTAINER}.securityContext.capabilities", None),
    (f"{CONTAINER}.securityContext.capabilities.drop", ["NET_RAW"]),
    (f"{CONTAINER}.securityContext.capabilities.add", ["SYS_ADMIN"]),
    (f"{CONTAINER}.securityContext.capabilities.add", ["CHOWN"]),
    (f"{CONTAINER}.securityContext.runAsNonRoot", False),
    (f"{CONTAINER}.securityContext.runAsUser", 0),
    (f"{CONTAINER}.securityContext.seccompProfile", {"type": "Unconfined"}),
    (f"{CONTAINER}.securityContext.appArmorProfile", {"type": "Unconfined"}),
    (f"{CONTAINER}.securityContext.seLinuxOptions", {"type": "spc_t"}),
    (f"{CONTAINER}.securityContext.seLinuxOptions", {"user": "system_u"}),
    (f"{CONTAINER}.securityContext.seLinuxOptions", {"role": "system_r"}),
    (f"{CONTAINER}.ports", [{"containerPort": 8080, "hostPort": 8080}]),
    (f"{CONTAINER}.livenessProbe.httpGet.host", "192.0.2.1"),
    (f"{CONTAINER}.readinessProbe", {"tcpSocket": {"host": "192.0.2.1", "port": 80}}),
    (
        f"{CONTAINER}.lifecycle",
        {"preStop": {"httpGet": {"host": "192.0.2.1", "port": 80, "path": "/"}}},
    ),
    ("spec.initContainers", [{"name": "more", "image": "example"}]),
]
ALLOWED: Final[list[tuple[str, Any]]] = [
    ("spec.hostNetwork", False),
    ("spec.securityContext.seLinuxOptions", {"type": "container_t", "level": "s0:c1,c2"}),
    ("spec.securityContext.appArmorProfile", {"type": "RuntimeDefault"}),
    ("spec.securityContext.runAsUser", 1000),
    ("spec.securityContext.seccompProfile", {"type": "Localhost", "localhostProfile": "a.json"}),
    (f"{CONTAINER}.securityContext.capabilities.add", ["NET_BIND_SERVICE"]),
    (f"{CONTAINER}.securityContext.runAsNonRoot", None),
    (f"{CONTAINER}.securityContext.privileged", False),
    (f"{CONTAINER}.ports", [{"containerPort": 8080}]),
]


def pod_with(path: str, value: Any) -> Unstructured:
    """The pod of an API server, with one field changed, or removed if the value is None."""
    template = deepcopy(objects_of(on_pods()).api_server.manifest["spec"]["template"])
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] = {**pod["metadata"], "name": "one"}
    *parents, last = path.split(".")
    node: Any = pod
    for part in parents:
        node = node[int(part)] if part.isdecimal() else node.setdefault(part, {})
    if last.isdecimal():
        node[int(last)] = value
    elif value is None:
        node.pop(last, None)
    else:
        node[last] = value
    return pod


def problems_of(pod: Mapping[str, Any]) -> list[str]:
    return list(pod_problems(pod["spec"], pod["metadata"]["annotations"]))


@pytest.fixture
async def restricted(client: Client, namespace: str) -> str:
    """A namespace in which the API server enforces the standard."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await client.patch(Namespace, namespace, None, {"metadata": {"labels": labels}})
    await client.apply(ServiceAccount.of("default", namespace))
    return namespace


async def violations(client: Client, namespace: str, pod: Unstructured) -> str:
    pod["metadata"]["namespace"] = namespace
    try:
        await client.create(pod, dry_run=True)
    except Forbidden as error:
        return str(error)
    return ""


async def test_the_provider_rejects_pods_that_the_api_server_rejects(
    client: Client, restricted: str
) -> None:
    for path, value in REFUSED:
        pod = pod_with(path, value)
        found = await violations(client, restricted, pod)
        assert "violates PodSecurity" in found, f"the API server allows {path}: {value}"
        assert problems_of(pod), f"{path}: {value} is not rejected"


async def test_pods_accepted_by_the_api_server(client: Client, restricted: str) -> None:
    for path, value in ALLOWED:
        pod = pod_with(path, value)
        assert problems_of(pod) == []
        assert not await violations(client, restricted, pod)


@pytest.mark.parametrize(
    ("name", "value"),
    [(APPARMOR, "unconfined"), ("seccomp.security.alpha.kubernetes.io/pod", "unconfined")],
)
def test_an_annotation_cannot_disable_a_profile(name: str, value: str) -> None:
    pod = pod_with("metadata.annotations", {name: value})
    assert name in " ".join(problems_of(pod))


@pytest.mark.parametrize(
    ("mount", "is_allowed"),
    [({"readOnly": True}, True), ({"readOnly": False}, False), ({}, False)],
)
@pytest.mark.parametrize("containers", ["containers", "initContainers"])
def test_folders_of_the_node_are_mounted_read_only(
    mount: Mapping[str, Any], is_allowed: bool, containers: str
) -> None:
    folder = {"name": "kms-plugin-0", "hostPath": {"path": "/run/kms/vault"}}
    generated = {"volumes": [folder]}
    container = {"name": "x", "volumeMounts": [{"name": "kms-plugin-0", **mount}]}
    pod = {"volumes": [folder], containers: [container]}
    found = [problem for problem in pod_problems(pod, generated=generated) if "readOnly" in problem]
    assert (not found) is is_allowed
