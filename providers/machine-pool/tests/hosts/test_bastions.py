"""Many hosts behind one bastion, against OpenSSH's server with its own limits."""

import asyncio
from functools import partial
from ipaddress import ip_network
from pathlib import Path

from capelin.client import Destinations
from capelin.controller import ObjectKey
from capelin.testing.waiting import until
from capelin_machine_pool.bootstrap import TransportError
from capelin_machine_pool.hosts.api import Bastion, HostCredentials
from capelin_machine_pool.hosts.connections import SshTarget
from capelin_machine_pool.hosts.plan import Visit
from capelin_machine_pool.hosts.visits import VisitPlan, Visits, carry_out

from tests.support.sandbox import NEEDS_SANDBOX, sandbox
from tests.support.sshd import bastion, sshd

pytestmark = [*NEEDS_SANDBOX]
COUNT = 40
LOOPBACK = Destinations((ip_network("127.0.0.0/8"),))


async def test_bastion_rejects_no_login(tmp_path: Path) -> None:
    async with (
        sandbox(tmp_path) as machine,
        sshd(machine) as server,
        bastion(machine, server) as gate,
    ):
        target = SshTarget(server.host(), gate)

        async def is_rejected() -> bool:
            try:
                async with target.connect(LOOPBACK):
                    return False
            except TransportError:
                return True

        rejected = await asyncio.gather(*(is_rejected() for _ in range(COUNT)))
        assert any(rejected), "without the provider's limit, MaxStartups has an effect"
        finished: list[str] = []
        visits = Visits(lambda key: finished.append(key.name))
        keys = [ObjectKey("team", f"host-{number}") for number in range(COUNT)]
        plan = VisitPlan(visit=Visit.CHECK, connect=partial(target.connect, LOOPBACK))
        spec = Bastion(
            address=gate.address,
            port=gate.port,
            credentials=HostCredentials(secret_name="key"),
            host_keys=[" ".join(server.host_key.split()[:2])],
        )
        for key in keys:
            visits.start(key, "check", Visit.CHECK, partial(carry_out, plan), spec)
        await until(lambda: len(finished) == COUNT, within=120)
        results = [visits.result(key, "check") for key in keys]
        assert [result and result.failure for result in results] == [None] * COUNT
        await visits.close()
