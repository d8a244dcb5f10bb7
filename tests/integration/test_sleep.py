"""A cluster sleeps and wakes with the real core, a MachineHealthCheck and a pool."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from capelin.api import BaseObject, Resource
from capelin.api.capi import Cluster, Machine, MachineHealthCheck
from capelin.api.core import ConfigMap
from capelin.client import Client, ClientError, Config
from capelin.contract import ASLEEP, find_condition
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.operations.sleep import SLEEP_ANNOTATION, WAKE_ANNOTATION
from capelin_embedded.processes import Process, marked_processes
from capelin_embedded.testing.management import ManagementCluster
from capelin_machine_pool.api import CapelinCluster, CapelinMachinePool

from .pools import POOL, VERSION, Whole, pool_manifests, whole_cluster

pytestmark = pytest.mark.timeout(600)

NAME = "sleepy"
EVENTS = Resource("", "v1", "Event", "events")
SILENT_SECONDS = 40.0
"""Longer than Kubernetes and the MachineHealthCheck wait for a Node."""


@pytest.fixture
async def whole(management_cluster: ManagementCluster) -> AsyncGenerator[Whole]:
    """A cluster with two machines and a health check that replaces them at the first doubt."""
    async with (
        Client(Config.from_kubeconfig(management_cluster.kubeconfig)) as management,
        whole_cluster(management, NAME) as whole,
    ):
        for manifest in [*pool_manifests(NAME, NAME, replicas=2), health_check()]:
            await management.apply(manifest)
        await until(lambda: whole.is_whole(2, VERSION))
        yield whole


def health_check() -> dict[str, Any]:
    unhealthy = [
        {"type": type_, "status": status, "timeoutSeconds": 1}
        for type_, status in (("Ready", "Unknown"), ("Ready", "False"))
    ]
    machine = [{"type": "NodeReady", "status": "Unknown", "timeoutSeconds": 1}]
    return {
        "apiVersion": MachineHealthCheck.resource.api_version,
        "kind": "MachineHealthCheck",
        "metadata": {"name": "strict", "namespace": NAME},
        "spec": {
            "clusterName": NAME,
            "selector": {"matchLabels": {"cluster.x-k8s.io/cluster-name": NAME}},
            "checks": {
                "nodeStartupTimeoutSeconds": 30,
                "unhealthyNodeConditions": unhealthy,
                "unhealthyMachineConditions": machine,
            },
        },
    }


def processes(management: ManagementCluster) -> list[str]:
    """The processes of the cluster: its components, its relay, and KWOK."""
    workloads = management.environment.workloads
    found = [
        process.name
        for owner in (workloads / "control-plane-capelin").glob("*/owner.json")
        if f'"{NAME}"' in owner.read_text()
        for process in marked_processes(owner.parent / "run")
    ]
    kwok = workloads / "infrastructure-capelin" / f"{NAME}.{NAME}" / "run"
    if kwok.exists() and Process.adopt(kwok, "kwok") is not None:
        found.append("kwok")
    return sorted(found)


async def annotate(whole: Whole, annotation: str) -> None:
    patch = {"metadata": {"annotations": {annotation: datetime.now(UTC).isoformat()}}}
    await whole.management.patch(CapelinControlPlane, NAME, NAME, patch)


async def reason(whole: Whole, kind: type[BaseObject], name: str, type_: str) -> str | None:
    found = await whole.management.get(kind.resource, name, NAME)
    conditions: list[dict[str, str]] = found.get("status", {}).get("conditions", [])
    return next((it["reason"] for it in conditions if it["type"] == type_), None)


async def is_asleep(whole: Whole, management: ManagementCluster) -> bool:
    asleep = await reason(whole, CapelinControlPlane, NAME, ASLEEP) == ASLEEP
    return asleep and not processes(management)


async def uids(whole: Whole) -> set[str]:
    return {machine.uid for machine in await whole.machines()}


async def seconds_until_served(whole: Whole, config: Config) -> float:
    """Wake the cluster. Returns the time until a client has read something."""
    started = time.monotonic()
    await annotate(whole, WAKE_ANNOTATION)
    async with Client(config, manager="test") as workload:
        while True:
            try:
                await workload.list(ConfigMap, "default")
                return time.monotonic() - started
            except ClientError:
                await asyncio.sleep(0.05)


@pytest.mark.representative
async def test_nothing_is_remediated_while_a_cluster_sleeps(
    whole: Whole, management_cluster: ManagementCluster
) -> None:
    config = whole.workload.config
    await whole.workload.apply(ConfigMap.of("kept", "default"))
    before, running = await uids(whole), processes(management_cluster)
    assert {"relay", "kwok"} <= {name.removesuffix("-0") for name in running}
    await annotate(whole, SLEEP_ANNOTATION)
    await until(lambda: is_asleep(whole, management_cluster), within=60)
    for kind, name, type_ in (
        (Cluster, NAME, "ControlPlaneAvailable"),
        (Cluster, NAME, "InfrastructureReady"),
        (CapelinCluster, NAME, "Ready"),
        (CapelinMachinePool, POOL, "Ready"),
    ):
        await until(partial(reason, whole, kind, name, type_), lambda found: found == ASLEEP)

    await whole.scale(3)

    async def pool_waits() -> bool:
        found = await whole.management.get(CapelinMachinePool, POOL, NAME)
        ready = find_condition(found.status.conditions, "Ready") if found.status else None
        return ready is not None and "machines to create: 1" in ready.message

    await until(pool_waits)
    # As core does after five minutes.
    long_ago = (datetime.now(UTC) - timedelta(hours=8)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for machine in await whole.machines():
        conditions = [
            {**condition.dump(), "status": "Unknown", "lastTransitionTime": long_ago}
            if condition.type in {"NodeReady", "NodeHealthy"}
            else condition.dump()
            for condition in machine.status.conditions
        ]
        patch = {"status": {"conditions": conditions}}
        await whole.management.patch(Machine, machine.name, NAME, patch, subresource="status")
    # Nothing must happen, also not after all timeouts.
    await asyncio.sleep(SILENT_SECONDS)
    assert await uids(whole) == before
    assert processes(management_cluster) == []

    seconds = await seconds_until_served(whole, config)
    print(f"served after {seconds:.2f} s, load {os.getloadavg()[0]:.1f}")  # noqa: T201
    await until(lambda: whole.is_whole(3, VERSION))
    await until(whole.is_available)
    assert before < await uids(whole)
    assert await whole.workload.find(ConfigMap, "kept", "default") is not None
    assert {"kwok", *running} <= {*processes(management_cluster)}

    # The health check works again.
    check = await whole.management.get(MachineHealthCheck, "strict", NAME)
    assert check.metadata.annotations == {}
    events = await whole.management.list(EVENTS, NAME)
    failures = [
        f"{event['reason']}: {event['message']}"
        for event in events.items
        if event["type"] == "Warning" and event["involvedObject"]["kind"].startswith("Capelin")
    ]
    assert failures == []
