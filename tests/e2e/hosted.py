"""A control plane on the pods of a kind cluster, and clients that use it all the time."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from capelin.api.capi import Cluster
from capelin.api.core import Pod, Secret
from capelin.client import Client, Config
from capelin.contract import CLUSTER_NAME_LABEL, KUBECONFIG_KEY, reference_to
from capelin.testing.load import Load
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane

from .kind_cluster import KindCluster

_URL = "/api/v1/namespaces/default/configmaps?number=[1-1000000]"
_PAUSE_SECONDS = 0.05
_LONGEST_LOAD = "900s"
_CERTIFICATES = ("ca.crt", "client.crt", "client.key")


@dataclass(frozen=True)
class Hosted:
    """A control plane on pods."""

    kind: KindCluster
    client: Client
    namespace: str
    name: str

    async def create(self, version: str, **spec: Any) -> None:
        """Create the control plane, and the Cluster that it is of."""
        resource = CapelinControlPlane.resource
        reference = {"apiGroup": resource.group, "kind": resource.kind, "name": self.name}
        metadata = {"name": self.name, "namespace": self.namespace}
        cluster = await self.client.create(
            Cluster.read({"metadata": metadata, "spec": {"controlPlaneRef": reference}})
        )
        spec = {
            "version": version,
            "backend": "Pods",
            "pods": {"exposure": {"type": "NodePort"}},
            **spec,
        }
        mine = CapelinControlPlane.read({"metadata": metadata, "spec": spec})
        mine.metadata.labels = {CLUSTER_NAME_LABEL: self.name}
        mine.metadata.owner_references = [reference_to(cluster, controller=True)]
        await self.client.create(mine)

    async def get(self) -> CapelinControlPlane:
        """The control plane as it is."""
        return await self.client.get(CapelinControlPlane, self.name, self.namespace)

    async def change(self, **spec: Any) -> None:
        """Change fields of its spec."""
        await self.client.patch(CapelinControlPlane, self.name, self.namespace, {"spec": spec})

    async def conditions(self) -> Mapping[str, str]:
        """The status of each of its conditions."""
        status = (await self.get()).status
        return {each.type: each.status for each in (status.conditions if status else [])}

    async def is_settled(self) -> bool:
        """Whether it is as its spec says, and nothing of before is left."""
        mine = await self.get()
        status, spec = mine.status, mine.spec
        if status is None or status.observed_generation != mine.metadata.generation:
            return False
        conditions = {each.type: each.status for each in status.conditions}
        pods = await self.pods()
        return (
            status.replicas == status.ready_replicas == status.up_to_date_replicas == spec.replicas
            and [each.version for each in status.versions] == [spec.version]
            and conditions["RollingOut"] == "False"
            and all(
                conditions[type_] == "True"
                for type_ in ("Available", "ControllerManagerAvailable", "SchedulerAvailable")
            )
            and all(pod.metadata.deletion_timestamp is None for pod in pods)
        )

    async def settles(self) -> None:
        """Wait until it is as its spec says."""
        await until(self.is_settled, within=240)

    async def pods(self, component: str | None = None) -> list[Pod]:
        """Its pods."""
        labels = {"app.kubernetes.io/instance": self.name}
        if component is not None:
            labels["app.kubernetes.io/component"] = component
        return (await self.client.list(Pod, self.namespace, labels=labels)).items

    async def kubeconfig(self) -> bytes:
        """The administrator's kubeconfig of the workload cluster."""
        secret = await self.client.get(Secret, f"{self.name}-kubeconfig", self.namespace)
        return secret.data[KUBECONFIG_KEY]

    @asynccontextmanager
    async def workload(self) -> AsyncGenerator[Client]:
        """A client of the workload cluster."""
        config = Config.from_kubeconfig(await self.kubeconfig())
        async with Client(config, manager="e2e") as client:
            yield client


@asynccontextmanager
async def under_load(hosted: Hosted, folder: Path) -> AsyncGenerator[Callable[[], list[str]]]:
    """Clients outside and on the node, HTTP/1.1 and HTTP/2, with new and kept connections.

    Gives what lists the requests that failed. As Kubernetes' own clients, they obey a server that
    ends and says 429 with Retry-After, and one that closes a kept connection before it answers.
    """
    kubeconfig = await hosted.kubeconfig()
    config = Config.from_kubeconfig(kubeconfig)
    load = Load(config, pause=_PAUSE_SECONDS)
    _write_certificates(kubeconfig, folder, hosted.kind)
    answers: dict[str, list[str]] = {}

    def failed() -> list[str]:
        return [
            *(request for request in load.failed if ": 429 " not in request),
            *(
                f"{client}: {answer}"
                for client, lines in answers.items()
                for answer in lines
                if not answer.startswith("200")
            ),
        ]

    async def everybody_asks(since: Mapping[str, int], count: int) -> bool:
        return all(len(lines) >= since.get(name, 0) + count for name, lines in answers.items())

    tasks = [asyncio.create_task(load.run())]
    for where, prefix in (
        ("outside", ()),
        # What an exec has started does not end with it.
        ("on the node", ("docker", "exec", hosted.kind.node, "timeout", _LONGEST_LOAD)),
    ):
        for protocol in ("http1.1", "http2"):
            lines = answers[f"{where}, {protocol}"] = []
            command = (*prefix, *_curl(config.server.address, folder, protocol))
            tasks.append(asyncio.create_task(_ask(command, lines)))
    try:
        await until(lambda: everybody_asks({}, 20), within=60)
        yield failed
        # Of its own: on a slow machine, one client may be far behind another.
        before = {name: len(lines) for name, lines in answers.items()}
        await until(lambda: everybody_asks(before, 20), within=60)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        hosted.kind.on_node("sh", "-c", "pkill curl || true")


def _curl(server: str, folder: Path, protocol: str) -> tuple[str, ...]:
    """Requests over one connection for as long as it lasts, and the status of each."""
    ca, certificate, key = (str(folder / name) for name in _CERTIFICATES)
    return (
        *("curl", "--silent", "--output", "/dev/null", f"--{protocol}", "--rate", "20/s"),
        *("--retry", "3"),
        *("--cacert", ca, "--cert", certificate, "--key", key),
        *(
            "--write-out",
            "%{stderr}%{http_code} over HTTP/%{http_version}, curl's error %{exitcode}\\n",
        ),
        server + _URL,
    )


async def _ask(command: tuple[str, ...], lines: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        while line := await process.stderr.readline():
            lines.append(line.decode().strip())
        lines.append("curl has ended")
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _write_certificates(kubeconfig: bytes, folder: Path, kind: KindCluster) -> None:
    document = cast("dict[str, Any]", yaml.safe_load(kubeconfig))
    user = document["users"][0]["user"]
    contents = (
        document["clusters"][0]["cluster"]["certificate-authority-data"],
        user["client-certificate-data"],
        user["client-key-data"],
    )
    kind.on_node("mkdir", "-p", str(folder))
    for name, content in zip(_CERTIFICATES, contents, strict=True):
        path = folder / name
        path.write_bytes(base64.b64decode(content))
        kind.copy_to_node(path)
