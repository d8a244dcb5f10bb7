"""A workload cluster that never answers delays only its own machines."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import cast

import pytest
from aiohttp import web
from capelin.api import ObjectMeta
from capelin.api.capi import Cluster
from capelin.api.core import Node, Secret
from capelin.client import Client, Config, Server
from capelin.contract import find_condition
from capelin.controller import ObjectKey, Options
from capelin.controller.manager import Manager
from capelin.testing.fake_client import FakeClient
from capelin.testing.waiting import until
from capelin_machine_pool.api import CapelinMachine, MachineSpec
from capelin_machine_pool.backends import Backend, InstanceStatus, Workload
from capelin_machine_pool.desired import FINALIZER, Instance
from capelin_machine_pool.reconcilers import MachineReconciler, machines

from tests.support.web import api_server, kubeconfig_secret, not_found

from .fake_core import context_for

CREATED = datetime(2026, 1, 1, tzinfo=UTC)


class ReadingBackend:
    """Reads the machine's Node. The machine runs when there was an answer."""

    async def allocate(self, instance: Instance, _management: Client) -> str:
        return instance.provider_id

    async def observe(
        self, instance: Instance, workload: Workload, _management: Client
    ) -> InstanceStatus:
        await workload.client.find(Node, instance.key.name)
        return InstanceStatus(running=True)

    async def apply(
        self,
        _instance: Instance,
        observed: InstanceStatus,
        _workload: Workload,
        _management: Client,
        _now: datetime,
    ) -> InstanceStatus:
        return observed


async def silent(_: web.Request) -> web.StreamResponse:
    return await asyncio.Future()


async def add_cluster(client: FakeClient, name: str, address: str) -> None:
    await client.apply(kubeconfig_secret(name, "team", address))
    initialization = {"infrastructureProvisioned": True, "controlPlaneInitialized": True}
    cluster = {"metadata": {"name": name, "namespace": "team"}, "status": {}}
    client.add(Cluster.read({**cluster, "status": {"initialization": initialization}}))


def machine(name: str, cluster: str) -> CapelinMachine:
    return CapelinMachine(
        metadata=ObjectMeta(
            name=name,
            namespace="team",
            uid=name,
            creation_timestamp=CREATED,
            labels={
                "cluster.x-k8s.io/cluster-name": cluster,
                "cluster.x-k8s.io/pool-name": "workers",
            },
            finalizers=[FINALIZER],
        ),
        spec=MachineSpec(version="v1.34.4"),
    )


@pytest.fixture
async def client() -> AsyncGenerator[FakeClient]:
    """The management cluster, with a cluster `silent` and a cluster `demo`."""
    client = FakeClient(CapelinMachine)
    async with AsyncExitStack() as stack:
        for name, handler in (("silent", silent), ("demo", not_found)):
            address = await stack.enter_async_context(api_server(handler))
            await add_cluster(client, name, address)
        yield client


async def ready_condition(client: FakeClient, name: str) -> tuple[str, str, str] | None:
    status = (await client.get(CapelinMachine, name, "team")).status
    condition = find_condition(status.conditions, "Ready") if status else None
    return condition and (condition.status, condition.reason, condition.message)


async def test_machines_of_a_silent_cluster_do_not_delay_a_neighbours_machine(
    client: FakeClient,
) -> None:
    names = [f"silent-{number}" for number in range(100)]
    all_machines = [*(machine(name, "silent") for name in names), machine("neighbour", "demo")]
    for one in all_machines:
        client.add(one)
    reconciler = MachineReconciler({"Simulated": cast("Backend", ReadingBackend())})
    manager = Manager("test", [reconciler], Options(), Config(Server("http://127.0.0.1:1")))
    context = context_for(client)
    async with reconciler.lifespan(context), AsyncExitStack() as stack:
        runner = manager._runner(reconciler, context)  # pyright: ignore[reportPrivateUsage]
        stack.push_async_callback(runner.stop, 0)
        started = time.monotonic()
        runner.start()
        for one in all_machines:
            runner.changed(reconciler.main_watch, one.dump())

        async def is_ready() -> bool:
            condition = await ready_condition(client, "neighbour")
            return condition is not None and condition[0] == "True"

        await until(is_ready, within=10)
        assert time.monotonic() - started < 10

        async def all_are_explained() -> bool:
            conditions = [await ready_condition(client, name) for name in names]
            return all(
                condition is not None
                and condition[:2] == ("False", "WorkloadClusterUnreachable")
                and "does not answer" in condition[2]
                for condition in conditions
            )

        # One request's timeout is enough for all hundred: the others are not even sent.
        await until(all_are_explained, within=20)
        assert time.monotonic() - started < 20


async def test_kubeconfigs_are_read_again_while_all_machines_rest(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bytes | None] = []

    async def refresh(read: Callable[[ObjectKey], Awaitable[bytes | None]]) -> None:
        found.append(await read(ObjectKey("team", "demo")))

    monkeypatch.setattr(machines, "REFRESH_SECONDS", 0.01)
    reconciler = MachineReconciler(
        {"Simulated": cast("Backend", ReadingBackend())}, refresh=refresh
    )
    async with reconciler.lifespan(context_for(client)):
        await until(lambda: found[1:])
    secret = await client.get(Secret, "demo-kubeconfig", "team")
    assert found[0] == secret.data["value"]
