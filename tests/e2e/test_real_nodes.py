"""Real kubelets join a control plane on pods by plain `kubeadm join`, and outlive its upgrade."""

import asyncio
import hashlib
import json
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
from capelin.api.core import ConfigMap, Node, Pod, Secret
from capelin.client import Client, Config
from capelin.embedded.binaries import Binaries
from capelin.testing.waiting import until
from capelin.yaml import read_all_yaml
from capelin_control_plane.backends.pods.port_forward import forwarded_port
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from .conftest import VERSIONS
from .hosted import Hosted, is_ready, under_load
from .kind_cluster import IMAGE, KindCluster

OLD, NEW = VERSIONS
POD_CIDR = "10.245.0.0/16"
TOKEN_ID, TOKEN_SECRET = "shoal1", "abcdef0123456789"
NODES = 2
WEB_PORT = 8080

pytestmark = [pytest.mark.timeout(1200), pytest.mark.needs_programs(f"kubectl@{NEW}")]


async def docker(*arguments: str, within: float = 300) -> str:
    process = await asyncio.create_subprocess_exec(
        "docker", *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    async with asyncio.timeout(within):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-3000:]
    return output.decode()


@asynccontextmanager
async def machines(kind: KindCluster, count: int) -> AsyncGenerator[list[str]]:
    """Containers that are machines without a cluster, as kind runs its nodes."""
    names = [f"{kind.name}-shoal-{index}-{uuid4().hex[:4]}" for index in range(count)]
    options = (
        *("--detach", "--tty", "--privileged", "--net=kind", "--cgroupns=private", "--init=false"),
        *("--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"),
        *("--tmpfs=/tmp", "--tmpfs=/run", "--volume=/var", "--volume=/lib/modules:/lib/modules:ro"),
    )
    try:
        for name in names:
            await docker("run", *options, f"--hostname={name}", f"--name={name}", IMAGE)
        for name in names:
            await until(lambda name=name: runs_containers(name), within=60)
        yield names
    finally:
        await docker("rm", "--force", "--volumes", *names)


async def runs_containers(machine: str) -> bool:
    try:
        await docker("exec", machine, "crictl", "info")
    except AssertionError:
        return False
    return True


async def test_machines_that_join_run_pods_and_outlive_an_upgrade(
    hosted: Hosted, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    images = json.loads(hosted.kind.on_node("crictl", "images", "--output=json"))["images"]
    tags = [tag for image in images for tag in image["repoTags"]]
    await hosted.create(
        OLD,
        replicas=2,
        etcd={"replicas": 3},
        network={"pods": {"cidrBlocks": [POD_CIDR]}},
        # Those that the machines have already.
        addons={
            "coreDNS": {"image": next(tag for tag in tags if "/coredns:" in tag)},
            "kubeProxy": {"image": next(tag for tag in tags if "/kube-proxy:" in tag)},
        },
    )
    await hosted.settles()
    async with hosted.workload() as workload, machines(hosted.kind, NODES) as names:
        await workload.create(bootstrap_token())
        for manifest in pod_network(hosted.kind):
            await workload.apply(manifest)
        await until(lambda: is_signed(workload))
        began = monotonic()
        join = await join_command(hosted)
        await asyncio.gather(*(docker("exec", name, *join) for name in names))

        async def are_ready() -> bool:
            nodes = (await workload.list(Node)).items
            return len(nodes) == NODES and all(map(node_is_ready, nodes))

        await until(are_ready, within=240)
        record_property(
            f"seconds: {NODES} machines joined and Ready", round(monotonic() - began, 1)
        )
        helper = next(tag for tag in tags if "local-path-helper" in tag)
        for index, name in enumerate(names):
            await workload.apply(web(f"web-{index}", helper, node=name))
        await workload.apply(web_service())
        await until(lambda: all_run(workload), within=240)
        await use(hosted, workload, tmp_path)
        before = await containers(workload)
        async with under_load(hosted, tmp_path) as clients:
            await hosted.change(version=NEW)
            await hosted.settles()
            assert clients.failed() == []
        assert clients.failed() == []
        await until(are_ready, within=60)
        after = await containers(workload)
        assert after == before
        await use(hosted, workload, tmp_path)


async def use(hosted: Hosted, workload: Client, folder: Path) -> None:
    """DNS, services, logs, exec and port-forward, of pods on each node."""
    kubeconfig = folder / "workload.kubeconfig"
    kubeconfig.write_bytes(await hosted.kubeconfig())

    async def kubectl(*arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            await Binaries().path("kubectl", NEW),
            f"--kubeconfig={kubeconfig}",
            *arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
        return output.decode()

    for index in range(NODES):
        name = f"web-{index}"
        assert "serving" in await kubectl("logs", name)
        in_pod = ("exec", name, "--", "/bin/busybox")
        answer = await kubectl(*in_pod, "nslookup", "web.default.svc.cluster.local")
        assert "web.default.svc.cluster.local" in answer, answer
        assert "10.9" in answer.rpartition("Name:")[2] or "10.10" in answer, answer

        async def is_answered(in_pod: tuple[str, ...] = in_pod) -> bool:
            return "shoal" in await kubectl(*in_pod, "wget", "-qO-", "http://web/")

        await until(is_answered, within=60)
        config = workload.config
        async with (
            forwarded_port(config, "default", name, WEB_PORT) as port,
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/") as response,
        ):
            assert "shoal" in await response.text()


async def all_run(workload: Client) -> bool:
    pods = (await workload.list(Pod)).items
    return len(pods) >= NODES and all(map(is_ready, pods))


async def containers(workload: Client) -> dict[str, int | None]:
    """By pod, how often its container was started again."""
    return {
        f"{pod.name} {pod.uid}": pod.status.container_statuses[0].restart_count
        for pod in (await workload.list(Pod)).items
    }


def node_is_ready(node: Node) -> bool:
    return any(state.type == "Ready" and state.status == "True" for state in node.status.conditions)


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


def bootstrap_token() -> Secret:
    return Secret.of(
        f"bootstrap-token-{TOKEN_ID}",
        "kube-system",
        type="bootstrap.kubernetes.io/token",
        data={
            "token-id": TOKEN_ID.encode(),
            "token-secret": TOKEN_SECRET.encode(),
            "usage-bootstrap-authentication": b"true",
            "usage-bootstrap-signing": b"true",
            "auth-extra-groups": b"system:bootstrappers:kubeadm:default-node-token",
        },
    )


async def is_signed(client: Client) -> bool:
    info = await client.get(ConfigMap, "cluster-info", "kube-public")
    return f"jws-kubeconfig-{TOKEN_ID}" in info.data


async def join_command(hosted: Hosted) -> tuple[str, ...]:
    server = Config.from_kubeconfig(await hosted.kubeconfig()).server
    assert isinstance(server.ca, bytes)
    key = x509.load_pem_x509_certificate(server.ca).public_key()
    encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return (
        *("kubeadm", "join", server.address.removeprefix("https://")),
        f"--token={TOKEN_ID}.{TOKEN_SECRET}",
        f"--discovery-token-ca-cert-hash=sha256:{hashlib.sha256(encoded).hexdigest()}",
        # A container is no machine; and the only kubelet at hand is the newer version's.
        "--ignore-preflight-errors=all",
    )
