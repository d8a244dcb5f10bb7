"""One tenant attacks the shared managers, with real API servers, core and managers."""

import json
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from capelin.api import Resource, Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Namespace, Pod, Secret
from capelin.client import ApiError, Client, ClientError, Config, Credentials
from capelin.runtime.v1alpha1 import BeforeClusterCreate
from capelin.testing.extensions import fake_request
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_embedded.addresses import own_addresses
from capelin_embedded.management import workload_programs
from capelin_embedded.testing.management import ManagementCluster
from capelin_lifecycle.api import LifecyclePolicy, LifecycleResult
from capelin_lifecycle.policies.memory import CONFIG_MAP
from capelin_lifecycle.provider import provider
from capelin_lifecycle.reconcilers.registration import handler_name

from tests.extensions import certificates, lifecycle

from .homes import Home, processes
from .lifecycle_stories import BEFORE, PATIENCE, Stories, stories_in

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs_programs(*workload_programs(BEFORE))]

MANAGERS: Final = (
    "control-plane-capelin",
    "infrastructure-capelin",
    "runtime-extension-lifecycle",
)
TENANT: Final = "mallory"
DEEP: Final = '{"a":' * 1100 + "1" + "}" * 1100
RULE: Final = {"expression": "'approved' in object.metadata.?labels.orValue({})", "message": "held"}


# Calls of hooks


@pytest.fixture
async def workload(management_cluster: ManagementCluster) -> AsyncGenerator[Client]:
    """The API server of a hosted control plane, with its administrator's kubeconfig."""
    await management_cluster.require("lifecycle")
    async with (
        Client(Config.from_kubeconfig(management_cluster.kubeconfig)) as client,
        stories_in(client, "forger") as stories,
    ):
        await stories.create_class()
        await stories.create("own")

        async def kubeconfig() -> bytes | None:
            secret = await client.find(Secret, "own-kubeconfig", stories.namespace)
            return None if secret is None else secret.data["value"]

        config = Config.from_secret(await until(kubeconfig, within=PATIENCE) or b"")
        async with Client(config) as workload:
            yield workload


async def create_bridge(workload: Client, address: str) -> None:
    """Create a Pod whose status has an address that the administrator of the cluster chose."""
    spec = {
        "automountServiceAccountToken": False,
        "containers": [{"name": "none", "image": "none"}],
        "schedulerName": "none",
    }
    metadata = {"name": "bridge", "namespace": "default"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    async def is_created() -> bool:
        try:
            await workload.apply(pod)
        except ClientError:
            # The API server starts, and the controller manager creates service accounts later.
            return False
        return True

    await until(is_created, within=PATIENCE)
    status = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
    await workload.patch(Pod, "bridge", "default", status, subresource="status")


async def call(workload: Client, port: int, request: Unstructured) -> Unstructured:
    """Call the gate for the creation of Clusters through the proxy of a hosted API server."""
    path = BeforeClusterCreate.id.path(handler_name("BeforeClusterCreate", blocks=True))
    proxy = f"/api/v1/namespaces/default/pods/https:bridge:{port}/proxy"
    return await workload.request("POST", f"{proxy}{path}", body=request)


@pytest.fixture
async def gated(client: Client, namespace: str, install_crds: Any) -> AsyncGenerator[Unstructured]:
    """A request with a forged label for a Cluster that a policy blocks."""
    install_crds(provider())
    await client.apply(ConfigMap.of(CONFIG_MAP, client.config.namespace))
    await client.apply(
        {
            "apiVersion": LifecyclePolicy.resource.api_version,
            "kind": LifecyclePolicy.resource.kind,
            "metadata": {"name": "gate", "namespace": namespace},
            "spec": {"hook": "BeforeClusterCreate", "action": {"validate": {"rules": [RULE]}}},
        }
    )
    cluster: Unstructured = await client.create(
        {
            "apiVersion": Cluster.resource.api_version,
            "kind": Cluster.resource.kind,
            "metadata": {"name": "gated", "namespace": namespace},
            "spec": {"topology": {"classRef": {"name": "small"}, "version": BEFORE}},
        },
        resource=Cluster.resource,
    )
    cluster["metadata"]["labels"] = {"approved": "yes"}
    yield {**fake_request(BeforeClusterCreate), "cluster": cluster}
    # No controller is running that would remove the finalizers.
    for kind in (LifecycleResult, LifecyclePolicy):
        for obj in (await client.list(kind, namespace)).items:
            await client.patch(kind, obj.name, namespace, {"metadata": {"finalizers": None}})
            await client.delete(kind, obj.name, namespace)


async def test_a_hosted_api_server_cannot_call_the_hooks_of_an_extension(
    workload: Client, kubeconfig: Path, gated: Unstructured, tmp_path: Path
) -> None:
    addresses = [address for address in own_addresses() if not address.startswith("127.")]
    if not addresses:
        pytest.fail("the machine has loopback addresses only, to which no API server proxies")
    await create_bridge(workload, addresses[0])
    certificates(tmp_path)
    as_in_the_chart = ("--host=", f"--client-ca={tmp_path / 'ca.crt'}", "--leader-elect")
    async with lifecycle(tmp_path, kubeconfig, "closed", *as_in_the_chart) as closed:
        with pytest.raises(ApiError, match=r"reach service: (EOF|remote error: tls)"):
            await call(workload, closed.port, gated)
    # Without a client CA, the call arrives: the extension decides from the live Cluster.
    async with lifecycle(
        tmp_path, kubeconfig, "open", "--host=", "--allow-any-client", "--leader-elect"
    ) as opened:
        answer = await call(workload, opened.port, gated)
        # On a busy machine, the first answer is that the policy has started.
        assert answer["status"] == "Success"
        assert "gate" in answer["message"]
        assert answer["retryAfterSeconds"] > 0
        forged = {**gated["cluster"]["metadata"], "uid": "00000000-0000-0000-0000-000000000000"}
        request = {**gated, "cluster": {**gated["cluster"], "metadata": forged}}
        answer = await call(workload, opened.port, request)
        assert answer["status"] == "Failure"
        assert "there is no Cluster" in answer["message"]


# Deep objects


async def store(config: Config, resource: Resource, name: str, spec: Unstructured) -> None:
    """Create an object of the tenant, with 1100 levels instead of the text DEEP."""
    manifest = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name, "namespace": TENANT},
        "spec": spec,
    }
    proof = await Credentials(config).proof()
    async with (
        aiohttp.ClientSession(headers=proof.headers) as session,
        session.post(
            f"{config.server.address}{resource.path(TENANT)}",
            data=json.dumps(manifest).replace('"DEEP"', DEEP),
            headers={"Content-Type": "application/json"},
            ssl=proof.tls or True,
        ) as response,
    ):
        assert response.status == 201, (await response.text())[:500]


async def store_deep_objects(config: Config, suffix: str) -> None:
    """Create a deep object of each kind that a manager reads."""
    topology = {
        "classRef": {"name": "none"},
        "version": BEFORE,
        "variables": [{"name": "deep", "value": "DEEP"}],
    }
    await store(config, Cluster.resource, f"deep-{suffix}", {"topology": topology})
    patches = [{"target": {"kind": "Deployment"}, "merge": "DEEP"}]
    await store(
        config,
        CapelinControlPlane.resource,
        f"deep-{suffix}",
        {"version": BEFORE, "pods": {"patches": patches}},
    )
    action = {"job": {"template": {"template": {"spec": {"containers": "DEEP"}}}}}
    await store(
        config,
        LifecyclePolicy.resource,
        f"deep-{suffix}",
        {"hook": "BeforeClusterDelete", "action": action},
    )


async def test_deep_objects_of_a_tenant_stop_no_manager(home: Home) -> None:
    ended = await home.capelin("up", "--management-only", "--with", "lifecycle")
    assert ended.code == 0, ended.err
    environment = home.environment()
    config = Config.from_kubeconfig(environment.kubeconfig)

    def managers() -> dict[str, int]:
        return {name: pid for name, pid in processes(environment).items() if name in MANAGERS}

    async with Client(config) as client:
        await client.apply(Namespace.of(TENANT))
        await store_deep_objects(config, "listed")
        # New managers list the objects before they watch them.
        killed = managers()
        assert {*killed} == {*MANAGERS}
        for pid in killed.values():
            os.kill(pid, signal.SIGKILL)

        def are_restarted() -> bool:
            found = managers()
            return {*found} == {*MANAGERS} and not {*found.values()} & {*killed.values()}

        await until(are_restarted, within=PATIENCE)
        started = managers()

        stories = Stories(client, "default")
        limits = {"limits": [{"resource": "clusters", "limit": 5}]}
        await stories.apply("quota", "BeforeClusterCreate", {"quota": limits})
        await stories.are_called("BeforeClusterCreate")
        ended = await home.capelin("up", "--workers", "1")
        assert ended.code == 0, ended.err
        await until(
            lambda: stories.phase("quota", "demo"), lambda it: it == "Done", within=PATIENCE
        )

        await store_deep_objects(config, "watched")
        await stories.apply("late", "BeforeClusterUpgrade", {"validate": {"rules": [RULE]}})

        async def is_valid() -> bool:
            found = (await client.get(LifecyclePolicy, "late", "default")).status
            conditions = found.conditions if found is not None else []
            return any((each.type, each.status) == ("Valid", "True") for each in conditions)

        await until(is_valid, within=PATIENCE)
        ended = await home.capelin("scale", "demo", "--workers", "2")
        assert ended.code == 0, ended.err
        assert managers() == started
