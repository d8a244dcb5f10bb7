"""The page "Install", command by command, on a cluster with nodes and with released images."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pytest
from capelin.testing.waiting import until
from capelin_embedded.binaries import CLUSTER_API, Binaries
from capelin_release.tools import CERT_MANAGER, HELM

from tests.integration.repositories import Repository

from . import cert_manager
from .conftest import VERSIONS, load_programs
from .install_page import METHODS, PAGE, CommandFailedError, Method, Shell, sections, with_values
from .kind_cluster import KindCluster, kind_cluster
from .program_images import manager_image
from .release_images import RELEASE, archive_of, image_of

pytestmark = [pytest.mark.timeout(3600), pytest.mark.needs_programs("clusterctl", HELM)]

OLDER = "v0.1.0-alpha.1"
NAMES = ("capelin-control-plane", "capelin-machine-pool", "capelin-lifecycle")
MANAGERS = ("cluster-api-controller", "kubeadm-bootstrap-controller")
REGISTRY = "registry.example.com/capelin"
LABEL = "cluster.x-k8s.io/provider"
ONCE = ("Cluster API", "The client certificate of Cluster API")
"""Sections that both methods share."""
SECTIONS = list(sections(PAGE.read_text()))


def released_version() -> str:
    (folder,) = (RELEASE / "clusterctl" / "control-plane-capelin").iterdir()
    return folder.name


class Reader:
    """A user who follows the page."""

    def __init__(
        self, shell: Shell, values: dict[str, str], record: Callable[[str, object], None]
    ) -> None:
        self.shell, self._values, self._record = shell, values, record

    async def follow(self, title: str) -> str:
        """Run the commands of a section and record their time."""
        (section,) = [section for section in SECTIONS if section.title == title]
        started = monotonic()
        output = await self.shell.run(with_values(section.commands, self._values))
        self._record(f"seconds: {title}", round(monotonic() - started, 1))
        return output

    async def kubectl(self, arguments: str) -> str:
        return await self.shell.run(f"kubectl {arguments}")


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[KindCluster]:
    """A cluster whose node has all images, by the names that they have in a registry."""
    folder = tmp_path_factory.mktemp("kind")
    with kind_cluster(f"install-{uuid4().hex[:6]}", folder) as made:
        for name in NAMES:
            await asyncio.to_thread(made.load_archive, archive_of(name))
            for version in (OLDER, released_version()):
                made.tag_image(image_of(name), f"{REGISTRY}/{name}:{version}")
        programs = {
            f"{REGISTRY}/cluster-api/{name}:{CLUSTER_API.versions[-1]}": await Binaries().path(name)
            for name in MANAGERS
        }
        programs[cert_manager.IMAGE] = await cert_manager.program()
        for reference, program in programs.items():
            archive = manager_image(program, reference, folder / "manager.tar")
            await asyncio.to_thread(made.load_archive, archive)
        await load_programs(made, folder)
        yield made


@pytest.fixture(scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the page's release, with an older one."""
    folder = tmp_path_factory.mktemp("capelin")
    older = Repository(tmp_path_factory.mktemp("older"))
    await older.add_capelin(OLDER.removeprefix("v"))
    for dist in (older.folder / "dist", RELEASE):
        await asyncio.to_thread(shutil.copytree, dist / "clusterctl", folder, dirs_exist_ok=True)
        for chart in dist.glob("capelin-*.tgz"):
            shutil.copy(chart, folder)
    cert_manager.use_own_image(folder)
    return folder


@pytest.fixture(scope="module")
async def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, binary in (await Binaries().fetch(["clusterctl", "kubectl", HELM])).items():
        (folder / name).symlink_to(binary.path)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
async def reader(
    cluster: KindCluster,
    folder: Path,
    programs: Path,
    home: Path,
    record_property: Callable[[str, object], None],
) -> Reader:
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(home),
        "KUBECONFIG": str(cluster.kubeconfig),
        "GOPROXY": "off",
        "CLUSTERCTL_DISABLE_VERSIONCHECK": "true",
    }
    values = {
        "CAPELIN_VERSION": OLDER,
        "NEXT_CAPELIN_VERSION": released_version(),
        "CAPELIN_REPOSITORY": str(folder),
        "CAPELIN_REGISTRY": REGISTRY,
        "CAPELIN_EXPOSURE": "NodePort",
        "CLUSTER_API_VERSION": CLUSTER_API.versions[-1],
        "CERT_MANAGER_VERSION": CERT_MANAGER.default_version,
        "KUBERNETES_VERSION": VERSIONS[0],
        "NEXT_KUBERNETES_VERSION": VERSIONS[1],
    }
    return Reader(Shell(home, environment), values, record_property)


async def has_cluster_api(reader: Reader) -> bool:
    return "capi-system" in await reader.kubectl("get namespaces --output=name")


@pytest.mark.parametrize("method", METHODS)
async def test_the_page(reader: Reader, cluster: KindCluster, method: Method) -> None:
    await reader.follow("Settings")
    if not await has_cluster_api(reader):
        for title in ONCE:
            await reader.follow(title)
    steps = [
        section.title
        for section in SECTIONS
        if section.is_for(method) and section.title not in {"Settings", *ONCE}
    ]
    for title in steps:
        if title == "Several instances":
            continue
        output = await reader.follow(title)
        match title:
            case "Verify":
                await hooks_require_a_certificate(reader, cluster)
            case "The first cluster":
                assert await versions(reader) == {OLDER}
                await users_cannot_go_around_hooks(reader)
            case "Providers with clusterctl":
                assert "NEXT VERSION" in output
            case "Control planes and workers":
                assert await versions(reader) == {released_version()}
            case _:
                pass
    assert await versions(reader) == set()
    assert "capelincontrolplanes" in await reader.kubectl("get crds --output=name")


async def versions(reader: Reader) -> set[str]:
    """The versions of Capelin's images that Deployments have."""
    path = "'{.items[*].spec.template.spec.containers[*].image}'"
    images = await reader.kubectl(f"get deployments --all-namespaces --output=jsonpath={path}")
    return {image.rpartition(":")[2] for image in images.split() if f"{REGISTRY}/capelin-" in image}


async def hooks_require_a_certificate(reader: Reader, cluster: KindCluster) -> None:
    """From the node, to which NetworkPolicies do not apply."""
    found = json.loads(
        await reader.kubectl(
            f"get services --all-namespaces --selector={LABEL}=runtime-extension-lifecycle"
            " --output=json"
        )
    )
    (address,) = [
        service["spec"]["clusterIP"]
        for service in found["items"]
        if service["spec"]["ports"][0]["name"] == "hooks"
    ]
    url = f"https://{address}/hooks.runtime.cluster.x-k8s.io/v1alpha1/discovery"
    # Which error it is depends on when curl notices that the server ended the handshake.
    with pytest.raises(RuntimeError, match=r"curl: \((52|56)\)"):
        cluster.on_node("curl", "--silent", "--show-error", "--insecure", "--data", "{}", url)


async def users_cannot_go_around_hooks(reader: Reader) -> None:
    """An editor of the namespace changes the Cluster, and not what its topology owns."""
    await reader.kubectl(
        "create rolebinding mallory --namespace=default --clusterrole=edit --user=mallory"
    )
    try:
        for arguments in (
            "delete capelincontrolplanes --selector=cluster.x-k8s.io/cluster-name=demo",
            "delete capelinmachinepools --selector=cluster.x-k8s.io/cluster-name=demo",
        ):
            with pytest.raises(CommandFailedError, match="topology controller owns"):
                await reader.kubectl(f"{arguments} --namespace=default --as=mallory")
    finally:
        await reader.kubectl("delete rolebinding mallory --namespace=default")


async def test_another_namespace(reader: Reader) -> None:
    """The extension corrects its ExtensionConfig, which clusterctl leaves as it is."""
    await reader.follow("Settings")
    await another_namespace(reader)


async def another_namespace(reader: Reader) -> None:
    namespace = "hooks"
    await reader.shell.run(
        f"kubectl create namespace {namespace}\n"
        f"kubectl create configmap runtime-extension-client-ca --namespace={namespace}"
        " --from-file=ca.crt=client-ca.crt\n"
        f"clusterctl init --runtime-extension=lifecycle --target-namespace={namespace}"
        " --wait-providers\n"
        "kubectl wait extensionconfig/lifecycle --for=condition=Discovered --timeout=3m"
    )
    config = json.loads(await reader.kubectl("get extensionconfig lifecycle --output=json"))
    assert config["spec"]["clientConfig"]["service"]["namespace"] == namespace
    await reader.shell.run(
        "clusterctl delete --runtime-extension=lifecycle\n"
        f"kubectl delete clusterroles,clusterrolebindings"
        f" --selector={LABEL}=runtime-extension-lifecycle\n"
        f"kubectl delete namespace {namespace}"
    )


POOL = """
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: CapelinMachinePool
metadata:
  name: {name}
  namespace: default
  labels: {{{labels}}}
spec: {{}}
"""


async def test_an_instance_with_a_watch_filter(reader: Reader) -> None:
    await reader.follow("Settings")
    await reader.follow("Several instances")
    await only_filtered_objects_are_reconciled(reader)


async def only_filtered_objects_are_reconciled(reader: Reader) -> None:
    pools = {"others": "", "filtered": "cluster.x-k8s.io/watch-filter: blue"}
    for name, labels in pools.items():
        pool = POOL.format(name=name, labels=labels)
        await reader.shell.run(f"kubectl apply --filename=- <<EOF\n{pool}EOF")

    async def conditions(name: str) -> str:
        path = "'{.status.conditions}'"
        return await reader.kubectl(f"get capelinmachinepool {name} --output=jsonpath={path}")

    await until(lambda: conditions("filtered"), within=120)
    assert not await conditions("others")
    await reader.shell.run(
        "kubectl delete capelinmachinepools filtered others --namespace=default\n"
        "helm uninstall blue --namespace=capelin-blue --wait"
    )
