"""The time of one explanation in a management cluster with 100 Clusters."""

import asyncio
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
from capelin.api import Resource, Unstructured
from capelin.api.capi import Cluster, Machine, MachineDeployment, MachineSet
from capelin.client import Client
from capelin.contract import CLUSTER_NAME_LABEL
from capelin_cli.explain.reading import read_facts
from capelin_cli.explain.walk import explain
from capelin_machine_pool.api import CapelinCluster, CapelinMachine, CapelinMachineTemplate
from capelin_machine_pool.provider import provider

CLUSTERS, MACHINES = 100, 5
SECONDS = 1.0
_SINCE = "2030-01-01T00:00:00Z"
_KINDS = (Cluster, MachineDeployment, MachineSet, Machine)


def condition(type_: str, status: str, message: str = "") -> dict[str, str]:
    reason = "Because" if message else type_
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": _SINCE,
    }


def objects_of(name: str, namespace: str) -> list[tuple[Resource, Unstructured]]:
    """A Cluster that waits for one of its Machines, and its objects."""
    labels = {CLUSTER_NAME_LABEL: name}
    template = {
        "spec": {
            "clusterName": name,
            "bootstrap": {"dataSecretName": name},
            "infrastructureRef": reference("CapelinMachineTemplate", name),
        }
    }
    selector = {"matchLabels": labels}
    workers = {
        "clusterName": name,
        "replicas": MACHINES,
        "selector": selector,
        "template": {"metadata": {"labels": labels}, **template},
    }
    unavailable = [condition("Available", "False", "4 available replicas, 5 required")]
    silent = "Kubelet stopped posting node status."
    ready, unready = condition("Ready", "True"), condition("NodeHealthy", "Unknown", silent)

    def made(
        kind: type[Cluster | MachineDeployment | MachineSet | Machine],
        its_name: str,
        spec: Unstructured,
        status: Unstructured,
    ) -> tuple[Resource, Unstructured]:
        metadata: Unstructured = {"name": its_name, "namespace": namespace, "labels": labels}
        return kind.resource, {
            "apiVersion": kind.resource.api_version,
            "kind": kind.resource.kind,
            "metadata": metadata,
            "spec": spec,
            "status": status,
        }

    machine = {**template["spec"], "infrastructureRef": reference("CapelinMachine", name)}
    return [
        made(
            Cluster,
            name,
            {"infrastructureRef": reference("CapelinCluster", name)},
            {"conditions": [condition("Available", "False", "workers are not available")]},
        ),
        made(MachineDeployment, name, workers, {"conditions": unavailable}),
        made(MachineSet, name, workers, {"conditions": unavailable}),
        *(
            made(
                Machine,
                f"{name}-{number}",
                machine,
                {"nodeRef": {"name": f"node-{number}"}, "conditions": [ready]}
                if number
                else {
                    "nodeRef": {"name": "node-0"},
                    "conditions": [condition("Ready", "False", silent), unready],
                },
            )
            for number in range(MACHINES)
        ),
    ]


def reference(kind: str, name: str) -> dict[str, str]:
    return {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": kind, "name": name}


async def create(client: Client, name: str, namespace: str) -> None:
    """Create the objects, each owned by the one before it."""
    owner: Unstructured | None = None
    for resource, manifest in objects_of(name, namespace):
        if owner is not None:
            manifest["metadata"]["ownerReferences"] = [owner]
        created = await client.create(manifest, resource=resource)
        status = {"status": manifest["status"]}
        its_name = manifest["metadata"]["name"]
        await client.patch(resource, its_name, namespace, status, subresource="status")
        if resource.kind != "Machine":
            owner = {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "name": its_name,
                "uid": created["metadata"]["uid"],
            }
    ready = {"status": {"conditions": [condition("Ready", "True")]}}
    template: Unstructured = {"template": {"spec": {}}}
    for kind in (CapelinCluster, CapelinMachine, CapelinMachineTemplate):
        infrastructure: Unstructured = {
            "apiVersion": kind.resource.api_version,
            "kind": kind.resource.kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": template if kind is CapelinMachineTemplate else {},
        }
        await client.create(infrastructure, resource=kind.resource)
        if kind is not CapelinMachineTemplate:
            await client.patch(kind.resource, name, namespace, ready, subresource="status")


@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_one_explanation_among_100_clusters(
    client: Client,
    namespace: str,
    install_crds: Callable[..., None],
    record_property: Callable[[str, object], None],
) -> None:
    await asyncio.to_thread(install_crds, provider(), *map(_crd_name, _KINDS))
    names = [f"cluster-{number}" for number in range(CLUSTERS)]
    await asyncio.gather(*(create(client, name, namespace) for name in names))
    seconds: list[float] = []
    for name in names[:10]:
        began = time.monotonic()
        facts = await read_facts(client, name, namespace, None)
        assert facts is not None
        (chain,) = explain(facts).chains
        seconds.append(time.monotonic() - began)
        assert (chain.cause, str(chain.object)) == ("KubeletStopped", "Node node-0")
    record_property("seconds", round(median(seconds), 3))
    assert min(seconds) < SECONDS, seconds


def _crd_name(kind: type[Any]) -> str:
    return f"{kind.resource.plural}.{kind.resource.group}"
