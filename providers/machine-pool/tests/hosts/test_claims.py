"""Each machine gets one host, and each host has one machine, whatever happens meanwhile."""

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from capelin.client import ClientError, Conflict, Request, Unreachable
from capelin.testing.fake_client import FakeClient
from capelin.testing.waiting import until
from capelin_machine_pool.api import CapelinMachine, HostReference
from capelin_machine_pool.hosts.api import CapelinHost, HostClaim
from capelin_machine_pool.hosts.claims import (
    HostRequest,
    NoFreeHostError,
    choose_host,
    claim_host,
    end_claim,
    no_free_host,
    release_host,
)
from capelin_machine_pool.hosts.plan import Release, Visit, next_host_step

from .objects import NAMESPACE, NOW, a_claim, a_host, a_machine


def names_of(
    hosts: list[CapelinHost], claim: HostClaim | None = None, **request: Any
) -> str | None:
    chosen = choose_host(hosts, HostRequest(claim=claim or a_claim(), **request))
    return None if chosen is None else chosen.name


@pytest.mark.parametrize(
    "host",
    [
        a_host(phase="Broken"),
        a_host(phase="Unavailable"),
        a_host(phase="Cleaning"),
        a_host(phase=None),
        a_host(maintenance=True),
        a_host(claim=a_claim("other")),
    ],
    ids=["broken", "unavailable", "cleaning", "unknown", "maintenance", "claimed"],
)
def test_machine_claims_no_host_that_is_not_free(host: CapelinHost) -> None:
    assert names_of([host]) is None


def test_machine_claims_no_host_whose_change_was_not_checked() -> None:
    host = a_host()
    host.metadata.generation = 2
    assert names_of([host]) is None


def test_labels_and_failure_domain_select_hosts() -> None:
    hosts = [a_host("a", labels={"role": "worker"}, domain="east"), a_host("b", domain="west")]
    assert names_of(hosts, match_labels={"role": "worker"}) == "a"
    assert names_of(hosts, failure_domain="west") == "b"
    assert names_of(hosts, match_labels={"role": "worker"}, failure_domain="west") is None


def test_machines_of_a_pool_are_spread_over_failure_domains() -> None:
    pool = a_claim(pool="workers")
    hosts = [
        a_host("a", domain="east", claim=a_claim("x", pool="workers")),
        # Machines of another pool do not count.
        a_host("b", domain="west", claim=a_claim("y", pool="other")),
        a_host("c", domain="east"),
        a_host("d", domain="west"),
    ]
    assert names_of(hosts, claim=pool) == "d"


def test_choice_depends_on_the_machine_and_not_on_the_order() -> None:
    hosts = [a_host(f"host-{number}") for number in range(20)]
    chosen = [names_of(hosts, claim=a_claim(f"m{number}")) for number in range(10)]
    backwards = [names_of(hosts[::-1], claim=a_claim(f"m{number}")) for number in range(10)]
    assert chosen == backwards
    assert len(set(chosen)) > 5


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ([], "the namespace has no CapelinHost with the labels role=worker"),
        (
            [a_host(claim=a_claim("x"), labels={"role": "worker"})],
            "machines use every CapelinHost with the labels role=worker",
        ),
        (
            [a_host(f"b{n}", phase="Broken", labels={"role": "worker"}) for n in range(4)],
            (
                "no CapelinHost with the labels role=worker is Free."
                " Machines use the others, except b0, b1, b2, ..."
            ),
        ),
    ],
)
def test_message_explains_why_no_host_is_free(hosts: list[CapelinHost], message: str) -> None:
    request = HostRequest(claim=a_claim(), match_labels={"role": "worker"})
    assert no_free_host(hosts, request) == message


async def test_claim_from_before_a_crash_is_used() -> None:
    client = FakeClient(CapelinHost, CapelinMachine)
    machine = client.add(a_machine())
    claim = a_claim(id=machine.uid)
    client.add(a_host("a"))
    client.add(a_host("b", phase="Claimed", claim=claim))
    reference = await claim_host(client, machine, HostRequest(claim=claim))
    assert reference == HostReference(name="b", claim=machine.uid)
    assert (await client.get(CapelinHost, "a", NAMESPACE)).spec.claim is None


async def test_claim_ends_only_for_its_own_machine() -> None:
    client = FakeClient(CapelinHost)
    host = client.add(a_host(claim=a_claim("new")))
    with pytest.raises(Conflict):
        await end_claim(client, host, a_claim("old"))
    assert (await client.get(CapelinHost, host.name, NAMESPACE)).spec.claim == a_claim("new")


async def test_new_claim_keeps_nothing_of_the_former_one() -> None:
    client = FakeClient(CapelinHost, CapelinMachine)
    former = a_claim("former", clean_commands=["echo former"], released_at=NOW)
    host = client.add(a_host(claim=former))
    await end_claim(client, host, former)
    machine = client.add(a_machine())
    patch = {"status": {"phase": "Free", "observedGeneration": 2}}
    await client.patch(CapelinHost.resource, host.name, NAMESPACE, patch, subresource="status")
    claim = a_claim(id=machine.uid)
    await claim_host(client, machine, HostRequest(claim=claim))
    assert (await client.get(CapelinHost, host.name, NAMESPACE)).spec.claim == claim


async def test_slower_one_of_two_controllers_loses_its_host() -> None:
    client = FakeClient(CapelinHost, CapelinMachine)
    machine = client.add(a_machine())
    first = client.add(a_host("a", phase="Unavailable", labels={"row": "1"}))
    client.add(a_host("b"))
    claim = a_claim(id=machine.uid)

    class Slow(FakeClient):
        """A controller that lists the hosts before another one claims `a`."""

        async def _send(self, request: Request) -> Any:
            response = await super()._send(request)
            if request.method == "GET" and request.path.endswith("/capelinhosts"):
                status = {"status": {"phase": "Free", "observedGeneration": 1}}
                kind = CapelinHost.resource
                await client.patch(kind, first.name, NAMESPACE, status, subresource="status")
                first_row = HostRequest(claim=claim, match_labels={"row": "1"})
                await claim_host(client, machine, first_row)
            return response

    with pytest.raises(Conflict):
        await claim_host(Slow(server=client.server), machine, HostRequest(claim=claim))
    unused = await client.get(CapelinHost, "b", NAMESPACE)
    assert unused.spec.claim == claim
    found = await client.get(CapelinMachine, machine.name, NAMESPACE)
    assert found.spec.host == HostReference(name="a", claim=machine.uid)
    assert next_host_step(unused, found) == Release()


class Faulty(FakeClient):
    """A client whose requests take turns with others, are lost, or lose their answer."""

    def __init__(self, random: Random, other: FakeClient) -> None:
        super().__init__(server=other.server)
        self._random = random

    async def _send(self, request: Request) -> Any:
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(0)
        fault = self._random.random()
        if fault < 0.05:
            raise Unreachable("lost")
        response = await super()._send(request)
        if fault > 0.95:
            raise Unreachable("answer lost")
        return response


class Race:
    """Two controllers that allocate hosts for the same machines and reconcile the same hosts."""

    def __init__(self, seed: int, *, hosts: int, machines: int) -> None:
        random = Random(seed)  # noqa: S311
        self.store = FakeClient(CapelinHost, CapelinMachine)
        for number in range(hosts):
            self.store.add(a_host(f"host-{number}"))
        added = [self.store.add(a_machine(f"m{number}")) for number in range(machines)]
        self.machines = [machine.name for machine in added]
        self.controllers = [Faulty(Random(random.random()), self.store) for _ in range(2)]  # noqa: S311
        self.bootstrapped: dict[str, str] = {}
        """The machine of each host that was allowed to bootstrap."""

    async def run(self) -> None:
        """Run both controllers until each machine has a host."""
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            hosts = [tasks.create_task(self._hosts(client)) for client in self.controllers]
            allocations = [
                tasks.create_task(self._allocate(client, name))
                for client in self.controllers
                for name in self.machines
            ]
            await asyncio.wait(allocations)
            await until(lambda: len(self.bootstrapped) == len(self.machines))
            for task in hosts:
                task.cancel()

    async def _allocate(self, client: FakeClient, name: str) -> None:
        while True:
            try:
                machine = await client.get(CapelinMachine, name, NAMESPACE)
                if machine.spec.host is not None:
                    return
                claim = a_claim(name, id=machine.uid)
                await claim_host(client, machine, HostRequest(claim=claim))
            except (ClientError, NoFreeHostError):
                await asyncio.sleep(0)

    async def _hosts(self, client: FakeClient) -> None:
        while True:
            with suppress(ClientError):
                for host in (await client.list(CapelinHost, NAMESPACE)).items:
                    await self._step(client, host)
            await asyncio.sleep(0)

    async def _step(self, client: FakeClient, host: CapelinHost) -> None:
        """Do for a host as its reconciler does."""
        claim, generation = host.spec.claim, host.metadata.generation
        if claim is None:
            if host.status is None or host.status.observed_generation != generation:
                status = {"status": {"phase": "Free", "observedGeneration": generation}}
                kind = CapelinHost.resource
                await client.patch(kind, host.name, NAMESPACE, status, subresource="status")
            return
        step = next_host_step(host, await client.find(CapelinMachine, claim.machine, NAMESPACE))
        if step == Release():
            await release_host(client, host, NOW)
        elif step is Visit.CLEAN:
            assert host.name not in self.bootstrapped, "a bootstrapped host was released"
            await end_claim(client, host, claim)
        elif step is Visit.BOOTSTRAP:
            assert self.bootstrapped.setdefault(host.name, claim.machine) == claim.machine


@pytest.mark.parametrize("after_use", [False, True])
async def test_a_released_host_stays_in_maintenance_on_request(after_use: bool) -> None:
    client = FakeClient(CapelinHost)
    host = a_host(phase="Ready", claim=a_claim(), maintenance_after_use=after_use)
    client.add(host)
    await release_host(client, await client.get(CapelinHost, host.name, NAMESPACE), NOW)
    released = await client.get(CapelinHost, host.name, NAMESPACE)
    assert released.spec.maintenance is after_use
    assert released.spec.claim is not None
    assert released.spec.claim.released_at == NOW


@pytest.mark.parametrize("seed", range(30))
async def test_competing_controllers_give_each_machine_one_host(seed: int) -> None:
    race = Race(seed, hosts=6, machines=5)
    await race.run()
    assert sorted(race.bootstrapped.values()) == race.machines
    for name in race.machines:
        machine = await race.store.get(CapelinMachine, name, NAMESPACE)
        assert machine.spec.host is not None
        assert race.bootstrapped[machine.spec.host.name] == name
