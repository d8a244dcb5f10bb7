"""Pools of hosts are updated in place. The hosts have real SSH servers and a fake kubeadm."""

from collections import Counter
from pathlib import Path

import pytest
from capelin.api.capi import Machine
from capelin.api.core import Node
from capelin.client import Client, Config
from capelin.contract import find_condition
from capelin.testing.managers import running
from capelin.testing.waiting import until
from capelin_machine_pool.api import CapelinMachinePool
from capelin_machine_pool.bootstrap import Archives
from capelin_machine_pool.hosts.api import CapelinHost

from tests.support.archives import add_archive, fake_programs

from .fake_core import NAME, NEW, OLD
from .rack import HostWorld, rack, reconcilers
from .test_pools_of_hosts import alive

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("provider_crds"),
]
IN_PLACE = {
    "hosts": {"profile": "Bundle"},
    "rollingUpdate": {"method": "InPlace", "maxUnavailable": 1},
}


async def test_pool_is_updated_in_place_and_stops_after_a_failure(
    client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    config = Config.from_kubeconfig(kubeconfig)
    for version in (OLD, NEW):
        add_archive(tmp_path / "archives", version, fake_programs(version))
    archives = Archives(tmp_path / "archives")
    async with rack(tmp_path, 2) as hosts:
        world = HostWorld(client, namespace, hosts)
        world.reports_versions = True

        async def versions() -> Counter[str]:
            return Counter([await host.kubelet() for host in hosts])

        async def nodes() -> list[Node]:
            found = (await client.list(Node)).items
            return [node for node in found if node.metadata.labels.get("world") == namespace]

        async def reason() -> str | None:
            pool = await client.get(CapelinMachinePool, NAME, namespace)
            conditions = pool.status.conditions if pool.status else []
            condition = find_condition(conditions, "UpToDate")
            return condition and condition.reason

        async with (
            alive(world),
            running(*reconcilers(client, archives), config=config, namespace=namespace),
            # A second provider at the same time, as after a lost lease.
            running(*reconcilers(client, archives), config=config, namespace=namespace),
        ):
            await world.start(replicas=2, **IN_PLACE)
            await world.until_nodes(2)
            await world.until_phases(Ready=2)
            assert await versions() == {OLD: 2}
            before = {machine.uid for machine in await world.instances()}
            for host in hosts:
                await host.machine.succeed("touch /etc/fail-upgrade")
            await world.change({"template": {"spec": {"version": NEW}}})
            await until(reason, lambda found: found == "UpdateFailed", within=90)
            await world.until_phases(Ready=1, Updating=1)
            assert {machine.uid for machine in await world.instances()} == before
            assert sum([len(await host.upgrades()) for host in hosts]) == 1
            assert sum(node.spec.unschedulable is True for node in await nodes()) == 1
            # A person deletes the Machine. The replacement has the new version, and the other
            # machine is updated.
            for host in hosts:
                await host.machine.succeed("rm /etc/fail-upgrade")
            failed = next(
                machine
                for machine in await world.instances()
                if machine.status
                and any(it.reason == "UpdateFailed" for it in machine.status.conditions)
            )
            await client.delete(Machine, failed.name, namespace)
            await until(versions, lambda found: found == {NEW: 2}, within=120)
            await until(reason, lambda found: found == "UpToDate", within=90)
            await world.until_phases(Ready=2)
            await world.until_nodes(2)
            # After a move, hosts have no status. Those that run need the archive of their first
            # version no more.
            (tmp_path / "archives" / "SHA256SUMS").write_text("")
            for host_object in (await client.list(CapelinHost, namespace)).items:
                patch = {"status": None}
                await client.patch(
                    CapelinHost, host_object.name, namespace, patch, subresource="status"
                )
            await world.until_phases(Ready=2)
            assert not any(node.spec.unschedulable for node in await nodes())
            upgrades = [upgrade for host in hosts for upgrade in await host.upgrades()]
            assert len(upgrades) == len(set(upgrades)) == 2
            kept = before & {machine.uid for machine in await world.instances()}
            assert len(kept) == 1
            await world.scale(0)
            await world.until_phases(Free=2)
            for host in hosts:
                await until(host.machine.fingerprint, lambda found, host=host: found == host.fresh)
