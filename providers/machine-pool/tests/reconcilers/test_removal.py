"""Deletion of machines: the Node first, and shared objects with the last machine."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from capelin.api import ObjectMeta
from capelin.api.capi import Cluster
from capelin.client import (
    ApiError,
    Client,
    ConfigError,
    Conflict,
    CredentialError,
    NotFound,
    Request,
    Response,
    Unauthorized,
    Unavailable,
    Unreachable,
    WorkloadClients,
)
from capelin.contract import find_condition
from capelin.controller import After, ObjectKey, Result
from capelin.provider import InfraMachineStatus, Initialization
from capelin.testing.fake_client import FakeClient
from capelin_machine_pool.api import BackendName, CapelinMachine, HostReference, MachineSpec
from capelin_machine_pool.backends import Backend
from capelin_machine_pool.backends.hosts import HostsBackend
from capelin_machine_pool.desired import FINALIZER
from capelin_machine_pool.hosts.api import CapelinHost, HostClaim, HostCredentials, HostSpec
from capelin_machine_pool.reconcilers import MachineReconciler

from .fake_core import context_for

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class FakeBackend:
    """Records each call with the number of requests that the client sent before it."""

    client: FakeClient
    calls: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    deletes_nodes: bool = True

    async def delete(
        self, machine: CapelinMachine, workload: Client | None, management: Client, now: datetime
    ) -> None:
        assert management is not None
        assert now.tzinfo is not None
        self._note(f"delete {machine.name}{'' if workload else ' without a cluster'}")

    def clusters(self, namespace: str) -> list[ObjectKey]:
        return [ObjectKey(namespace, "demo")]

    async def release(self, cluster: ObjectKey) -> None:
        self._note(f"release {cluster}")

    def _note(self, call: str) -> None:
        self.calls.append((len(self.client.requests), call))


@dataclass
class FakeWorkloads:
    """Returns a client of the workload cluster, or raises."""

    error: Exception | None = None

    @asynccontextmanager
    async def client(self, cluster: str, namespace: str) -> AsyncGenerator[Client]:
        assert (cluster, namespace) == ("demo", "team")
        if self.error is not None:
            raise self.error
        yield cast("Client", object())

    async def drop(self, cluster: str, namespace: str) -> None:
        assert (cluster, namespace) == ("demo", "team")


def going(name: str, *, provisioned: bool = True) -> CapelinMachine:
    return CapelinMachine(
        metadata=ObjectMeta(
            name=name,
            namespace="team",
            uid=name,
            labels={"cluster.x-k8s.io/cluster-name": "demo"},
            finalizers=[FINALIZER],
            deletion_timestamp=NOW,
        ),
        spec=MachineSpec(),
        status=InfraMachineStatus(initialization=Initialization(provisioned=provisioned)),
    )


def cluster(*, deleting: bool = False, initialized: bool = True) -> Cluster:
    metadata: dict[str, Any] = {"name": "demo", "namespace": "team"}
    if deleting:
        metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["core"]}
    initialization = {"controlPlaneInitialized": initialized}
    return Cluster.read({"metadata": metadata, "status": {"initialization": initialization}})


class World:
    """A management cluster and the reconciler of its machines."""

    def __init__(
        self,
        of: Cluster | None,
        *machines: str,
        error: Exception | None = None,
        provisioned: bool = True,
    ) -> None:
        self.client = FakeClient(CapelinMachine)
        for name in machines:
            self.client.add(going(name, provisioned=provisioned))
        if of is not None:
            self.client.add(of)
        self._backend = FakeBackend(self.client)
        self._machines = MachineReconciler({"Simulated": cast("Backend", self._backend)})
        workloads = cast("WorkloadClients", FakeWorkloads(error))
        self._machines._workloads = workloads  # pyright: ignore[reportPrivateUsage] - made when first needed

    @property
    def done(self) -> list[str]:
        """Calls that change the backend or the API server, in this order."""
        writes = [
            (number, change(request))
            for number, request in enumerate(self.client.requests)
            if request.method != "GET"
        ]
        ordered = sorted([*self._backend.calls, *writes], key=lambda entry: entry[0])
        return [text for _, text in ordered]

    @property
    def listed(self) -> list[Mapping[str, str]]:
        """The parameters of every listing of machines."""
        requests = [r for r in self.client.requests if r.path.endswith("/capelinmachines")]
        return [request.parameters for request in requests]

    async def remove(self, name: str) -> Result:
        machine = await self.client.get(CapelinMachine, name, "team")
        return await self._machines.reconcile(context_for(self.client), machine)

    async def move(self, name: str) -> None:
        """Remove a machine without the provider, as clusterctl move does."""
        await self.client.patch(CapelinMachine, name, "team", {"metadata": {"finalizers": None}})
        self.client.requests.clear()
        await self.notify(name)

    async def notify(self, name: str) -> None:
        """Notify the provider that a machine was deleted."""
        await self._machines.on_missing(context_for(self.client), ObjectKey("team", name))

    async def condition(self, name: str, type_: str) -> tuple[str, str]:
        status = (await self.client.get(CapelinMachine, name, "team")).status
        condition = find_condition(status.conditions, type_) if status else None
        assert condition is not None
        return condition.status, condition.message


def change(request: Request) -> str:
    name, _, subresource = request.path.partition("/capelinmachines/")[2].partition("/")
    if subresource == "status":
        return "status CapelinMachine"
    assert request.content_type == "application/json-patch+json"
    return f"let {name} go"


@pytest.mark.parametrize(
    ("method", "error"),
    [("GET", Unavailable(503, "ServiceUnavailable")), ("PATCH", Conflict(409, "Conflict"))],
    ids=["list", "release"],
)
@pytest.mark.parametrize(
    "of", [cluster(deleting=True), cluster(initialized=False), None], ids=["deleted", "new", "gone"]
)
async def test_an_error_of_the_management_cluster_never_skips_the_release_of_a_host(
    of: Cluster | None, method: str, error: ApiError, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient(CapelinMachine, CapelinHost)
    if of is not None:
        client.add(of)
    machine = going("one", provisioned=False)
    machine.spec = MachineSpec(backend="Hosts")
    client.add(machine)
    claim = HostClaim(
        id="one",
        machine="one",
        cluster="demo",
        provider_id="capelin:///team/demo/one",
        bootstrap_secret="data",
    )
    spec = HostSpec(
        address="10.0.0.7",
        credentials=HostCredentials(secret_name="ssh"),
        trust_on_first_use=True,
        claim=claim,
    )
    client.add(CapelinHost.of("host-1", "team", spec=spec))
    live = await client.get(CapelinMachine, "one", "team")
    live.spec.host = HostReference(name="host-1", claim="one")
    send, errors = client.server.send, [error]

    async def send_with_error(request: Request) -> Response:
        if errors and request.method == method and "/capelinhosts" in request.path:
            raise errors.pop()
        return await send(request)

    monkeypatch.setattr(client.server, "send", send_with_error)
    backends: dict[BackendName, Backend] = {"Hosts": HostsBackend()}
    machines = MachineReconciler(backends)
    with pytest.raises(type(error)):
        await machines.reconcile(context_for(client), live)
    assert (await client.get(CapelinMachine, "one", "team")).metadata.finalizers == [FINALIZER]
    await machines.reconcile(context_for(client), live)
    host = await client.get(CapelinHost, "host-1", "team")
    assert host.spec.claim is not None
    assert host.spec.claim.released_at is not None


async def test_a_deleted_machine_keeps_the_shared_objects_of_others() -> None:
    world = World(cluster(), "a", "b", "c")
    await world.remove("a")
    assert world.done == ["delete a", "let a go"]


async def test_the_last_machine_releases_shared_objects_before_its_finalizer() -> None:
    world = World(cluster(), "a", "b")
    await world.remove("b")
    await world.remove("a")
    assert world.done == ["delete b", "let b go", "delete a", "release team/demo", "let a go"]


async def test_the_search_for_other_machines_reads_at_most_two() -> None:
    world = World(cluster(), "a", "b")
    await world.remove("a")
    assert world.listed == [{"labelSelector": "cluster.x-k8s.io/cluster-name=demo", "limit": "2"}]


@pytest.mark.parametrize(
    "error",
    [
        NotFound(404, "NotFound"),
        Unreachable("connection refused"),
        ApiError(500, "InternalError"),
        Unavailable(504, "Timeout"),
        Unauthorized(401, "Unauthorized"),
        ConfigError("its kubeconfig is none"),
        CredentialError("its key is none"),
    ],
    ids=str,
)
async def test_deleted_cluster_delays_no_machine(
    error: Exception,
) -> None:
    world = World(cluster(deleting=True), "a", error=error)
    await world.remove("a")
    assert world.done == ["release team/demo", "let a go"]


@pytest.mark.parametrize(
    "error", [NotFound(404, "NotFound"), Unreachable("connection refused")], ids=str
)
async def test_machine_waits_for_the_removal_of_its_node(
    error: Exception,
) -> None:
    world = World(cluster(), "a", error=error)
    assert isinstance(await world.remove("a"), After)
    assert world.done == ["status CapelinMachine"]
    message = "its Node cannot be deleted while the cluster's API does not answer"
    assert await world.condition("a", "Deleting") == ("True", message)
    await world.remove("a")
    assert world.done == ["status CapelinMachine"]


async def test_a_machine_stays_while_its_cluster_rejects_the_credentials() -> None:
    world = World(cluster(), "a", error=Unauthorized(401, "Unauthorized"))
    with pytest.raises(Unauthorized):
        await world.remove("a")
    assert world.done == ["status CapelinMachine"]
    assert (await world.condition("a", "Deleting"))[0] == "True"


async def test_a_machine_without_a_cluster_is_deleted() -> None:
    world = World(None, "a")
    await world.remove("a")
    assert world.done == ["delete a without a cluster", "release team/demo", "let a go"]


async def test_the_backend_releases_shared_objects_after_the_last_machine_moves() -> None:
    world = World(cluster(), "a", "b")
    await world.move("a")
    assert world.done == []
    await world.move("b")
    assert world.done == ["release team/demo"]


async def test_the_provider_does_not_search_for_machines_it_removed() -> None:
    world = World(cluster(), "a", "b")
    await world.remove("a")
    requests = len(world.listed)
    await world.notify("a")
    assert len(world.listed) == requests


@pytest.mark.parametrize(
    ("error", "initialized"),
    [
        (NotFound(404, "NotFound"), False),
        (NotFound(404, "NotFound"), True),
        (Unreachable("connection refused"), False),
    ],
    ids=str,
)
async def test_a_machine_without_an_instance_is_deleted_although_the_api_never_answers(
    error: Exception, initialized: bool
) -> None:
    world = World(cluster(initialized=initialized), "a", error=error, provisioned=False)
    await world.remove("a")
    assert world.done == ["release team/demo", "let a go"]


async def test_a_machine_with_a_possible_instance_waits_for_the_api() -> None:
    world = World(cluster(), "a", error=Unreachable("connection refused"), provisioned=False)
    assert isinstance(await world.remove("a"), After)
    assert (await world.condition("a", "Deleting"))[0] == "True"
