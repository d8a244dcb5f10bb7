"""Released hosts that do not answer, or are not clean, are power cycled and cleaned."""

import shlex
from datetime import timedelta
from pathlib import Path

import pytest
from capelin.client import Client, Config
from capelin.contract import find_condition
from capelin.testing.managers import running
from capelin.testing.waiting import until
from capelin_machine_pool.hosts.api import POWER_CYCLE_ANNOTATION, CapelinHost
from capelin_machine_pool.reconcilers import HostReconciler

from .rack import LOOPBACK, HostWorld, rack, reconcilers
from .test_pools_of_hosts import alive

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("provider_crds")]


async def test_released_host_is_power_cycled_and_cleaned(
    client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    commands, presses = tmp_path / "commands", tmp_path / "presses"
    press = commands / namespace / "press"
    press.parent.mkdir(parents=True)
    async with rack(tmp_path, 1) as (host,):
        mend = shlex.join(host.machine.command("rm", "-f", "/etc/fail-reset"))
        press.write_text(f'#!/bin/sh\n{mend}\necho "$HOST_NAME" >>{presses}\n')
        press.chmod(0o755)
        world = HostWorld(client, namespace, [host])
        _, *others = reconcilers(client)
        hosts = HostReconciler(LOOPBACK, None, commands, silence=timedelta(0))

        async def is_pressed(times: int) -> bool:
            return presses.exists() and len(presses.read_text().splitlines()) == times

        config = Config.from_kubeconfig(kubeconfig)
        async with (
            alive(world),
            running(hosts, *others, config=config, namespace=namespace),
        ):
            await world.start(replicas=1)
            power = {"spec": {"power": {"method": "Command", "command": "press"}}}
            await client.patch(CapelinHost, host.name, namespace, power)
            await world.until_phases(Ready=1)
            host.server.silent = True
            await world.scale(0)
            await until(lambda: is_pressed(1), within=60)
            host.server.silent = False
            await world.until_phases(Free=1)

            await world.scale(1)
            await world.until_phases(Ready=1)
            await host.machine.succeed("touch /etc/fail-reset")
            await world.scale(0)
            await until(lambda: is_pressed(2), within=60)
            await world.until_phases(Free=1)
            await until(host.changes, lambda found: found == set(), within=20)

            # A person requests one.
            annotation = {"metadata": {"annotations": {POWER_CYCLE_ANNOTATION: ""}}}
            await client.patch(CapelinHost, host.name, namespace, annotation)
            await until(lambda: is_pressed(3), within=30)
            await world.until_phases(Free=1)
            patch = {"spec": {"power": {"command": "missing"}}}
            await client.patch(CapelinHost, host.name, namespace, patch)
            await client.patch(CapelinHost, host.name, namespace, annotation)

            async def reason() -> str | None:
                found = await client.get(CapelinHost, host.name, namespace)
                conditions = found.status.conditions if found.status else []
                cycled = find_condition(conditions, "PowerCycled")
                return cycled and cycled.reason

            await until(reason, lambda found: found == "PowerFailed", within=30)
            await world.until_phases(Free=1)
            assert await is_pressed(3)
