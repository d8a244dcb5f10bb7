"""Latency and memory of the lifecycle extension with 100 policies and 500 Clusters.

A leading replica runs on an API server without Cluster API's core. Two clients call each hook for
every Cluster, which starts the actions of its policies, and repeat some of the calls. They do not
pause, while core repeats a call only every few seconds.
"""

import asyncio
import ssl
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Namespace
from capelin.client import Client, ClientOptions, Config
from capelin.runtime import AnyHook
from capelin.runtime import v1alpha1 as hooks
from capelin.testing.extensions import fake_request
from capelin.testing.waiting import until
from capelin_embedded.apiserver import ApiServer, Settings
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.testing.administrator import Administrator
from capelin_lifecycle.api import (
    LIFECYCLE_HOOKS,
    ClusterLifecyclePolicy,
    LifecyclePolicy,
    LifecycleResult,
)
from capelin_lifecycle.policies.memory import CONFIG_MAP
from capelin_lifecycle.provider import provider
from capelin_lifecycle.reconcilers.registration import TOPOLOGY_HANDLERS, handler_name

from tests.bench.rows import Row, percentile
from tests.bench.running import resident_memory
from tests.calls import Connection, request_for
from tests.extensions import certificates, lifecycle

TEAMS = 10
CLUSTERS = 500
AGAIN = 100
CALLERS = 2
FROM, TO = TESTED_KUBERNETES


async def measure() -> list[Row]:
    """The p99 of every hook, and the memory."""
    with tempfile.TemporaryDirectory(prefix="capelin-bench-") as name:
        folder = Path(name)
        server = await ApiServer.prepare(folder / "server", Settings(durable=False, controllers=()))
        try:
            await server.start()
            administrator = await asyncio.to_thread(Administrator, server)
            await asyncio.to_thread(administrator.install, provider())
            await asyncio.to_thread(administrator.close)
            return await _measure(server.kubeconfig, folder)
        finally:
            await server.stop()


async def _measure(kubeconfig: Path, folder: Path) -> list[Row]:
    config = Config.from_kubeconfig(kubeconfig)
    async with Client(config, options=ClientOptions(qps=0)) as client:
        for team in range(TEAMS):
            await client.apply(Namespace.of(f"team-{team}"))
        await client.apply(ConfigMap.of(CONFIG_MAP, config.namespace))
        for policy in policies():
            await client.apply(policy)
        clusters = [
            await client.create(manifest, resource=Cluster.resource)
            for manifest in cluster_manifests()
        ]
        trust = ssl.create_default_context(cadata=certificates(folder).decode())
        async with lifecycle(folder, kubeconfig, "bench") as running:
            rows: list[Row] = []
            for hook, handler, bodies in calls(clusters):
                await _bring_to(client, clusters, hook)
                requests = [request_for(hook, handler, body) for body in bodies]
                rows.append(_row(handler, await _calls(running.port, trust, requests)))
            # One namespace at a time: a list of thousands would slow the reconcilers down.
            for team in range(TEAMS):
                await until(partial(_all_have_a_status, client, f"team-{team}"), within=300)
            memory = resident_memory(running.pid)
    return [
        *rows,
        Row(name="memory of the replica that leads", measured=memory, unit="MiB", at_most=150),
    ]


async def _bring_to(client: Client, clusters: Sequence[Unstructured], hook: AnyHook) -> None:
    """Bring the Clusters to the state in which Cluster API calls the hook."""
    for cluster in clusters:
        name, namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
        if hook is hooks.BeforeClusterUpgrade:
            reference = {"apiGroup": "example.com", "kind": "ControlPlane", "name": name}
            patch: Unstructured = {"spec": {"controlPlaneRef": reference}}
            cluster.update(await client.patch(Cluster.resource, name, namespace, patch))
        elif hook is hooks.BeforeClusterDelete:
            patch = {"metadata": {"finalizers": ["example.com/bench"]}}
            await client.patch(Cluster.resource, name, namespace, patch)
            await client.delete(Cluster.resource, name, namespace)
            cluster.update(await client.get(Cluster.resource, name, namespace))


async def _all_have_a_status(client: Client, namespace: str) -> bool:
    """Whether the reconcilers have caught up."""
    return all(result.status for result in (await client.list(LifecycleResult, namespace)).items)


@dataclass(frozen=True, slots=True)
class _Call:
    """Milliseconds of a call, and whether the hook let the Cluster proceed."""

    took: float
    proceeds: bool


def _row(handler: str, calls: Sequence[_Call]) -> Row:
    took = [call.took for call in calls]
    half, most = percentile(took, 0.5), max(took)
    proceeded = sum(call.proceeds for call in calls)
    return Row(
        name=f"{handler}: p99",
        measured=percentile(took, 0.99),
        unit="ms",
        at_most=200,
        comparison=f"p50 {half:.1f} ms, most {most:.0f} ms, {proceeded} of {len(calls)} proceed",
    )


async def _calls(port: int, trust: ssl.SSLContext, requests: Sequence[bytes]) -> list[_Call]:
    """Call without a pause."""
    left = iter(requests)
    calls: list[_Call] = []

    async def call() -> None:
        connection = await Connection.open(port, trust)
        for request in left:
            began = time.perf_counter()
            response = await connection.call(request)
            took = (time.perf_counter() - began) * 1000
            calls.append(_Call(took, not response.get("retryAfterSeconds")))
            if response["status"] != "Success":
                raise RuntimeError(response["message"])
        await connection.close()

    await asyncio.gather(*(call() for _ in range(CALLERS)))
    return calls


# Policies and Clusters


def policies() -> list[Unstructured]:
    """Nine policies in each of ten namespaces, and ten for all of them."""
    everywhere: list[tuple[str, Unstructured]] = [
        ("BeforeClusterCreate", quota("All", 10_000)),
        ("BeforeClusterCreate", quota("Class", 10_000)),
        ("BeforeClusterUpgrade", RULES),
        ("BeforeControlPlaneUpgrade", RULES),
        ("AfterControlPlaneUpgrade", RULES),
        ("BeforeWorkersUpgrade", RULES),
        ("AfterClusterUpgrade", RULES),
        ("GeneratePatches", {"patches": {"versions": [PATCHES]}}),
        ("ValidateTopology", TOPOLOGY_RULES),
        ("GenerateUpgradePlan", {"upgradePlan": {"versions": [FROM, TO]}}),
    ]
    return [
        *(_policy(f"{number}", None, *named) for number, named in enumerate(everywhere)),
        *(
            _policy(hook.lower(), f"team-{team}", hook, _team_action(hook))
            for team in range(TEAMS)
            for hook in LIFECYCLE_HOOKS
        ),
    ]


def _team_action(hook: str) -> Unstructured:
    match hook:
        case "BeforeClusterCreate":
            return quota("Namespace", 1000)
        case "BeforeClusterUpgrade":
            return {"approval": {"approvers": ["alice"]}}
        case "AfterControlPlaneInitialized":
            pods = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
            return {"job": {"target": "Management", "template": {"template": {"spec": pods}}}}
        case _:
            return RULES


def quota(group: str, limit: int) -> Unstructured:
    """A quota that admits and counts all Clusters."""
    limits = [
        {"resource": "clusters", "limit": limit},
        {"resource": "nodes", "limit": 1000 * limit},
        {
            "resource": "memory",
            "limit": f"{limit}Ti",
            "expression": "object.spec.topology.workers.machineDeployments"
            ".map(d, d.replicas).sum() * 8589934592",
        },
    ]
    return {"quota": {"groupBy": group, "limits": limits}}


RULES: Unstructured = {
    "validate": {
        "rules": [
            {"expression": "'team' in object.metadata.labels", "message": "a team"},
            {
                "expression": "object.spec.topology.workers.machineDeployments"
                ".all(d, d.replicas < 100)",
                "message": "at most 100 machines",
            },
        ]
    }
}
TOPOLOGY_RULES: Unstructured = {
    "validate": {"rules": [{"expression": "templates.size() > 0", "message": "templates"}]}
}
PATCHES: Unstructured = {
    "name": "v1",
    "templates": [
        {
            "kind": "KubeadmConfigTemplate",
            "operations": [
                {
                    "op": "Append",
                    "path": "/spec/template/spec/preKubeadmCommands",
                    "valueFrom": "'echo ' + variables.builtin.cluster.name",
                }
            ],
        }
    ],
}


def _policy(name: str, namespace: str | None, hook: str, action: Unstructured) -> Unstructured:
    kind = ClusterLifecyclePolicy if namespace is None else LifecyclePolicy
    metadata = {"name": f"policy-{name}", **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": kind.resource.api_version,
        "kind": kind.resource.kind,
        "metadata": metadata,
        "spec": {"hook": hook, "action": action},
    }


def cluster_manifests() -> Iterator[Unstructured]:
    """Clusters of a fleet: three groups of workers and some variables."""
    for number in range(CLUSTERS):
        team = f"team-{number % TEAMS}"
        groups = [{"class": "worker", "name": f"md-{n}", "replicas": 3} for n in range(3)]
        yield {
            "apiVersion": Cluster.resource.api_version,
            "kind": Cluster.resource.kind,
            "metadata": {
                "name": f"cluster-{number}",
                "namespace": team,
                "labels": {"team": team, "tier": "production"},
                "annotations": {"example.com/notes": "x" * 500},
            },
            "spec": {
                "topology": {
                    "classRef": {"name": "small"},
                    "version": TO,
                    "controlPlane": {"replicas": 3},
                    "workers": {"machineDeployments": groups},
                    "variables": [
                        {"name": f"variable-{n}", "value": {"text": "x" * 50}} for n in range(10)
                    ],
                }
            },
        }


def calls(
    clusters: Sequence[Unstructured],
) -> Iterator[tuple[AnyHook, str, list[Unstructured]]]:
    """Each handler's hook, name, and requests in their order."""
    steps = {
        "from": {"fromKubernetesVersion": FROM, "toKubernetesVersion": TO},
        "reached": {"kubernetesVersion": TO},
        "none": {},
    }
    # The Jobs of the first would compete with the other hooks, and the second ends the Clusters.
    last = ("AfterControlPlaneInitialized", "BeforeClusterDelete")
    names = sorted(LIFECYCLE_HOOKS.items(), key=lambda entry: entry[0] in last)
    for name, hook in names:
        fields = hook.request_type().model_fields
        if "from_kubernetes_version" in fields:
            step = steps["from"]
        else:
            step = steps["reached" if "kubernetes_version" in fields else "none"]
        bodies = [{"cluster": cluster, **step} for cluster in clusters]
        yield hook, handler_name(name, blocks=True), [*bodies, *bodies[:AGAIN]]
    topology: dict[AnyHook, dict[str, str]] = {
        hooks.GeneratePatches: {"policy": "policy-7", "version": "v1"},
        hooks.DiscoverVariables: {"policy": "policy-7", "version": "v1"},
        hooks.ValidateTopology: {"policy": "policy-8"},
    }
    for hook, settings in topology.items():
        body = fake_request(hook, settings=settings)
        yield hook, TOPOLOGY_HANDLERS[hook.id.name], [body] * CLUSTERS
    plan = {
        "fromControlPlaneKubernetesVersion": FROM,
        "fromWorkersKubernetesVersion": FROM,
        "toKubernetesVersion": TO,
    }
    bodies = [{"cluster": cluster, **plan} for cluster in clusters]
    yield hooks.GenerateUpgradePlan, TOPOLOGY_HANDLERS["GenerateUpgradePlan"], bodies
