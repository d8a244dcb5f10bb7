"""A real API server applies the defaults, bounds and rules of the kinds and their templates."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from capelin.api import Resource, Unstructured
from capelin.client import Client, Invalid
from capelin_machine_pool.api import (
    CapelinCluster,
    CapelinClusterTemplate,
    CapelinMachine,
    CapelinMachinePool,
    CapelinMachinePoolTemplate,
    CapelinMachineTemplate,
)
from capelin_machine_pool.hosts.api import CapelinHost
from capelin_machine_pool.provider import provider

DRY_RUN = {"topology.cluster.x-k8s.io/dry-run": ""}
TEMPLATES = (CapelinClusterTemplate, CapelinMachineTemplate, CapelinMachinePoolTemplate)


@pytest.fixture(scope="session", autouse=True)
def kinds(install_crds: Callable[..., None]) -> None:
    """The API server serves the provider's kinds."""
    install_crds(provider())


@pytest.fixture
async def policy(client: Client) -> AsyncGenerator[None]:
    """The provider's admission policies are in force."""
    for manifest in provider().objects:
        await client.apply(manifest)
    yield
    for manifest in provider().objects:
        await client.delete(kind_of(manifest), manifest["metadata"]["name"])


def kind_of(manifest: Unstructured) -> Resource:
    group, _, version = manifest["apiVersion"].rpartition("/")
    kind = manifest["kind"]
    plural = f"{kind.lower()}s".replace("policys", "policies")
    return Resource(group, version, kind, plural, namespaced=False)


def manifest(kind: Any, namespace: str, spec: dict[str, Any]) -> Unstructured:
    return {
        "apiVersion": kind.resource.api_version,
        "kind": kind.resource.kind,
        "metadata": {"name": "one", "namespace": namespace},
        "spec": spec,
    }


async def create(client: Client, kind: Any, namespace: str, spec: dict[str, Any]) -> Unstructured:
    return await client.create(manifest(kind, namespace, spec), resource=kind.resource)


async def test_empty_spec_of_a_pool_gets_defaults(client: Client, namespace: str) -> None:
    made = await create(client, CapelinMachinePool, namespace, {})
    assert made["spec"] == {
        "backend": "Simulated",
        "rollingUpdate": {
            "maxSurge": 1,
            "maxUnavailable": 0,
            "deletePolicy": "Oldest",
            "method": "Replace",
        },
        "simulated": {
            "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"},
            "faults": {"neverBoots": 0, "dies": 0, "flaps": 0, "afterSeconds": 60},
            "startupJitterSeconds": 1,
            "startupSeconds": 1,
        },
    }


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"simulated": {"faults": {"neverBoots": 50, "dies": 30, "flaps": 21}}}, "100 percent"),
        ({"simulated": {"faults": {"dies": 101}}}, "less than or equal to 100"),
        ({"simulated": {"startupSeconds": -1}}, "greater than or equal to 0"),
        ({"simulated": {"capacity": {"cpu": "many"}}}, "simulated.capacity.cpu"),
        ({"simulated": {"taints": [{"key": "a", "effect": "Never"}]}}, "Unsupported value"),
        (
            {"simulated": {"taints": 2 * [{"key": "a", "effect": "NoSchedule"}]}},
            "Duplicate value",
        ),
        ({"rollingUpdate": {"maxSurge": "25"}}, "rollingUpdate.maxSurge"),
        ({"rollingUpdate": {"maxUnavailable": -1}}, "rollingUpdate.maxUnavailable"),
        ({"rollingUpdate": {"maxSurge": 0}}, "no machine could ever be replaced"),
        (
            {"rollingUpdate": {"maxSurge": "0%", "maxUnavailable": "00%"}},
            "no machine could ever be replaced",
        ),
        ({"rollingUpdate": {"deletePolicy": "Slowest"}}, "Unsupported value"),
        ({"backend": "Virtual"}, "Unsupported value"),
        ({"hosts": {"matchLabels": {"role": "not a label"}}}, "hosts.matchLabels.role"),
        ({"hosts": {"cleanCommands": [""]}}, "at least 1"),
        ({"providerIDList": [""]}, "at least 1"),
        ({"providerIDList": ["x" * 513]}, "may not be more than 512"),
    ],
    ids=str,
)
async def test_the_api_server_rejects_an_invalid_pool(
    client: Client, namespace: str, spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(Invalid, match=message):
        await create(client, CapelinMachinePool, namespace, spec)


async def test_pool_has_at_most_10000_machines(client: Client, namespace: str) -> None:
    ids = [f"capelin:///{namespace}/demo/workers-{number:05}" for number in range(10_001)]
    await create(client, CapelinMachinePool, namespace, {"providerIDList": ids[:-1]})
    with pytest.raises(Invalid, match="10000"):
        await client.patch(
            CapelinMachinePool.resource, "one", namespace, {"spec": {"providerIDList": ids}}
        )


async def test_a_machine_keeps_its_provider_id(client: Client, namespace: str) -> None:
    await create(client, CapelinMachine, namespace, {})
    resource = CapelinMachine.resource
    await client.patch(resource, "one", namespace, {"spec": {"providerID": "capelin:///a"}})
    with pytest.raises(Invalid, match="which identifies its Node"):
        await client.patch(resource, "one", namespace, {"spec": {"providerID": "capelin:///b"}})


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ({"host": "demo", "port": 65_536}, "less than or equal to 65535"),
        ({"host": "demo", "port": 0}, "greater than or equal to 1"),
        ({"host": "", "port": 6443}, "at least 1"),
        ({"host": "demo"}, "host and port go together"),
        ({"port": 6443}, "host and port go together"),
        ({"host": "https://demo", "port": 6443}, "without https://"),
    ],
    ids=str,
)
async def test_the_api_server_rejects_an_invalid_endpoint(
    client: Client, namespace: str, endpoint: dict[str, Any], message: str
) -> None:
    with pytest.raises(Invalid, match=message):
        await create(client, CapelinCluster, namespace, {"controlPlaneEndpoint": endpoint})


async def test_empty_endpoint_is_accepted(client: Client, namespace: str) -> None:
    await create(client, CapelinCluster, namespace, {"controlPlaneEndpoint": {}})


async def test_no_two_failure_domains_have_the_same_name(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid, match="Duplicate value"):
        await create(client, CapelinCluster, namespace, {"failureDomains": 2 * [{"name": "a"}]})


async def change(
    client: Client, kind: Any, namespace: str, *, annotations: Any = None, dry_run: bool = False
) -> Unstructured:
    patch = {
        "metadata": {"annotations": annotations},
        "spec": {"template": {"spec": {"simulated": {"startupSeconds": 9}}}},
    }
    return await client.patch(kind.resource, "one", namespace, patch, dry_run=dry_run)


@pytest.mark.usefixtures("policy")
async def test_machine_template_is_immutable(client: Client, namespace: str) -> None:
    kind = CapelinMachineTemplate
    await create(client, kind, namespace, {"template": {"spec": {}}})
    # A policy takes effect shortly after it is created.
    refused: Invalid | None = None
    async with asyncio.timeout(20):
        while refused is None:
            try:
                await change(client, kind, namespace, dry_run=True)
            except Invalid as error:
                refused = error
    assert "spec.template.spec is immutable" in str(refused)
    tried = await change(client, kind, namespace, annotations=DRY_RUN, dry_run=True)
    assert tried["spec"]["template"]["spec"]["simulated"]["startupSeconds"] == 9
    with pytest.raises(Invalid, match="is immutable"):
        await change(client, kind, namespace, annotations=DRY_RUN)


@pytest.mark.usefixtures("policy")
async def test_pool_template_can_be_changed(client: Client, namespace: str) -> None:
    kind = CapelinMachinePoolTemplate
    await create(client, kind, namespace, {"template": {"spec": {}}})
    changed = await change(client, kind, namespace)
    assert changed["spec"]["template"]["spec"]["simulated"]["startupSeconds"] == 9


@pytest.mark.parametrize("kind", TEMPLATES, ids=lambda kind: kind.__name__)
async def test_invalid_template_is_rejected(client: Client, namespace: str, kind: Any) -> None:
    spec: dict[str, Any] = {"simulated": {"faults": {"dies": 60, "flaps": 60}}}
    if kind is CapelinClusterTemplate:
        spec = {"failureDomains": [{"name": ""}]}
    with pytest.raises(Invalid, match=r"spec\.template\.spec\."):
        await create(client, kind, namespace, {"template": {"spec": spec}})


async def test_host_keeps_its_address_while_a_machine_has_it(
    client: Client, namespace: str
) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHRlc3RrZXl0ZXN0a2V5dGVzdGtleXRlc3RrZXl0ZXN0"
    spec = {"address": "10.0.0.7", "credentials": {"secretName": "ssh"}, "hostKeys": [key]}
    await create(client, CapelinHost, namespace, spec)

    async def change(**fields: Any) -> None:
        await client.patch(CapelinHost, "one", namespace, {"spec": fields})

    await change(address="10.0.0.8")
    claim = {
        "id": "uid-one",
        "machine": "one",
        "cluster": "demo",
        "providerID": "capelin:///team/demo/one",
        "bootstrapSecret": "data",
    }
    await change(claim=claim)
    for fields in ({"address": "10.0.0.9"}, {"port": 2222}):
        with pytest.raises(Invalid, match="cannot change until it is clean"):
            await change(**fields)
    await change(maintenance=True, port=22)
    await change(claim=None)
    await change(address="10.0.0.9", port=2222)
