"""Seeded faults below pools of hosts: dead providers, cut connections, wrong keys, failed joins."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from capelin.api.core import Secret
from capelin.client import Client, ClientError, Config
from capelin.contract import KUBECONFIG_KEY, find_condition
from capelin.testing.waiting import until
from capelin_machine_pool.bootstrap import TransportError
from capelin_machine_pool.hosts.api import CLEAN_AGAIN_ANNOTATION, CapelinHost

from tests.support.archives import add_archive, fake_programs
from tests.support.sshd import new_key

from .fake_core import NAME, OLD
from .rack import HostWorld, RackHost, rack

pytestmark = [
    pytest.mark.integration,
    pytest.mark.repetitive,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("provider_crds"),
]
COMMANDS = {
    "join": "touch /etc/fail-join",
    "upgrade": "touch /etc/fail-upgrade",
    "reset": "touch /etc/fail-reset",
    "disk": "dd if=/dev/zero of=/mnt/fill bs=1M",
    "script": "pkill -KILL -f '[s]cript-'",
}
"""The faults that a command on a host causes."""
FAULTS = ("cut", "kill", "key", "host key", "reboot", "slow", "clock", *COMMANDS)
# An hour ahead.
CLOCK = "#!/bin/sh\nexec /bin/date -d '+3600 seconds' \"$@\"\n"
VERSIONS = [OLD, *(f"v1.33.{patch}" for patch in range(14, 20))]
_PROVIDER = Path(__file__).with_name("quick_provider.py")
SEEDS = [int(seed) for seed in os.environ.get("CAPELIN_HOST_SEEDS", "0,1,2").split(",")]


class Providers:
    """Two providers that work at the same time, as after a lost lease."""

    def __init__(self, kubeconfig: Path, namespace: str, folder: Path, archives: Path) -> None:
        self._command = (
            *(sys.executable, str(_PROVIDER), f"--kubeconfig={kubeconfig}"),
            *(f"--namespace={namespace}", "--metrics-address=0", "--health-address=0"),
            f"--state-folder={folder / 'state'}",
            f"--host-bundles={archives}",
        )
        self._log = folder / "providers.log"
        self.processes: list[asyncio.subprocess.Process] = []

    async def start(self) -> None:
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(*self._command, stdout=log, stderr=log)
        self.processes.append(process)

    async def kill(self, index: int) -> None:
        """Kill a provider, and start another one."""
        process = self.processes.pop(index)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()
        await self.start()

    async def close(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@asynccontextmanager
async def world_with_providers(
    client: Client, namespace: str, kubeconfig: Path, folder: Path
) -> AsyncGenerator[tuple[HostWorld, Providers]]:
    """Two hosts, and two providers that are processes of their own."""
    for version in VERSIONS:
        add_archive(folder / "archives", version, fake_programs(version))
    providers = Providers(kubeconfig, namespace, folder, folder / "archives")
    async with rack(folder, 2) as hosts:
        world = HostWorld(client, namespace, hosts)
        world.reports_versions = True
        await world.start(
            replicas=2,
            hosts={"profile": "Bundle"},
            rollingUpdate={"method": "InPlace", "maxUnavailable": 1},
        )
        content = Config.from_kubeconfig(kubeconfig).flattened(name="workload")
        secret = Secret.of(f"{NAME}-kubeconfig", namespace)
        patch = {"data": Secret.of("x", data={KUBECONFIG_KEY: content}).dump()["data"]}
        await client.patch(Secret, secret.name, namespace, patch)
        living = asyncio.create_task(world.live())
        try:
            for _ in range(2):
                await providers.start()
            yield world, providers
        finally:
            await providers.close()
            living.cancel()
            with suppress(asyncio.CancelledError):
                await living


async def change(world: HostWorld, host: RackHost, *, key: str, host_key: str) -> None:
    """Set the user's private key and the known key of a host."""
    data = Secret.of("x", data={"ssh-privatekey": key.encode()}).dump()["data"]
    await world.client.patch(Secret, host.name, world.namespace, {"data": data})
    spec = {"spec": {"hostKeys": [" ".join(host_key.split()[:2])]}}
    await world.client.patch(CapelinHost, host.name, world.namespace, spec)


async def cause(world: HostWorld, providers: Providers, random: Random) -> str:
    """Cause a fault, and return its name."""
    fault, host = random.choice(FAULTS), random.choice(list(world.rack))
    key, host_key = host.server.user_key, host.server.host_key
    other = new_key()
    match fault:
        case "cut":
            host.server.cut_after = random.randrange(40_000)
        case "kill":
            await providers.kill(random.randrange(2))
        case "key":
            await change(world, host, key=other.export_private_key().decode(), host_key=host_key)
        case "host key":
            await change(world, host, key=key, host_key=other.export_public_key().decode())
        case "reboot":
            await host.machine.restart()
        case "slow":
            host.server.delay = random.uniform(0.1, 1.0)
        case "clock":
            # Its disk may be full.
            with suppress(TransportError):
                await host.machine.write_file("/usr/local/bin/date", CLOCK.encode(), mode=0o755)
        case _:
            await host.machine.run(COMMANDS[fault])
    return f"{fault} {host.name}"


async def heal(world: HostWorld) -> None:
    """End all faults."""
    for host in world.rack:
        host.server.cut_after, host.server.delay = None, 0.0
        await host.machine.succeed("rm -f /mnt/fill /etc/fail-* /usr/local/bin/date")
        await change(world, host, key=host.server.user_key, host_key=host.server.host_key)


async def explained(world: HostWorld) -> None:
    """Every host that has a problem explains it."""
    for host in await world.hosts():
        ready = find_condition(host.status.conditions, "Ready") if host.status else None
        if ready is not None and ready.status != "True":
            assert ready.reason
            assert ready.message or ready.reason == "NotChecked", ready
            assert "PRIVATE KEY" not in ready.message


async def confirm(world: HostWorld) -> None:
    """Act as the administrator of broken hosts."""
    for host in await world.hosts():
        if host.status is not None and host.status.phase == "Broken":
            value = host.spec.claim.id if host.spec.claim is not None else ""
            patch = {"metadata": {"annotations": {CLEAN_AGAIN_ANNOTATION: value}}}
            with suppress(ClientError):
                await world.client.patch(CapelinHost, host.name, world.namespace, patch)


@pytest.mark.parametrize("seed", SEEDS)
async def test_hosts_outlive_seeded_faults(
    client: Client, namespace: str, kubeconfig: Path, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)  # noqa: S311
    history: list[str] = []
    versions = iter(VERSIONS[1:])
    async with world_with_providers(client, namespace, kubeconfig, tmp_path) as running:
        world, providers = running
        for _ in range(6):
            history.append(await cause(world, providers, random))
            if random.random() < 0.5:
                replicas = random.choice((0, 1, 2))
                history.append(f"scale {replicas}")
                await world.scale(replicas)
            if random.random() < 0.4:
                version = next(versions)
                history.append(f"version {version}")
                await world.change({"template": {"spec": {"version": version}}})
            # Faults hit each stage of a host's life.
            await asyncio.sleep(random.uniform(0, 1.5))
            await explained(world)
            if random.random() < 0.3:
                await heal(world)
        await heal(world)
        await world.scale(0)

        async def all_free() -> bool:
            await explained(world)
            await confirm(world)
            return set((await world.phases()).values()) == {"Free"}

        try:
            await until(all_free, within=240)
        except TimeoutError:
            states = [(host.name, await world.reason(host.name)) for host in world.rack]
            pytest.fail(f"{history}: {states}")
        for host in world.rack:
            joins = (await host.machine.succeed("cat /var/log/joins || true")).splitlines()
            assert len(joins) == len(set(joins)), (history, joins)
            upgrades = await host.upgrades()
            assert len(upgrades) == len(set(upgrades)), (history, upgrades)
            # A visit may be running programs at this moment.
            await until(host.changes, lambda found: found == set(), within=20)
