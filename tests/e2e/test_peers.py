"""From nothing to the log of a pod: Capelin on both targets, and Cluster API's quick start.

Each test types the commands of a user and records their durations, with all images and programs
present. Durations are comparable if all tests run in one session.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pytest
from capelin.testing.waiting import until
from capelin.yaml import write_yaml
from capelin_embedded.binaries import Binaries

from tests.integration.homes import Home
from tests.integration.repositories import Repository

from . import capd, kind_cluster
from .cluster_api import add_cluster_api, load_managers
from .install_page import Shell
from .kind_cluster import IMAGE, KindCluster
from .machines import KUBECTL, POD_CIDR, docker, images_of, pod_network

NODES = 2
SCRIPT = "echo serving; exec busybox sleep 100000"
POD = (
    f"kubectl run web --image=$POD_IMAGE --command -- /bin/busybox sh -c '{SCRIPT}'",
    "kubectl wait pod web --for=condition=Ready --timeout=120s",
)
SOCKET = Path("/var/run/docker.sock")
Record = Callable[[str, object], None]

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.needs_programs("clusterctl", f"kubectl@{KUBECTL}"),
]


@dataclass
class Session:
    """A shell with a clock. It keeps the commands and the end of their output."""

    shell: Shell
    record: Record
    seconds: float = 0.0
    lines: list[str] = field(default_factory=list[str])

    async def type(self, command: str) -> str:
        """Run a command, and count its time."""
        began = monotonic()
        output = await self.shell.run(command)
        self.count(command, monotonic() - began)
        self.lines += output.splitlines()
        return output

    def count(self, name: str, seconds: float) -> None:
        self.seconds += seconds
        self.lines.append(f"$ {name}  # {seconds:.1f} s")

    async def run_a_pod(self) -> None:
        for command in POD:
            await self.type(command)
        assert await self.type("kubectl logs web") == "serving\n"
        self.record("seconds: from nothing to the log of a pod", round(self.seconds, 1))
        self.record("load after", os.getloadavg()[0])
        self.record("transcript", "\n".join(self.lines))


@pytest.fixture
async def session(tmp_path: Path, record_property: Record) -> Session:
    """A user with `capelin`, kind, clusterctl and kubectl on the PATH."""
    home, programs, user = Home(tmp_path / "home"), tmp_path / "programs", tmp_path / "user"
    for folder in (programs, user):
        folder.mkdir()
    for name, path in {
        "kubectl": await Binaries().path("kubectl", KUBECTL),
        "clusterctl": await Binaries().path("clusterctl"),
    }.items():
        (programs / name).symlink_to(path)
    path = f"{programs}:{Path(sys.executable).parent}:{home.variables['PATH']}"
    variables = {**home.variables, "PATH": path, "CAPELIN_MACHINE_IMAGE": IMAGE}
    record_property("load before", os.getloadavg()[0])
    return Session(Shell(user, variables), record_property)


@pytest.fixture
async def name(tmp_path: Path) -> AsyncGenerator[str]:
    """The name of an environment, which is removed in the end."""
    name = f"peer-{uuid4().hex[:6]}"
    yield name
    home = Home(tmp_path / "home")
    if home.environment(name).exists:
        ended = await home.capelin("down", "--yes", "-e", name)
        assert ended.code == 0, ended.err
    kind_cluster.delete(f"capelin-{name}")


async def helper_image() -> str:
    """An image of the nodes with a shell."""
    listed = await docker(
        "run", "--rm", "--entrypoint=cat", IMAGE, "/kind/manifests/default-storage.yaml"
    )
    return listed.partition("--helper-image")[2].split()[1]


@pytest.mark.parametrize("target", ["process", "kind"])
async def test_capelin(session: Session, name: str, target: str) -> None:
    await session.shell.run(f"export POD_IMAGE={await helper_image()} CAPELIN_ENVIRONMENT={name}")
    options = f" --target kind --node-image {IMAGE}" if target == "kind" else ""
    up = await session.type(f"capelin up --machines containers --workers {NODES}{options}")
    assert "machines are containers in which pods run" in up
    await session.shell.run("export KUBECONFIG=$(capelin kubeconfig demo)")
    await session.run_a_pod()


@pytest.fixture
async def capd_images() -> AsyncGenerator[None]:
    if shutil.which(capd.HAPROXY, path="/usr/sbin:/usr/bin") is None:
        pytest.fail("the machine has no program haproxy")
    async with capd.images(KUBECTL):
        yield


@pytest.mark.usefixtures("capd_images")
async def test_kind_with_clusterctl_and_capd(session: Session, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    await add_cluster_api(repository, {})
    await capd.add_quick_start(repository)
    began = monotonic()
    folder = tmp_path / "kind"
    folder.mkdir()
    context = kind_cluster.kind_cluster(
        f"peer-{uuid4().hex[:6]}", folder, mounts={SOCKET: str(SOCKET)}
    )
    cluster = await asyncio.to_thread(context.__enter__)
    try:
        session.count("kind create cluster --config kind.yaml --wait 120s", monotonic() - began)
        # Somebody with a registry pulls these images: their time does not count.
        await load_managers(cluster, tmp_path)
        await capd.load_managers(cluster, tmp_path)
        await quick_start(session, cluster, repository)
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def quick_start(session: Session, cluster: KindCluster, repository: Repository) -> None:
    """The commands of Cluster API's quick start with Docker, and those for its pod network."""
    shell = session.shell
    helper = next(tag for tag in images_of(cluster) if "local-path-helper" in tag)
    variables = {
        "POD_IMAGE": helper,
        "POD_CIDR": f"'[\"{POD_CIDR}\"]'",
        "KUBECONFIG": str(cluster.kubeconfig),
        "CLUSTER_TOPOLOGY": "true",
        "CLUSTERCTL_DISABLE_VERSIONCHECK": "true",
        "GOPROXY": "off",
    }
    exports = " ".join(f"{key}={value}" for key, value in variables.items())
    network = "---\n".join(write_yaml(each) for each in pod_network(cluster))
    (repository.folder / "network.yaml").write_text(network)
    await shell.run(f"export {exports}\ncp {repository.folder}/network.yaml .")
    config = f"--config={repository.config}"
    await session.type(f"clusterctl init --infrastructure docker --wait-providers {config}")
    counts = f"--control-plane-machine-count=1 --worker-machine-count={NODES}"
    generate = f"clusterctl generate cluster quick --flavor development {counts} {config}"
    apply = f"{generate} --kubernetes-version {KUBECTL} | kubectl apply -f -"
    # The webhooks of CAPD serve some seconds after its Deployment is available.
    await session.type(f"until {apply}; do sleep 1; done")
    condition = "--for=jsonpath='{.status.initialization.controlPlaneInitialized}'=true"
    await session.type(f"kubectl wait cluster quick {condition} --timeout=300s")
    await session.type(f"clusterctl get kubeconfig quick {config} > quick.kubeconfig")
    await shell.run("export KUBECONFIG=quick.kubeconfig")
    await session.type("kubectl apply -f network.yaml")
    began = monotonic()

    async def are_ready() -> bool:
        output = await shell.run("kubectl get nodes --no-headers")
        return output.count(" Ready ") == NODES + 1

    await until(are_ready, within=400)
    session.count("kubectl get nodes --watch", monotonic() - began)
    await session.run_a_pod()
    await shell.run(f"KUBECONFIG={cluster.kubeconfig} kubectl delete cluster quick --timeout=120s")
