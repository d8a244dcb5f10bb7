"""Pools of hosts on a real API server. The hosts have real SSH servers and a fake kubeadm."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from capelin.api.core import Secret
from capelin.client import Client, Config, Invalid
from capelin.testing.managers import running
from capelin.testing.waiting import until
from capelin_machine_pool.api import CapelinMachine
from capelin_machine_pool.hosts.api import (
    BASELINE_ANNOTATION,
    CLEAN_AGAIN_ANNOTATION,
    RENEW_BASELINE_ANNOTATION,
    CapelinHost,
)

from tests.support.sandbox import NEEDS_SANDBOX
from tests.support.sshd import new_key

from .rack import HostWorld, RackHost, rack, reconcilers

pytestmark = [
    *NEEDS_SANDBOX,
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("provider_crds"),
]
OTHER_KEY = " ".join(new_key().export_public_key().decode().split()[:2])


@asynccontextmanager
async def alive(world: HostWorld) -> AsyncGenerator[None]:
    """Core and kubelets work."""
    living = asyncio.create_task(world.live())
    try:
        yield
    finally:
        living.cancel()
        with suppress(asyncio.CancelledError):
            await living


async def phase_and_reason(world: HostWorld, name: str = "host-0") -> tuple[str | None, str]:
    """The phase of a host, and the reason of its condition Ready."""
    return (await world.phases())[name], (await world.reason(name))[0]


async def test_host_explains_why_it_cannot_be_claimed(
    client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    async with rack(tmp_path, 1) as (host,):
        world = HostWorld(client, namespace, [host])

        async def change(**spec: object) -> None:
            await client.patch(CapelinHost, host.name, namespace, {"spec": spec})

        async def becomes(phase: str, reason: str) -> None:
            await until(lambda: phase_and_reason(world), lambda found: found == (phase, reason))

        config = Config.from_kubeconfig(kubeconfig)
        async with running(*reconcilers(client), config=config, namespace=namespace):
            manifest = world.manifest(host, hostKeys=[], trustOnFirstUse=True)
            await client.create(manifest, resource=CapelinHost.resource)
            await becomes("Unavailable", "InvalidCredentials")
            key = {"ssh-privatekey": host.server.user_key.encode()}
            await client.create(Secret.of(host.name, namespace, data=key))
            await change(port=host.server.port, maintenance=True)
            await becomes("Unavailable", "Maintenance")
            found = await client.get(CapelinHost, host.name, namespace)
            learned = found.spec.host_keys
            assert learned == [" ".join(host.server.host_key.split()[:2])]
            assert found.status is not None
            assert found.status.capacity["cpu"]
            await change(maintenance=False, hostKeys=[OTHER_KEY])
            await becomes("Unavailable", "HostKeyMismatch")
            await change(hostKeys=learned)
            await becomes("Free", "Ready")
            await host.machine.succeed(
                "mkdir -p /etc/kubernetes; touch /etc/kubernetes/kubelet.conf"
            )
            await change(failureDomain="east")
            await becomes("Broken", "HostNotClean")
            await host.machine.succeed("rm -r /etc/kubernetes")
            await change(failureDomain="west")
            # Cleaning by hand is not enough.
            before = (await client.get(CapelinHost, host.name, namespace)).metadata.generation
            await until(lambda: observed_generation(client, host.name, namespace, before or 0))
            await becomes("Broken", "HostNotClean")
            annotations = {"metadata": {"annotations": {CLEAN_AGAIN_ANNOTATION: ""}}}
            await client.patch(CapelinHost, host.name, namespace, annotations)
            await becomes("Free", "Ready")
            await host.machine.succeed("useradd --no-create-home guest")
            await change(failureDomain="east")
            await becomes("Unavailable", "HostNotClean")
            annotations = {"metadata": {"annotations": {RENEW_BASELINE_ANNOTATION: ""}}}
            await client.patch(CapelinHost, host.name, namespace, annotations)
            await becomes("Free", "Ready")
            found = await client.get(CapelinHost, host.name, namespace)
            assert list(found.metadata.annotations) == [BASELINE_ANNOTATION]
            await client.delete(CapelinHost, host.name, namespace)
            await until(lambda: is_gone(client, host.name, namespace))


async def test_host_behind_a_bastion_is_reached(
    client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    async with rack(tmp_path, 1) as (host,):
        # The bastion connects to another server in its network.
        await host.machine.succeed("/usr/sbin/sshd -f /etc/ssh/test/config -p 2222")
        world = HostWorld(client, namespace, [host])
        known = [" ".join(host.server.host_key.split()[:2])]
        bastion = {
            "address": host.server.address,
            "port": host.server.port,
            "credentials": {"secretName": host.name},
            "hostKeys": known,
        }
        key = {"ssh-privatekey": host.server.user_key.encode()}
        await client.create(Secret.of(host.name, namespace, data=key))
        unverified = world.manifest(
            host, port=2222, bastion=bastion, hostKeys=[], trustOnFirstUse=True
        )
        with pytest.raises(Invalid, match="trustOnFirstUse does not work behind a bastion"):
            await client.create(unverified, resource=CapelinHost.resource)
        config = Config.from_kubeconfig(kubeconfig)
        async with running(*reconcilers(client), config=config, namespace=namespace):
            manifest = world.manifest(host, port=2222, bastion=bastion)
            await client.create(manifest, resource=CapelinHost.resource)
            await until(lambda: phase_and_reason(world), lambda found: found == ("Free", "Ready"))
            other = {"spec": {"bastion": {"hostKeys": [OTHER_KEY]}}}
            await client.patch(CapelinHost, host.name, namespace, other)
            mismatch = ("Unavailable", "HostKeyMismatch")
            await until(lambda: phase_and_reason(world), lambda found: found == mismatch)
            _, message = await world.reason(host.name)
            assert f":{host.server.port} is not the configured one" in message


async def observed_generation(client: Client, name: str, namespace: str, least: int) -> bool:
    status = (await client.get(CapelinHost, name, namespace)).status
    return status is not None and (status.observed_generation or 0) >= least


async def is_gone(client: Client, name: str, namespace: str) -> bool:
    return await client.find(CapelinHost, name, namespace) is None


async def test_machine_leaves_a_host_that_is_a_node_already(
    client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    config = Config.from_kubeconfig(kubeconfig)
    async with rack(tmp_path, 2) as hosts:
        world = HostWorld(client, namespace, hosts)
        async with alive(world), running(*reconcilers(client), config=config, namespace=namespace):
            await world.start(replicas=0)
            await world.until_phases(Free=2)
            # After the check, and before any claim.
            for host in hosts:
                await host.machine.succeed("mkdir -p /etc/kubernetes")
            await hosts[0].machine.succeed("touch /etc/kubernetes/kubelet.conf")
            await world.scale(2)
            await world.until_phases(Broken=1, Ready=1)
            assert await phase_and_reason(world) == ("Broken", "HostNotClean")
            assert [await host.joins() for host in hosts] == [0, 1]


async def joined_once(client: Client, namespace: str, hosts: Sequence[RackHost]) -> set[str]:
    """The claims of all machines. Each has joined once, on its own host.

    Two providers can create more machines than the pool needs. Hosts of those were cleaned.
    """
    joined = {host.name: await host.joined() for host in hosts}
    claims = [claim for of in joined.values() for claim in of]
    assert len(claims) == len({*claims}), joined
    machines = (await client.list(CapelinMachine, namespace)).items
    kept = [it.spec.host for it in machines if it.metadata.deletion_timestamp is None]
    present = {host.name: host.claim for host in kept if host is not None}
    assert present == {name: of[-1] for name, of in joined.items()}
    return {*present.values()}


async def test_pool_of_hosts_scales_and_returns_clean_hosts(
    client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    config = Config.from_kubeconfig(kubeconfig)
    async with rack(tmp_path, 3) as hosts:
        world = HostWorld(client, namespace, hosts)
        async with (
            alive(world),
            running(*reconcilers(client), config=config, namespace=namespace),
            # A second provider at the same time, as after a lost lease.
            running(*reconcilers(client), config=config, namespace=namespace),
        ):
            await world.start(replicas=3)
            await world.until_nodes(3)
            await world.until_phases(Ready=3)
            first = await joined_once(client, namespace, hosts)
            await world.scale(1)
            await world.until_phases(Ready=1, Free=2)
            phases = await world.phases()
            for host in hosts:
                if phases[host.name] == "Free":
                    # The programs of a visit that checks the host end soon.
                    await until(
                        host.machine.fingerprint, lambda found, host=host: found == host.fresh
                    )
                else:
                    assert await host.machine.fingerprint() != host.fresh
            await world.scale(3)
            await world.until_nodes(3)
            await world.until_phases(Ready=3)
            assert len(first & await joined_once(client, namespace, hosts)) == 1
