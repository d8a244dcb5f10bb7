"""What a fault campaign acts on: an environment, a steady cluster under load, and probes."""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass
from capelin.api.core import ConfigMap, Node, Secret
from capelin.client import Client, ClientError, Config
from capelin.embedded.management import Environment, UpRequest, bring_up, remove_environment
from capelin.embedded.processes import Process
from capelin.testing.load import Load
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_infra.demo import demo_manifests
from capelin_infra.topology import DEMO_CLASS, ClusterOptions, new_cluster

NAMESPACE = "default"
STEADY = "steady"
ETCD, API_SERVERS, WORKERS = 3, 2, 2
CONTROL_PLANES, POOLS = "control-plane-capelin", "infrastructure-capelin"
AUTHORITIES = ("ca", "etcd", "proxy", "sa")
QUIET = ("RollingOut", "ScalingUp", "ScalingDown", "Remediating")
RECOVERY_LIMIT = 240.0
"""Seconds after which a fault counts as never recovered from."""


@dataclass
class World:
    """An environment with one cluster that has to survive everything."""

    environment: Environment
    client: Client
    authorities: dict[str, str] = field(default_factory=dict[str, str])
    lies: list[str] = field(default_factory=list[str])
    """When the cluster was called available for long although nobody could use it."""

    # Processes

    def management(self, name: str) -> Process | None:
        """A process of the environment itself."""
        return Process.adopt(self.environment.processes, name)

    @property
    def state_dir(self) -> Path:
        """Where the steady cluster's control plane lives; the only one with three etcd members."""
        folders = (self.environment.workloads / CONTROL_PLANES).iterdir()
        return next(folder for folder in folders if (folder / "run/etcd-2.process").exists())

    def instance(self, name: str) -> Process | None:
        """A process of the steady control plane."""
        return Process.adopt(self.state_dir / "run", name)

    def instances(self, component: str = "") -> list[str]:
        """The names of the processes of the steady control plane that run."""
        names = sorted(path.stem for path in (self.state_dir / "run").glob("*.process"))
        return [
            name
            for name in names
            if name.rpartition("-")[0] == component or not component
            if self.instance(name) is not None
        ]

    def kwok(self) -> Process | None:
        """The process that keeps the steady cluster's nodes alive."""
        folder = self.environment.workloads / POOLS / f"{NAMESPACE}.{STEADY}" / "run"
        return Process.adopt(folder, "kwok")

    # Clusters

    async def create(self, name: str, *, api_servers: int, etcd: int, version: str) -> None:
        """Create a cluster of the class `capelin`."""
        options = ClusterOptions(
            cluster_class=DEMO_CLASS,
            version=version,
            control_plane_replicas=api_servers,
            workers=WORKERS,
        )
        cluster_class = await self.client.get(ClusterClass, DEMO_CLASS, NAMESPACE)
        manifest: Any = new_cluster(name, NAMESPACE, version, options, cluster_class)
        if etcd != 1:
            variables: list[Unstructured] = manifest["spec"]["topology"].setdefault("variables", [])
            variables.append({"name": "etcdReplicas", "value": etcd})
        await self.client.create(manifest)

    async def control_plane(self, cluster: str) -> CapelinControlPlane | None:
        """The control plane of a cluster."""
        found = await self.client.find(Cluster, cluster, NAMESPACE)
        reference = found and found.spec.control_plane_ref
        if not reference or not reference.name:
            return None
        return await self.client.find(CapelinControlPlane, reference.name, NAMESPACE)

    async def is_settled(self, name: str, *, api_servers: int, version: str | None = None) -> bool:
        """Whether a cluster is as its spec has it, with nothing left to do, and says so."""
        found = await self.control_plane(name)
        if found is None or found.status is None:
            return False
        if found.status.observed_generation != found.metadata.generation:
            return False
        conditions = {condition.type: condition.status for condition in found.status.conditions}
        return (
            all(value == "True" for key, value in conditions.items() if key.endswith("Available"))
            and all(conditions.get(type_) == "False" for type_ in QUIET)
            and [(count.version, count.replicas) for count in found.status.versions]
            == [(version or found.spec.version, api_servers)]
        )

    async def kubeconfig(self, cluster: str = STEADY) -> Config:
        """How to talk to a cluster."""
        secret = await self.client.get(Secret, f"{cluster}-kubeconfig", NAMESPACE)
        return Config.from_secret(secret.data["value"])

    async def answers(self, config: Config) -> bool:
        """Whether the steady cluster serves a request over a new connection within two seconds."""
        try:
            async with asyncio.timeout(2), Client(config) as workload:
                await workload.list(Node)
        except (ClientError, OSError, TimeoutError):
            return False
        return True

    async def has_recovered(self, config: Config, *, nodes: bool) -> bool:
        """Whether everything that belongs to the steady cluster runs, answers and says so."""
        expected = ETCD + API_SERVERS + 3
        if len(self.instances()) != expected or not await self.answers(config):
            return False
        try:
            async with asyncio.timeout(5):
                if not await self.is_settled(STEADY, api_servers=API_SERVERS):
                    return False
                cluster = await self.client.get(Cluster, STEADY, NAMESPACE)
                if nodes and not await self._nodes_are_ready(config):
                    return False
        except (ClientError, OSError, TimeoutError):
            return False
        return any(
            condition.type == "Available" and condition.status == "True"
            for condition in cluster.status.conditions
        )

    @staticmethod
    async def _nodes_are_ready(config: Config) -> bool:
        async with Client(config) as workload:
            found = (await workload.list(Node)).items
        ready = [
            node
            for node in found
            if any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
        ]
        return len(ready) == len(found) == WORKERS

    async def check_authorities(self) -> None:
        """Every CA and key stays what it was when it was first seen."""
        for purpose in AUTHORITIES:
            secret = await self.client.find(Secret, f"{STEADY}-{purpose}", NAMESPACE)
            assert secret is not None, f"the secret of {purpose} is lost"
            data = secret.data["tls.crt"] + secret.data["tls.key"]
            digest = hashlib.sha256(data).hexdigest()
            assert self.authorities.setdefault(purpose, digest) == digest, purpose

    async def lost_writes(self, config: Config, loads: list[Load]) -> set[str]:
        """Acknowledged writes that are not there any more."""
        async with Client(config) as workload:
            kept = {found.name async for found in _config_maps(workload)}
        return {name for load in loads for name in load.written} - kept

    # Honesty

    async def watch_for_lies(self, config: Config, allowed: float) -> None:
        """Note whenever the control plane is called available for long while it does not answer."""
        since: float | None = None
        while True:
            await asyncio.sleep(0.5)
            if await self.answers(config):
                since = None
                continue
            try:
                async with asyncio.timeout(2):
                    found = await self.control_plane(STEADY)
            except (ClientError, OSError, TimeoutError):
                # Without the management cluster, nobody can say anything.
                since = None
                continue
            conditions = found.status.conditions if found and found.status else []
            if not any(c.type == "Available" and c.status == "True" for c in conditions):
                since = None
            elif since is None:
                since = time.monotonic()
            elif time.monotonic() - since > allowed:
                self.lies.append(f"Available for {allowed:g} s while no request was answered")
                since = None


async def _config_maps(workload: Client) -> AsyncGenerator[ConfigMap]:
    for found in (await workload.list(ConfigMap, NAMESPACE)).items:
        yield found


@asynccontextmanager
async def world(folder: Path, version: str) -> AsyncGenerator[World]:
    """An environment with the steady cluster in it, and nothing left of it afterwards."""
    environment = Environment(folder / "capelin" / "faults")
    try:
        request = UpRequest(kubernetes_version=version, providers=("kubeadm-bootstrap",))
        await bring_up(environment, request)
        config = Config.from_kubeconfig(environment.kubeconfig)
        async with Client(config) as client:
            made = World(environment, client)
            for manifest in demo_manifests():
                manifest["metadata"].setdefault("namespace", NAMESPACE)
                await client.apply(manifest)
            await made.create(STEADY, api_servers=API_SERVERS, etcd=ETCD, version=version)

            async def usable() -> bool:
                settled = await made.is_settled(STEADY, api_servers=API_SERVERS)
                return settled and await made.has_recovered(await made.kubeconfig(), nodes=True)

            await until(usable, within=300)
            await made.check_authorities()
            yield made
    finally:
        with suppress(FileNotFoundError):
            await remove_environment(environment)
