"""The reconciler of hosts, without a visit."""

import logging

import pytest
from capelin.api.capi import Cluster
from capelin.client import NotFound
from capelin.contract import DELETE_FOR_MOVE_ANNOTATION, DELETING
from capelin.controller import After, Context, Done, Recorder
from capelin.testing.fake_client import FakeClient, cluster
from capelin.testing.waiting import until
from capelin_machine_pool.api import CapelinMachine, HostReference
from capelin_machine_pool.desired import FINALIZER
from capelin_machine_pool.hosts.api import (
    CLEAN_AGAIN_ANNOTATION,
    POWER_CYCLE_ANNOTATION,
    RENEW_BASELINE_ANNOTATION,
    CapelinHost,
)
from capelin_machine_pool.hosts.status import POWER_CYCLED
from capelin_machine_pool.reconcilers import HostReconciler

from .objects import NAMESPACE, a_claim, a_host, a_machine

MOVED = {DELETE_FOR_MOVE_ANNOTATION: ""}


async def reconcile(client: FakeClient, reconciler: HostReconciler | None = None) -> object:
    host = await client.get(CapelinHost, "host-1", NAMESPACE)
    recorder = Recorder(client, "test", "test", now=client.clock)
    ctx = Context(client, logging.getLogger(__name__), recorder)
    return await (reconciler or HostReconciler()).reconcile(ctx, host)


async def test_host_that_moves_to_another_cluster_goes() -> None:
    client = FakeClient(CapelinHost, CapelinMachine)
    client.add(a_host(phase="Ready", claim=a_claim(), annotations=MOVED))
    assert await reconcile(client) == Done()
    # clusterctl has removed the finalizer, and deletes the host next.
    host = await client.get(CapelinHost, "host-1", NAMESPACE)
    assert host.metadata.finalizers == []
    patch = {"metadata": {"finalizers": [FINALIZER]}}
    await client.patch(CapelinHost, "host-1", NAMESPACE, patch)
    await client.delete(CapelinHost, "host-1", NAMESPACE)
    assert await reconcile(client) == Done()
    with pytest.raises(NotFound):
        await client.get(CapelinHost, "host-1", NAMESPACE)


@pytest.mark.parametrize("annotation", [CLEAN_AGAIN_ANNOTATION, RENEW_BASELINE_ANNOTATION])
async def test_request_is_removed_from_a_host_in_use(annotation: str) -> None:
    client = FakeClient(CapelinHost, CapelinMachine)
    request = {annotation: ""}
    client.add(a_host(phase="Ready", claim=a_claim(), annotations=request))
    assert await reconcile(client) == Done()
    host = await client.get(CapelinHost, "host-1", NAMESPACE)
    assert host.metadata.annotations == {}
    assert host.spec.claim == a_claim()


async def test_deleted_host_that_is_in_use_reports_its_power_cycle() -> None:
    client, reconciler = FakeClient(CapelinHost, CapelinMachine), HostReconciler()
    host = a_host(phase="Ready", claim=a_claim())
    host.metadata.finalizers = [FINALIZER]
    client.add(host)
    await client.delete(CapelinHost, "host-1", NAMESPACE)
    await reconcile(client, reconciler)
    request = {"metadata": {"annotations": {POWER_CYCLE_ANNOTATION: ""}}}
    await client.patch(CapelinHost, "host-1", NAMESPACE, request)

    async def types() -> list[str]:
        await reconcile(client, reconciler)
        live = await client.get(CapelinHost, "host-1", NAMESPACE)
        return [condition.type for condition in live.status.conditions] if live.status else []

    assert DELETING in await types()
    await until(types, lambda found: {POWER_CYCLED, DELETING} <= set(found))


async def test_paused_cluster_begins_no_update() -> None:
    client = FakeClient(CapelinHost, CapelinMachine)
    client.add(cluster("demo", NAMESPACE, paused=True))
    client.add(a_machine(host=HostReference(name="host-1", claim="uid-one")))
    claim = a_claim(version="v1.33.13", update_version="v1.34.4")
    client.add(a_host(phase="Ready", claim=claim))
    # Without the Secret, a visit would fail.
    assert await reconcile(client) == After(30.0)
    host = await client.get(CapelinHost, "host-1", NAMESPACE)
    assert host.status is not None
    assert (host.status.phase, host.status.conditions) == ("Ready", [])
    await client.patch(Cluster, "demo", NAMESPACE, {"spec": {"paused": None}})
    await reconcile(client)
    host = await client.get(CapelinHost, "host-1", NAMESPACE)
    assert host.status is not None
    assert host.status.conditions[0].reason == "InvalidCredentials"
