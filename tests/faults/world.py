"""The subjects of a campaign: an environment, its clusters, their processes and checks."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass
from capelin.api.core import ConfigMap, Node, Secret
from capelin.client import Client, ClientError, Config
from capelin.contract import READY, is_condition_true
from capelin.testing.waiting import until
from capelin_cli.clusters.demo import demo_manifests
from capelin_cli.clusters.topology import (
    DEMO_CLASS,
    ClusterOptions,
    ScaleOptions,
    new_cluster,
    scale_patch,
)
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.backends.processes.components import api_server_port, etcd_port
from capelin_embedded.management import Environment, UpRequest, bring_up, remove_environment
from capelin_embedded.processes import Process

from tests.faults.interposer import ApiProxy, Clock
from tests.load import Load

NAMESPACE = "default"
CONTROL_PLANES, POOLS = "control-plane-capelin", "infrastructure-capelin"
AUTHORITIES = ("ca", "etcd", "proxy", "sa")
QUIET = ("RollingOut", "ScalingUp", "ScalingDown", "Remediating")
UNREACHABLE = (ClientError, OSError, TimeoutError)
OK = 200
PORTS = {"etcd": etcd_port, "kube-apiserver": api_server_port}
LOAD_PAUSE = 0.2


@dataclass
class World:
    """An environment with its interposed clock and API."""

    environment: Environment
    client: Client
    proxy: ApiProxy
    clock: Clock

    def process(self, name: str) -> Process | None:
        return Process.adopt(self.environment.processes, name)

    def cluster(self, name: str, *, api_servers: int = 1, etcd: int = 1) -> "ClusterUnderTest":
        """A cluster of the environment, which need not exist yet."""
        return ClusterUnderTest(self, name, api_servers=api_servers, etcd=etcd)


@dataclass
class ClusterUnderTest:
    """A cluster of the class `capelin`, with its processes and promises."""

    world: World
    name: str
    api_servers: int = 1
    etcd: int = 1
    workers: int = 2
    authorities: dict[str, str] = field(default_factory=dict[str, str])
    false_conditions: list[str] = field(default_factory=list[str])
    """Periods of a false condition Available."""
    loads: list[Load] = field(default_factory=list[Load])
    _access: "tuple[bytes, Load] | None" = None

    # Processes

    @property
    def state_dir(self) -> Path | None:
        """The state folder of its control plane."""
        state = self.world.environment.workloads / CONTROL_PLANES
        for owner in state.glob("*/owner.json"):
            with suppress(OSError, ValueError):
                if json.loads(owner.read_bytes())["cluster"] == self.name:
                    return owner.parent
        return None

    def instance(self, name: str) -> Process | None:
        return None if self.state_dir is None else Process.adopt(self.state_dir / "run", name)

    def instances(self, component: str = "") -> list[str]:
        """The names of its control plane's running processes."""
        if self.state_dir is None:
            return []
        names = sorted(path.stem for path in (self.state_dir / "run").glob("*.process"))
        return [
            name
            for name in names
            if name.rpartition("-")[0] == component or not component
            if self.instance(name) is not None
        ]

    def kwok(self) -> Process | None:
        """The process that renews the leases of its nodes."""
        folder = self.world.environment.workloads / POOLS / f"{NAMESPACE}.{self.name}" / "run"
        return Process.adopt(folder, "kwok")

    # Changes

    async def create(self, version: str) -> None:
        options = ClusterOptions(
            cluster_class=DEMO_CLASS,
            version=version,
            control_plane_replicas=self.api_servers,
            workers=self.workers,
        )
        cluster_class = await self.world.client.get(ClusterClass, DEMO_CLASS, NAMESPACE)
        manifest: Any = new_cluster(self.name, NAMESPACE, version, options, cluster_class)
        if self.etcd != 1:
            variables: list[Unstructured] = manifest["spec"]["topology"].setdefault("variables", [])
            variables.append({"name": "etcdReplicas", "value": self.etcd})
        await self.world.client.create(manifest)

    async def patch_topology(self, topology: dict[str, object]) -> None:
        patch = {"spec": {"topology": topology}}
        await self.world.client.patch(Cluster, self.name, NAMESPACE, patch)

    async def scale_workers(self, count: int) -> None:
        cluster = await self.world.client.get(Cluster, self.name, NAMESPACE)
        patch = scale_patch(cluster, ScaleOptions(workers=count))
        await self.world.client.patch(Cluster, self.name, NAMESPACE, patch, type="json")
        self.workers = count

    async def patch_control_plane(self, spec: dict[str, object]) -> None:
        """Change fields of its control plane that its class does not set."""
        found = await self.control_plane()
        assert found is not None
        await self.world.client.patch(CapelinControlPlane, found.name, NAMESPACE, {"spec": spec})

    async def annotate(self, annotation: str, value: str) -> None:
        found = await self.control_plane()
        assert found is not None
        patch = {"metadata": {"annotations": {annotation: value}}}
        await self.world.client.patch(CapelinControlPlane, found.name, NAMESPACE, patch)

    async def delete(self) -> None:
        await self.world.client.delete(Cluster, self.name, NAMESPACE)

    async def is_gone(self) -> bool:
        return await self.world.client.find(Cluster, self.name, NAMESPACE) is None

    # State

    async def control_plane(self) -> CapelinControlPlane | None:
        found = await self.world.client.find(Cluster, self.name, NAMESPACE)
        reference = found and found.spec.control_plane_ref
        if not reference or not reference.name:
            return None
        return await self.world.client.find(CapelinControlPlane, reference.name, NAMESPACE)

    async def is_settled(self, *, api_servers: int | None = None, version: str = "") -> bool:
        """Whether its status reports that everything matches its spec."""
        found = await self.control_plane()
        if found is None or found.status is None:
            return False
        if found.status.observed_generation != found.metadata.generation:
            return False
        conditions = {condition.type: condition.status for condition in found.status.conditions}
        return (
            all(value == "True" for key, value in conditions.items() if key.endswith("Available"))
            and all(conditions.get(type_) == "False" for type_ in QUIET)
            and [(count.version, count.replicas) for count in found.status.versions]
            == [(version or found.spec.version, api_servers or self.api_servers)]
        )

    async def kubeconfig(self) -> Config:
        return (await self._access_now()).config

    async def _access_now(self) -> Load:
        """A client with the current credentials in its secret, parsed once."""
        secret = await self.world.client.get(Secret, f"{self.name}-kubeconfig", NAMESPACE)
        data = secret.data["value"]
        if self._access is None or self._access[0] != data:
            self._access = data, Load(Config.from_secret(data))
        return self._access[1]

    async def nodes(self) -> list[Node] | None:
        """Its nodes, if it answers over a new connection within two seconds."""
        access = await self._access_now()
        try:
            async with asyncio.timeout(2):
                answer = await access.exchange("GET", "/api/v1/nodes", None)
        except (OSError, EOFError, TimeoutError):
            return None
        if answer.status != OK:
            return None
        return [Node.read(item) for item in json.loads(answer.text)["items"]]

    async def is_well(self, *, nodes: bool) -> bool:
        """Whether all its parts run, answer and are reported as ready."""
        try:
            async with asyncio.timeout(10):
                # The conditions may be older than the fault.
                if not await self._all_run() or not await self.is_settled():
                    return False
                found = await self.nodes()
                if found is None or (nodes and not self._are_ready(found)):
                    return False
                cluster = await self.world.client.get(Cluster, self.name, NAMESPACE)
        except UNREACHABLE:
            return False
        return any(
            condition.type == "Available" and condition.status == "True"
            for condition in cluster.status.conditions
        )

    async def _all_run(self) -> bool:
        """Whether all processes run and all servers accept connections."""
        folder, names = self.state_dir, self.instances()
        if folder is None or len(names) != self.etcd + self.api_servers + 3:
            return False
        # The provider may not have detected a hanging process yet.
        if any(_is_stopped(self.instance(name)) for name in names):
            return False
        for name in names:
            component, _, index = name.rpartition("-")
            if component in PORTS:
                port = PORTS[component](int(index))
                try:
                    _, writer = await asyncio.open_connection(folder.name, port)
                except OSError:
                    return False
                writer.close()
        return True

    def _are_ready(self, nodes: list[Node]) -> bool:
        ready = [node for node in nodes if is_condition_true(node.status.conditions, READY)]
        return len(ready) == len(nodes) == self.workers

    # Promises

    async def check_authorities(self) -> None:
        """No CA or key changes after its first observation."""
        for purpose in AUTHORITIES:
            secret = await self.world.client.find(Secret, f"{self.name}-{purpose}", NAMESPACE)
            assert secret is not None, f"the secret of {purpose} of {self.name} is lost"
            data = secret.data["tls.crt"] + secret.data["tls.key"]
            digest = hashlib.sha256(data).hexdigest()
            assert self.authorities.setdefault(purpose, digest) == digest, purpose

    async def put_under_load(self) -> list[asyncio.Task[None]]:
        """Write to it over new and kept connections until cancelled."""
        config = await self.kubeconfig()
        self.loads = [Load(config, pause=LOAD_PAUSE, keeps=keeps) for keeps in (False, True)]
        return [asyncio.create_task(load.run()) for load in self.loads]

    async def lost_writes(self) -> set[str]:
        """Acknowledged writes that are missing."""
        async with Client(await self.kubeconfig()) as workload:
            kept = {found.name async for found in _config_maps(workload)}
        return {name for load in self.loads for name in load.written} - kept

    async def watch_availability(self, allowed: float) -> None:
        """Record periods in which it is reported as available but does not answer."""
        since: float | None = None
        while True:
            await asyncio.sleep(1)
            is_silent = False
            with suppress(*UNREACHABLE):
                async with asyncio.timeout(5):
                    is_silent = await self._is_available() and await self.nodes() is None
            if not is_silent:
                since = None
            elif since is None:
                since = time.monotonic()
            elif time.monotonic() - since > allowed:
                self.false_conditions.append(
                    f"{self.name}: Available for {allowed:g} s while no request was answered, at"
                    f" {datetime.now(UTC):%H:%M:%S}"
                )
                since = None

    async def _is_available(self) -> bool:
        found = await self.control_plane()
        conditions = found.status.conditions if found and found.status else []
        return any(c.type == "Available" and c.status == "True" for c in conditions)


def _is_stopped(process: Process | None) -> bool:
    """Whether a process is stopped by SIGSTOP."""
    if process is None:
        return False
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:
        return False
    return fields.rpartition(")")[2].split()[0] == "T"


async def _config_maps(workload: Client) -> AsyncGenerator[ConfigMap]:
    for found in (await workload.list(ConfigMap, NAMESPACE)).items:
        yield found


@asynccontextmanager
async def world(folder: Path, version: str, proxy: ApiProxy, clock: Clock) -> AsyncGenerator[World]:
    """An environment with the class of the demo, which is removed afterwards."""
    environment = Environment(folder / "capelin" / "faults")
    try:
        async with proxy.serving():
            request = UpRequest(kubernetes_version=version, providers=("kubeadm-bootstrap",))
            proxy.kubeconfig = environment.kubeconfig
            await bring_up(environment, request)
            config = Config.from_kubeconfig(environment.kubeconfig)
            async with Client(config) as client:
                for manifest in demo_manifests():
                    manifest["metadata"].setdefault("namespace", NAMESPACE)
                    await client.apply(manifest)
                yield World(environment, client, proxy, clock)
    finally:
        with suppress(FileNotFoundError):
            await remove_environment(environment)


async def bring_up_clusters(clusters: list[ClusterUnderTest], version: str) -> None:
    """Create clusters and wait until all are ready."""
    for cluster in clusters:
        await cluster.create(version)
    for cluster in clusters:
        await until(lambda cluster=cluster: cluster.is_well(nodes=True), within=300)
        await cluster.check_authorities()
