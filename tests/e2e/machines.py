"""Real kubelets: containers that act as machines, join a control plane on pods and run pods."""

import asyncio
import json
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
from capelin.api.core import Node, Pod
from capelin.client import Client, Config
from capelin.contract import READY, is_condition_true
from capelin.testing.waiting import until
from capelin.yaml import read_all_yaml
from capelin_control_plane.backends.pods.membership import forwarded_port
from capelin_embedded.binaries import Binaries

from tests.joining import BootstrapToken, ca_cert_hash
from tests.support.control_planes import ControlPlane

from .conftest import VERSIONS
from .hosted import Hosted, is_ready
from .kind_cluster import IMAGE, KindCluster

POD_CIDR = "10.245.0.0/16"
WEB_PORT = 8080
KUBECTL = VERSIONS[-1]
KUBELET = {
    "runtime-cgroups": "/system.slice/containerd.service",
    "cgroup-root": "/kubelet",
    "eviction-hard": "nodefs.available<0%,imagefs.available<0%,nodefs.inodesFree<0%",
}
"""Flags of kind's own nodes, since all share a disk that may be full."""


async def docker(*arguments: str, content: bytes | None = None, within: float = 300) -> str:
    """Output of a docker command with optional input."""
    process = await asyncio.create_subprocess_exec(
        "docker",
        *arguments,
        stdin=subprocess.DEVNULL if content is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    async with asyncio.timeout(within):
        output, _ = await process.communicate(content)
    assert process.returncode == 0, output.decode()[-3000:]
    return output.decode()


async def start_machine(name: str, *, network: str = "kind") -> None:
    """Start a container that is a machine without a cluster, as kind runs its nodes.

    Its network is that of kind clusters unless it is for another one.
    """
    options = (
        *(
            "--detach",
            "--tty",
            "--privileged",
            f"--net={network}",
            "--cgroupns=private",
            "--init=false",
        ),
        *("--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"),
        *("--tmpfs=/tmp", "--tmpfs=/run", "--volume=/var", "--volume=/lib/modules:/lib/modules:ro"),
        *(f"--hostname={name}", f"--name={name}"),
    )
    await docker("run", *options, IMAGE)
    await until(lambda: runs_containers(name), within=60)


async def remove_machine(name: str) -> None:
    await docker("rm", "--force", "--volumes", name)


@asynccontextmanager
async def machines(kind: KindCluster, count: int) -> AsyncGenerator[list[str]]:
    """Machines without a cluster."""
    names = [f"{kind.name}-shoal-{index}-{uuid4().hex[:4]}" for index in range(count)]
    flags = " ".join(f"--{flag}={value}" for flag, value in KUBELET.items())
    try:
        for name in names:
            await start_machine(name)
            write = f"echo KUBELET_EXTRA_ARGS='{flags}' >/etc/default/kubelet"
            await docker("exec", name, "sh", "-c", write)
        yield names
    finally:
        for name in names:
            await remove_machine(name)


async def runs_containers(machine: str) -> bool:
    try:
        await docker("exec", machine, "crictl", "info")
    except AssertionError:
        return False
    return True


def images_of(kind: KindCluster) -> list[str]:
    """The images of its nodes, and of machines that run the same one."""
    images = json.loads(kind.on_node("crictl", "images", "--output=json"))["images"]
    return [tag for image in images for tag in image["repoTags"]]


def addons(kind: KindCluster) -> dict[str, Any]:
    """Add-ons with the images that machines have already."""
    tags = images_of(kind)
    return {
        "coreDNS": {"image": next(tag for tag in tags if "/coredns:" in tag)},
        "kubeProxy": {
            "image": next(tag for tag in tags if "/kube-proxy:" in tag),
            # Containers may not change settings of the kernel.
            "conntrackMaxPerCore": 0,
        },
    }


async def load_on(machine: str, archive: Path) -> None:
    """Load an image from an archive as `docker save` writes it."""
    await docker("cp", str(archive), f"{machine}:/root/image.tar")
    load = ("ctr", "--namespace=k8s.io", "images", "import", "/root/image.tar")
    await docker("exec", machine, *load)


async def join(hosted: Hosted, workload: Client, names: Sequence[str]) -> None:
    """Join machines with `kubeadm join` and wait until their nodes are ready."""
    token = BootstrapToken()
    await workload.create(token.manifest)
    await prepare_for_machines(hosted, workload)
    await until(lambda: token.is_signed(workload))
    command = await join_command(hosted, token)
    await asyncio.gather(*(docker("exec", name, *command) for name in names))
    await until(lambda: are_ready(workload, len(names)), within=240)


async def prepare_for_machines(hosted: Hosted, workload: Client) -> None:
    """Add the pod network for container machines to a workload cluster."""
    for manifest in pod_network(hosted.kind):
        await workload.apply(manifest)


async def are_ready(workload: Client, count: int) -> bool:
    """Whether exactly this many nodes exist, all ready."""
    nodes = (await workload.list(Node)).items
    return len(nodes) == count and all(map(node_is_ready, nodes))


async def run_pods(hosted: Hosted, workload: Client, names: Sequence[str]) -> None:
    """Run a pod on each machine, behind one service."""
    helper = next(tag for tag in images_of(hosted.kind) if "local-path-helper" in tag)
    for index, name in enumerate(names):
        await workload.apply(web(f"web-{index}", helper, node=name))
    await workload.apply(web_service())
    await until(lambda: all_run(workload, len(names)), within=240)


async def use(hosted: ControlPlane, workload: Client, count: int, folder: Path) -> None:
    """Check DNS, services, logs, exec and port-forward of the pods of this many machines."""
    address = await kubectl(
        hosted, folder, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"
    )
    for index in range(count):
        name = f"web-{index}"
        assert "serving" in await kubectl(hosted, folder, "logs", name)
        in_pod = ("exec", name, "--", "/bin/busybox")
        lookup = ("nslookup", "web.default.svc.cluster.local")
        answer = await kubectl(hosted, folder, *in_pod, *lookup)
        assert f"web.default.svc.cluster.local\nAddress: {address}\n" in f"{answer}\n", answer

        async def is_answered(in_pod: tuple[str, ...] = in_pod) -> bool:
            fetch = ("wget", "-qO-", "http://web/")
            return "shoal" in await kubectl(hosted, folder, *in_pod, *fetch)

        await until(is_answered, within=60)
        async with (
            forwarded_port(workload.config, "default", name, WEB_PORT) as port,
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/") as response,
        ):
            assert "shoal" in await response.text()


async def kubectl(hosted: ControlPlane, folder: Path, *arguments: str) -> str:
    """Output of kubectl as the administrator of the workload cluster."""
    kubeconfig = folder / "workload.kubeconfig"
    kubeconfig.write_bytes(await hosted.kubeconfig())
    process = await asyncio.create_subprocess_exec(
        await Binaries().path("kubectl", KUBECTL),
        f"--kubeconfig={kubeconfig}",
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    return output.decode()


async def all_run(workload: Client, count: int) -> bool:
    pods = (await workload.list(Pod)).items
    return len(pods) >= count and all(map(is_ready, pods))


@dataclass(frozen=True)
class Nodes:
    """The Nodes of a workload cluster and the containers of its pods."""

    uids: Mapping[str, str]
    containers: Mapping[str, int | None]

    @classmethod
    async def read(cls, workload: Client) -> "Nodes":
        nodes = (await workload.list(Node)).items
        return cls({node.name: node.uid for node in nodes}, await containers(workload))


async def containers(workload: Client) -> Mapping[str, int | None]:
    """Container restarts by pod."""
    return {
        f"{pod.name} {pod.uid}": pod.status.container_statuses[0].restart_count
        for pod in (await workload.list(Pod)).items
    }


def node_is_ready(node: Node) -> bool:
    return is_condition_true(node.status.conditions, READY)


def web(name: str, image: str, node: str) -> dict[str, Any]:
    page = "mkdir /www; echo shoal >/www/index.html; echo serving"
    script = f"{page}; busybox httpd -f -p {WEB_PORT} -h /www"
    container = {
        "name": "web",
        "image": image,
        "command": ["/bin/busybox", "sh", "-c", script],
        "readinessProbe": {"httpGet": {"path": "/", "port": WEB_PORT}, "periodSeconds": 1},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
        "spec": {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0},
    }


def web_service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": WEB_PORT}]},
    }


def pod_network(kind: KindCluster) -> list[Any]:
    """The pod network that kind gives its own nodes."""
    text = kind.on_node("cat", "/kind/manifests/default-cni.yaml")
    return list(read_all_yaml(text.replace("{{ .PodSubnet }}", POD_CIDR)))


async def join_command(hosted: Hosted, token: BootstrapToken) -> tuple[str, ...]:
    server = Config.from_kubeconfig(await hosted.kubeconfig()).server
    assert isinstance(server.ca, bytes)
    return (
        *("kubeadm", "join", server.address.removeprefix("https://")),
        f"--token={token}",
        f"--discovery-token-ca-cert-hash={ca_cert_hash(server.ca)}",
        # A container fails preflight checks, and the only kubelet has the newer version.
        "--ignore-preflight-errors=all",
    )
