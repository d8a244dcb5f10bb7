"""A real API server validates the names of flags and variables, and other rules of the kinds."""

from typing import Any

import pytest
from capelin.api import Resource
from capelin.client import Client, Invalid
from capelin_control_plane.api import CapelinControlPlane, CapelinControlPlaneTemplate

pytestmark = pytest.mark.usefixtures("provider_crds")


async def create(client: Client, namespace: str, making: dict[str, Any]) -> dict[str, Any]:
    spec = {"version": "v1.34.4", **making}
    return await create_any(client, namespace, CapelinControlPlane.resource, spec)


async def create_any(
    client: Client, namespace: str, resource: Resource, spec: dict[str, Any]
) -> dict[str, Any]:
    manifest = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": "one", "namespace": namespace},
        "spec": spec,
    }
    return await client.create(manifest, resource=resource)


async def test_the_api_server_accepts_valid_names_of_flags_and_variables(
    client: Client, namespace: str
) -> None:
    making = {
        "apiServer": {
            "extraArgs": {"audit-log-path": "-", "v": "4", "2fa": ""},
            "extraEnv": {"_A1": "1", "GOGC": "50", "https_proxy": "http://proxy:3128"},
        }
    }
    made = await create(client, namespace, making)
    assert made["spec"]["apiServer"].items() >= making["apiServer"].items()


@pytest.mark.parametrize(
    ("field", "name", "message"),
    [
        # Kubernetes reads it as secure-port, which Capelin sets.
        ("extraArgs", "secure_port", "the name of an argument"),
        ("extraArgs", "--v", "the name of an argument"),
        ("extraArgs", "v=4", "the name of an argument"),
        ("extraArgs", "V", "the name of an argument"),
        ("extraArgs", "v\n", "the name of an argument"),
        ("extraArgs", "", "the name of an argument"),
        ("extraEnv", "A=B", "the name of an environment variable"),
        ("extraEnv", "A\0", "the name of an environment variable"),
        ("extraEnv", "A\n", "the name of an environment variable"),
        ("extraEnv", "1A", "the name of an environment variable"),
        ("extraEnv", "", "the name of an environment variable"),
    ],
)
async def test_the_api_server_rejects_ambiguous_or_invalid_names(
    client: Client, namespace: str, field: str, name: str, message: str
) -> None:
    with pytest.raises(Invalid, match=message) as refused:
        await create(client, namespace, {"apiServer": {field: {name: "1"}}})
    assert f"spec.apiServer.{field}" in str(refused.value)


@pytest.mark.parametrize("component", ["apiServer", "controllerManager", "scheduler", "etcd"])
@pytest.mark.parametrize(("field", "name"), [("extraArgs", "secure_port"), ("extraEnv", "A=B")])
async def test_the_api_server_rejects_invalid_names_for_each_component_and_in_templates(
    client: Client, namespace: str, component: str, field: str, name: str
) -> None:
    making = {component: {field: {name: "1"}}}
    with pytest.raises(Invalid, match="the name of an"):
        await create(client, namespace, making)
    template = CapelinControlPlaneTemplate.resource
    with pytest.raises(Invalid, match="the name of an"):
        await create_any(client, namespace, template, {"template": {"spec": making}})


async def test_the_api_server_accepts_machine_settings_of_a_topology(
    client: Client, namespace: str
) -> None:
    resource = CapelinControlPlane.resource
    spec: dict[str, Any] = {
        "version": "v1.34.4",
        "machineTemplate": {
            "spec": {
                "deletion": {"nodeDrainTimeoutSeconds": 10},
                "readinessGates": [{"conditionType": "shoal.example/Ready"}],
                "taints": [
                    {"key": "shoal", "effect": "NoSchedule", "propagation": "OnInitialization"}
                ],
            }
        },
    }
    manifest: dict[str, Any] = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": "one", "namespace": namespace},
        "spec": spec,
    }
    # Like Cluster API's topology controller: a field that the CRD lacks would be an error.
    applied = await client.apply(manifest, resource=resource)
    assert applied["spec"]["machineTemplate"] == spec["machineTemplate"]


PODS = {"exposure": {"type": "NodePort"}}


@pytest.mark.parametrize("making", [{}, {"pods": PODS}, {"backend": "Pods", "pods": PODS}])
async def test_the_provider_may_choose_the_backend(
    client: Client, namespace: str, making: dict[str, Any]
) -> None:
    made = await create(client, namespace, making)
    assert made["spec"].get("backend") == making.get("backend")


async def test_settings_of_pods_need_the_backend_of_pods(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid, match="write backend: Pods"):
        await create(client, namespace, {"backend": "Processes", "pods": PODS})


@pytest.mark.parametrize("backend", ["Pods", None])
async def test_backend_is_immutable(client: Client, namespace: str, backend: str | None) -> None:
    await create(client, namespace, {})
    kind = CapelinControlPlane.resource
    await client.patch(kind, "one", namespace, {"spec": {"backend": "Processes"}})
    with pytest.raises(Invalid, match="cannot move from one backend to another"):
        await client.patch(kind, "one", namespace, {"spec": {"backend": backend}})


@pytest.mark.parametrize("backend", ["Processes", "Pods"])
async def test_number_of_etcd_members_is_mutable(
    client: Client, namespace: str, backend: str
) -> None:
    await create(client, namespace, {"backend": backend})
    kind = CapelinControlPlane.resource
    for size in (3, 5, 1):
        resized = {"spec": {"etcd": {"replicas": size}}}
        written = await client.patch(kind, "one", namespace, resized)
        assert written["spec"]["etcd"]["replicas"] == size
    with pytest.raises(Invalid, match="Unsupported value"):
        await client.patch(kind, "one", namespace, {"spec": {"etcd": {"replicas": 2}}})


_S3 = {
    "endpoint": "https://s3.example.com",
    "bucket": "backups",
    "credentials": {"name": "credentials"},
}


@pytest.mark.parametrize("backend", ["Processes", "Pods"])
@pytest.mark.parametrize(
    ("destination", "message"),
    [
        ({"s3": {**_S3, "prefix": "a/b.c"}}, None),
        ({"folder": "etcd"}, None),
        ({}, "write either folder or s3"),
        ({"folder": "etcd", "s3": _S3}, "write either folder or s3"),
        ({"s3": {**_S3, "endpoint": "https://a@b"}}, "endpoint"),
        ({"s3": {**_S3, "endpoint": "https://a/b"}}, "endpoint"),
        ({"s3": {**_S3, "bucket": "a..b"}}, "bucket"),
        ({"s3": {**_S3, "prefix": "a/../b"}}, "prefix"),
        ({"s3": {**_S3, "prefix": "a/"}}, "prefix"),
    ],
)
async def test_the_api_server_accepts_one_valid_destination_of_backups(
    client: Client, namespace: str, backend: str, destination: dict[str, Any], message: str | None
) -> None:
    backup = {"destination": destination, "encryptionKey": {"name": "key"}}
    making = {"backend": backend, "etcd": {"backup": backup}}
    if message is None:
        await create(client, namespace, making)
    else:
        with pytest.raises(Invalid, match=message):
            await create(client, namespace, making)
