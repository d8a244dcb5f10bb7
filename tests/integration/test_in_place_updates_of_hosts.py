"""Cluster API's hooks update the hosts of a MachineDeployment in place, with the real core.

The hosts are namespaces with a fake kubeadm, so the test acts as their kubelets.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from capelin.api.capi import ExtensionConfig, Machine, MachineDeployment
from capelin.api.core import Node, Pod, Secret
from capelin.client import Client, ClientError, Config
from capelin.contract import KUBECONFIG_KEY
from capelin.testing.waiting import until
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.management import workload_programs
from capelin_lifecycle.in_place import HANDLERS
from capelin_machine_pool.api import CapelinMachine, CapelinMachineTemplate
from capelin_machine_pool.hosts.api import CapelinHost

from tests.support.archives import add_archive, fake_programs
from tests.support.sandbox import Sandbox, sandbox
from tests.support.sshd import Server, new_key, sshd

from .homes import Home

NEW, OLD = TESTED_KUBERNETES[-1], TESTED_KUBERNETES[-2]
NAMES = ("rack-1", "rack-2")
BOOTSTRAP = "bootstrap.cluster.x-k8s.io"
SKIPPED = "ControlPlaneVersionSkew,KubeadmVersionSkew"
_NODE_INFO = (
    *("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion"),
    *("kubeletVersion", "machineID", "operatingSystem", "osImage", "systemUUID"),
)
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.needs_programs("kubeadm-bootstrap-controller", *workload_programs(NEW)),
]


@dataclass
class Hosts:
    """Two hosts, and the kubelets of those that have joined."""

    machines: Mapping[str, tuple[Sandbox, Server]]
    management: Client
    workload: Client
    fewest_open: int = len(NAMES)
    """The fewest Nodes that accepted pods at a time, once all did."""
    are_open: bool = field(default=False)

    async def live(self) -> None:
        """Act as kubelets for ever."""
        while True:
            with suppress(ClientError):
                await self._step()
            await asyncio.sleep(0.5)

    async def _step(self) -> None:
        nodes = {node.name: node for node in (await self.workload.list(Node)).items}
        for host in (await self.management.list(CapelinHost, "default")).items:
            machine, _ = self.machines[host.name]
            claim, phase = host.spec.claim, host.status and host.status.phase
            if claim is not None and phase in {"Ready", "Updating"}:
                if host.name not in nodes:
                    manifest = {
                        "apiVersion": "v1",
                        "kind": "Node",
                        "metadata": {"name": host.name},
                    }
                    await self.workload.create(manifest, resource=Node.resource)
                await self._report(host.name, await kubelet_version(machine))
        open_nodes = sum(not node.spec.unschedulable for node in nodes.values())
        self.are_open = self.are_open or open_nodes == len(NAMES)
        if self.are_open:
            self.fewest_open = min(self.fewest_open, open_nodes)
        for pod in (await self.workload.list(Pod)).items:
            if pod.metadata.deletion_timestamp is not None:
                await self.workload.delete(Pod, pod.name, pod.namespace, grace_seconds=0)

    async def _report(self, name: str, version: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        states = {"Ready": "True", **dict.fromkeys(_PRESSURES, "False")}
        conditions = [
            {"type": type_, "status": status, "reason": "Test", "lastHeartbeatTime": now}
            for type_, status in states.items()
        ]
        info = dict.fromkeys(_NODE_INFO, "") | {"kubeletVersion": version}
        patch = {"status": {"conditions": conditions, "nodeInfo": info}}
        await self.workload.patch(Node, name, None, patch, subresource="status")


async def kubelet_version(machine: Sandbox) -> str:
    """The version of the installed kubelet."""
    result = await machine.run("kubelet --version")
    return result.output.decode().removeprefix("Kubernetes ").strip()


@asynccontextmanager
async def rack(folder: Path) -> AsyncGenerator[dict[str, tuple[Sandbox, Server]]]:
    user = new_key()
    async with AsyncExitStack() as stack:
        hosts: dict[str, tuple[Sandbox, Server]] = {}
        for name in NAMES:
            machine = await stack.enter_async_context(sandbox(folder, name))
            server = await stack.enter_async_context(sshd(machine, user=user))
            hosts[name] = (machine, server)
        yield hosts


def objects(hosts: Mapping[str, tuple[Sandbox, Server]]) -> list[dict[str, Any]]:
    """The hosts and a MachineDeployment that uses them."""
    manifests: list[dict[str, Any]] = [
        {
            "apiVersion": CapelinHost.resource.api_version,
            "kind": "CapelinHost",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "address": server.address,
                "port": server.port,
                "credentials": {"secretName": "rack"},
                "hostKeys": [" ".join(server.host_key.split()[:2])],
            },
        }
        for name, (_, server) in hosts.items()
    ]
    template = {
        "apiVersion": CapelinMachineTemplate.resource.api_version,
        "kind": "CapelinMachineTemplate",
        "metadata": {"name": "racks", "namespace": "default"},
        "spec": {"template": {"spec": {"backend": "Hosts", "hosts": {"profile": "Bundle"}}}},
    }
    infrastructure = {
        "apiGroup": CapelinMachineTemplate.resource.group,
        "kind": "CapelinMachineTemplate",
        "name": "racks",
    }
    registration = {"name": "{{ ds.meta_data.local_hostname }}"}
    # Cluster API updates no machine in place that has no bootstrap config.
    bootstrap = {
        "apiVersion": f"{BOOTSTRAP}/v1beta2",
        "kind": "KubeadmConfigTemplate",
        "metadata": {"name": "racks", "namespace": "default"},
        "spec": {"template": {"spec": {"joinConfiguration": {"nodeRegistration": registration}}}},
    }
    config = {"apiGroup": BOOTSTRAP, "kind": "KubeadmConfigTemplate", "name": "racks"}
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    deployment = {
        "apiVersion": MachineDeployment.resource.api_version,
        "kind": "MachineDeployment",
        "metadata": {
            "name": "racks",
            "namespace": "default",
            # The control plane has the newer version from the start.
            "annotations": {"machineset.cluster.x-k8s.io/skip-preflight-checks": SKIPPED},
        },
        "spec": {
            "clusterName": "demo",
            "replicas": len(hosts),
            "rollout": {"strategy": rolling},
            "template": {
                "spec": {
                    "clusterName": "demo",
                    "version": OLD,
                    "bootstrap": {"configRef": config},
                    "infrastructureRef": infrastructure,
                }
            },
        },
    }
    return [*manifests, template, bootstrap, deployment]


async def test_machine_deployment_of_hosts_is_updated_in_place(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives = tmp_path / "archives"
    for version in (OLD, NEW):
        add_archive(archives, version, fake_programs(version))
    monkeypatch.setenv("CAPELIN_HOST_BUNDLES", str(archives))
    monkeypatch.setenv("CAPELIN_IN_PLACE_UPDATES", "true")
    ended = await home.capelin(
        "up", "--workers", "0", "--with", "lifecycle", "--kubernetes-version", NEW
    )
    assert ended.code == 0, ended.err
    async with (
        rack(tmp_path) as machines,
        Client(Config.from_kubeconfig(home.environment().kubeconfig)) as client,
    ):
        kubeconfig = await client.get(Secret, "demo-kubeconfig", "default")
        config = Config.from_secret(kubeconfig.data[KUBECONFIG_KEY])
        async with Client(config) as workload:
            hosts = Hosts(machines, client, workload)
            living = asyncio.create_task(hosts.live())
            try:
                await update(hosts)
            finally:
                living.cancel()
                await asyncio.gather(living, return_exceptions=True)


async def update(hosts: Hosts) -> None:
    client = hosts.management
    fresh = {name: await machine.fingerprint() for name, (machine, _) in hosts.machines.items()}

    async def is_discovered() -> bool:
        config = await client.get(ExtensionConfig, "lifecycle")
        names = {handler.name.partition(".")[0] for handler in config.status.handlers}
        return names >= {*HANDLERS.values()}

    await until(is_discovered, within=120)
    user_key = hosts.machines[NAMES[0]][1].user_key.encode()
    await client.create(Secret.of("rack", "default", data={"ssh-privatekey": user_key}))
    for manifest in objects(hosts.machines):
        await client.apply(manifest)

    async def counts() -> tuple[set[str], int | None, int | None, int | None]:
        """The versions of the kubelets, and the replicas that are available, up to date and all."""
        status = (await client.get(MachineDeployment, "racks", "default")).status
        versions = {await kubelet_version(machine) for machine, _ in hosts.machines.values()}
        return versions, status.available_replicas, status.up_to_date_replicas, status.replicas

    def all_have(version: str) -> Callable[[tuple[object, ...]], bool]:
        return lambda found: found == ({version}, *(3 * [len(NAMES)]))

    await until(counts, all_have(OLD), within=300)
    before = await uids(client)
    patch = {"spec": {"template": {"spec": {"version": NEW}}}}
    await client.patch(MachineDeployment, "racks", "default", patch)
    await until(counts, all_have(NEW), within=420)
    assert await uids(client) == before
    assert hosts.fewest_open >= len(NAMES) - 1
    for machine, _ in hosts.machines.values():
        upgrades = (await machine.succeed("cat /var/log/upgrades")).splitlines()
        assert len(upgrades) == 1
    nodes = (await hosts.workload.list(Node)).items
    assert not any(node.spec.unschedulable for node in nodes)
    await client.patch(MachineDeployment, "racks", "default", {"spec": {"replicas": 0}})

    async def phases() -> set[str | None]:
        found = (await client.list(CapelinHost, "default")).items
        return {host.status.phase if host.status else None for host in found}

    await until(phases, lambda found: found == {"Free"}, within=180)
    for name, (machine, _) in hosts.machines.items():
        await until(machine.fingerprint, lambda found, name=name: found == fresh[name], within=30)


async def uids(client: Client) -> set[str]:
    """The UIDs of the Machines and CapelinMachines."""
    return {
        *(it.uid for it in (await client.list(Machine, "default")).items),
        *(it.uid for it in (await client.list(CapelinMachine, "default")).items),
    }
