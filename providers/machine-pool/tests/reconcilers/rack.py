"""A rack of hosts in namespaces with real SSH servers, and the clusters whose nodes they become."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any, cast

from capelin.api.capi import MachinePool
from capelin.api.core import Node, Secret
from capelin.client import Client, Conflict, Destinations, NotFound, WorkloadClients
from capelin.contract import SECRET_TYPE, find_condition
from capelin.controller import Context
from capelin.testing.waiting import until
from capelin_machine_pool.api import CapelinMachine, CapelinMachinePool
from capelin_machine_pool.backends.hosts import HostsBackend
from capelin_machine_pool.bootstrap import Archives
from capelin_machine_pool.hosts.api import CapelinHost
from capelin_machine_pool.reconcilers import (
    HostReconciler,
    MachinePoolReconciler,
    MachineReconciler,
)

from tests.support.sandbox import Sandbox, sandbox
from tests.support.sshd import Server, sshd

from .fake_core import NAME, OLD, SameClient, World

LOOPBACK = Destinations((ip_network("127.0.0.0/8"),))
_NODE_INFO = (
    *("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion"),
    *("kubeletVersion", "machineID", "operatingSystem", "osImage", "systemUUID"),
)
SENTINEL = "/run/cluster-api/bootstrap-success.complete"
TOKEN = "abcdef.0123456789abcdef"
DATA = f"""\
## template: jinja
#cloud-config
write_files:
- path: /run/kubeadm/join.yaml
  permissions: '0640'
  content: |
    token: {TOKEN}
    name: {{{{ ds.meta_data.local_hostname }}}}
- path: /run/cluster-api/placeholder
  content: A placeholder
runcmd:
- kubeadm join --config /run/kubeadm/join.yaml && echo success > {SENTINEL}
"""


@dataclass
class RackHost:
    """A machine of the rack, and its SSH server."""

    name: str
    machine: Sandbox
    server: Server
    fresh: str = field(repr=False)
    """Its files, processes and settings before any bootstrap."""

    async def changes(self) -> set[str]:
        """The differences from the machine before any bootstrap."""
        found = await self.machine.fingerprint()
        return set(found.splitlines()) ^ set(self.fresh.splitlines())

    async def joins(self) -> int:
        """How many times it has joined a cluster."""
        return len(await self.joined())

    async def joined(self) -> list[str]:
        """The claims for which it has joined a cluster."""
        output = await self.machine.succeed("cat /var/log/joins 2>/dev/null; true")
        return [line.split()[-1] for line in output.splitlines()]

    async def upgrades(self) -> list[tuple[str, str]]:
        """The updates in place: version and claim."""
        output = await self.machine.succeed("cat /var/log/upgrades 2>/dev/null; true")
        words = (line.split() for line in output.splitlines())
        return [(word[-2], word[-1]) for word in words]

    async def kubelet(self) -> str:
        """The version of the installed kubelet."""
        result = await self.machine.run("kubelet --version")
        return result.output.decode().removeprefix("Kubernetes ").strip()


class LocalMachines(MachineReconciler):
    """Machines whose workload cluster is the management cluster."""

    def __init__(self, client: Client, archives: Archives | None = None) -> None:
        super().__init__({"Hosts": HostsBackend(archives)})
        self._client = client

    @asynccontextmanager
    async def lifespan(self, ctx: Context, /) -> AsyncGenerator[object]:
        del ctx
        self._workloads = cast("WorkloadClients", SameClient(self._client))
        yield


def reconcilers(
    client: Client, archives: Archives | None = None
) -> tuple[HostReconciler, LocalMachines, MachinePoolReconciler]:
    """The reconcilers of a provider."""
    machines = LocalMachines(client, archives)
    return HostReconciler(LOOPBACK, archives), machines, MachinePoolReconciler()


@asynccontextmanager
async def rack(folder: Path, count: int) -> AsyncGenerator[list[RackHost]]:
    """Machines without a claim."""
    async with AsyncExitStack() as stack:
        hosts: list[RackHost] = []
        for number in range(count):
            name = f"host-{number}"
            machine = await stack.enter_async_context(sandbox(folder, name))
            server = await stack.enter_async_context(sshd(machine))
            hosts.append(RackHost(name, machine, server, await machine.fingerprint()))
        yield hosts


class HostWorld(World):
    """A cluster whose pool consists of hosts, with core and kubelets in a few lines."""

    def __init__(self, client: Client, namespace: str, hosts: Sequence[RackHost]) -> None:
        super().__init__(client, namespace)
        self.rack = hosts
        self.reports_versions = False
        """Whether Nodes have the version of the installed kubelet."""

    async def start(self, replicas: int, **pool: Any) -> None:
        """Create the objects of a user: Secrets, hosts and the pool."""
        data = {"ssh-privatekey": b"", "value": DATA.encode()}
        secret = Secret.of("data", self.namespace, data={"value": data["value"]})
        await self.client.create(secret.model_copy(update={"type": SECRET_TYPE}))
        for host in self.rack:
            key = {"ssh-privatekey": host.server.user_key.encode()}
            await self.client.create(Secret.of(host.name, self.namespace, data=key))
            await self.client.create(self.manifest(host), resource=CapelinHost.resource)
        await self.begin({}, replicas, {"backend": "Hosts", **pool})

    def manifest(self, host: RackHost, **spec: Any) -> dict[str, Any]:
        """The object of a host."""
        return {
            "apiVersion": CapelinHost.resource.api_version,
            "kind": "CapelinHost",
            "metadata": {
                "name": host.name,
                "namespace": self.namespace,
                "labels": {"role": "worker"},
            },
            "spec": {
                "address": host.server.address,
                "port": host.server.port,
                "credentials": {"secretName": host.name},
                "hostKeys": [" ".join(host.server.host_key.split()[:2])],
                **spec,
            },
        }

    async def live(self) -> None:
        """Act as core and as kubelets for ever."""
        while True:
            with suppress(Conflict, NotFound):
                await self._kubelets()
                await self.core_step()
            await asyncio.sleep(0.2)

    async def hosts(self) -> list[CapelinHost]:
        return (await self.client.list(CapelinHost, self.namespace)).items

    async def phases(self) -> dict[str, str | None]:
        """The phase of each host."""
        return {host.name: host.status and host.status.phase for host in await self.hosts()}

    async def until_phases(self, **expected: int) -> None:
        """Wait until this many hosts have each phase."""
        wanted = sorted(phase for phase, count in expected.items() for _ in range(count))
        await until(
            self.phases,
            lambda phases: sorted(str(phase) for phase in phases.values()) == wanted,
            within=90,
        )

    async def until_nodes(self, count: int) -> None:
        """Wait until the pool has this many machines with Nodes."""

        async def provider_ids() -> int:
            pool = await self.client.get(CapelinMachinePool, NAME, self.namespace)
            machines = await self.instances()
            ready = [m for m in machines if m.status and m.status.initialization.provisioned]
            listed = len(pool.spec.provider_id_list)
            return listed if listed == len(ready) == len(machines) else -1

        await until(provider_ids, lambda found: found == count, within=90)

    async def scale(self, replicas: int) -> None:
        await self.client.patch(MachinePool, NAME, self.namespace, {"spec": {"replicas": replicas}})

    async def reason(self, host: str) -> tuple[str, str]:
        """The reason and the message of a host's condition Ready."""
        found = await self.client.get(CapelinHost, host, self.namespace)
        ready = find_condition(found.status.conditions, "Ready") if found.status else None
        return (ready.reason, ready.message) if ready else ("", "")

    async def _kubelets(self) -> None:
        """Create the Nodes of hosts that have joined, and delete those of deleted Machines."""
        machines = {machine.name for machine in await self.machines()}
        joined = {
            host.spec.claim.machine
            for host in await self.hosts()
            if host.spec.claim is not None and host.status and host.status.phase == "Ready"
        }
        nodes = (await self.client.list(Node)).items
        existing = {
            node.name for node in nodes if node.metadata.labels.get("world") == self.namespace
        }
        for name in existing - machines:
            await self.client.delete(Node, name)
        for name in (joined & machines) - existing:
            manifest = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"world": self.namespace}},
            }
            await self.client.create(manifest, resource=Node.resource)
        if self.reports_versions:
            await self._report_versions({node.name: node for node in nodes})
        self.cloud.instances = dict.fromkeys(existing & machines, OLD)

    async def _report_versions(self, nodes: dict[str, Node]) -> None:
        """Have the Nodes report the versions of the installed kubelets."""
        rack = {host.name: host for host in self.rack}
        for host in await self.hosts():
            node = nodes.get(host.spec.claim.machine) if host.spec.claim else None
            if node is None:
                continue
            version = await rack[host.name].kubelet()
            if version != node.status.node_info.kubelet_version:
                status = {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "nodeInfo": dict.fromkeys(_NODE_INFO, "") | {"kubeletVersion": version},
                }
                patch = {"status": status}
                await self.client.patch(Node, node.name, None, patch, subresource="status")

    async def machine_of(self, host: str) -> CapelinMachine | None:
        """The machine that has claimed a host."""
        found = await self.client.get(CapelinHost, host, self.namespace)
        claim = found.spec.claim
        if claim is None:
            return None
        return await self.client.find(CapelinMachine, claim.machine, self.namespace)
