"""Projects of other people, from `capelin new` to their users, with the printed commands."""

import json
import threading
from collections.abc import AsyncGenerator, Generator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from capelin.client import Client, Config
from capelin.testing.waiting import wait_until
from capelin.yaml import read_yaml
from capelin_embedded.addresses import free_port
from capelin_embedded.apiserver import ApiServer
from capelin_embedded.binaries import Binaries
from capelin_release.charts import dump_yaml
from capelin_release.repository import write_upstream
from capelin_release.tools import HELM

from .repositories import CLUSTER_API, cert_manager_crds
from .third_party import ROOT, USERS, Shell, blocks, build_wheels, new, release, write_index

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(1800),
    pytest.mark.needs_programs("clusterctl", HELM, "kubectl"),
]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Generator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("projects"), tmp_path_factory.mktemp("home"))
    yield shell
    for project in sorted(shell.folder.glob("*/uv.lock")):
        shell.project(project.parent.name).run("uv run capelin down --yes || true")


@pytest.fixture(scope="module")
def provider(shell: Shell, wheels: Path) -> Shell:
    """A provider whose Capelin comes from a folder of wheels."""
    run = f"tool run --find-links {wheels} --reinstall --from capelin"
    return new(shell, run, f"provider my-cloud --find-links {wheels}")


@pytest.fixture(scope="module")
def released(provider: Shell) -> Path:
    return release(provider)


def addresses(provider: Shell) -> list[str]:
    path = "{.items[*].status.addresses[*].address}"
    return provider.run(f"uv run capelin kubectl get mycloudmachines -o jsonpath='{path}'").split()


def test_a_cluster_of_a_new_provider_comes_up_and_the_provider_can_change(provider: Shell) -> None:
    _, environment, _ = blocks(provider.folder / "README.md", "sh")
    shown = provider.run(environment)
    assert "Cluster/demo" in shown
    assert [address.rpartition(".example")[2] for address in addresses(provider)] == [".com"]

    cloud = provider.folder / "src" / "my_cloud" / "cloud.py"
    cloud.write_text(cloud.read_text().replace(".example.com", ".example.net"))
    provider.run("uv run capelin up --management-only")
    provider.run("uv run capelin kubectl scale machinedeployment demo --replicas=2")
    provider.run("uv run capelin wait cluster demo")
    endings = {address.rpartition(".example")[2] for address in addresses(provider)}
    assert ".net" in endings
    provider.run("uv run capelin kubectl delete cluster demo --timeout=5m")
    assert addresses(provider) == []
    provider.run("uv run capelin down --yes")


@pytest.mark.parametrize("contract", ["infra-cluster", "infra-machine", "clusterctl"])
def test_a_release_keeps_its_contracts(provider: Shell, released: Path, contract: str) -> None:
    checked = f"uv run capelin conformance {contract} --manifests {released} --output json"
    results = json.loads(provider.run(f"{checked} 2>/dev/null"))["results"]
    broken = [each for each in results if each["outcome"] in {"failed", "advice"}]
    assert broken == []
    assert sum(each["outcome"] == "ok" for each in results) > 5


@pytest.fixture
async def bare(own_api_server: ApiServer) -> AsyncGenerator[Client]:
    """An API server with cert-manager's kinds, and nothing else."""
    async with Client(Config.from_kubeconfig(own_api_server.kubeconfig)) as client:
        for crd in await cert_manager_crds():
            await client.apply(crd)
        yield client


async def user(
    tmp_path: Path, own_api_server: ApiServer, released: Path, *, commands: str
) -> dict[str, str]:
    """What the commands of the page print to a user, by command; without network access."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("clusterctl", HELM):
        path = await Binaries().path(program)
        (programs / path.name.split("@")[0]).symlink_to(path)
    await write_upstream(tmp_path / "upstream", modified=0)
    (page,) = blocks(USERS, "yaml")
    config = read_yaml(
        page.replace(
            "https://github.com/example/my-cloud/releases/latest",
            f"file://{released}/clusterctl/infrastructure-my-cloud/v0.1.0",
        )
    )
    base = f"file://{tmp_path}/upstream/clusterctl"
    for label, name, type_, file in (
        ("cluster-api", "cluster-api", "CoreProvider", "core"),
        ("bootstrap-kubeadm", "kubeadm", "BootstrapProvider", "bootstrap"),
    ):
        url = f"{base}/{label}/{CLUSTER_API}/{file}-components.yaml"
        config["providers"].append({"name": name, "type": type_, "url": url})
    folder = tmp_path / "config" / "cluster-api"
    folder.mkdir(parents=True)
    (folder / "clusterctl.yaml").write_text(dump_yaml(config))
    shell = Shell(tmp_path, tmp_path)
    more = {
        "PATH": f"{programs}:{shell.variables['PATH']}",
        "XDG_CONFIG_HOME": str(folder.parent),
        "KUBECONFIG": str(own_api_server.kubeconfig),
        "CLUSTERCTL_DISABLE_VERSIONCHECK": "true",
        "GOPROXY": "off",
    }
    lines = commands.replace("\\\n", "").strip().splitlines()
    return {line.split(" -")[0]: Shell(tmp_path, tmp_path, more).run(line) for line in lines}


async def test_users_install_a_release_with_clusterctl(
    bare: Client, own_api_server: ApiServer, released: Path, tmp_path: Path
) -> None:
    with_clusterctl = blocks(USERS, "bash")[0]
    # The template needs no control plane provider of machines.
    commands = with_clusterctl.replace(
        "clusterctl init ", "clusterctl init --bootstrap kubeadm --control-plane - "
    )
    printed = await user(tmp_path, own_api_server, released, commands=commands)
    described = printed["clusterctl generate provider"]
    assert "MY_CLOUD_INFRASTRUCTURE_CONCURRENCY" in described
    assert "registry.example/my-cloud/my-cloud:v0.1.0" in described
    assert "MyCloudCluster" in (tmp_path / "demo.yaml").read_text()
    found = await bare.request("GET", "/apis/clusterctl.cluster.x-k8s.io/v1alpha3/providers")
    versions = {item["metadata"]["name"]: item["version"] for item in found["items"]}
    assert versions["infrastructure-my-cloud"] == "v0.1.0"


async def test_users_install_a_release_with_helm(
    bare: Client, own_api_server: ApiServer, released: Path, tmp_path: Path
) -> None:
    chart = released / "my-cloud-0.1.0.tgz"
    published = "oci://registry.example.com/my-cloud/charts/my-cloud --version 0.1.0"
    commands = blocks(USERS, "bash")[1]
    assert published in commands
    await user(tmp_path, own_api_server, released, commands=commands.replace(published, str(chart)))
    name = "mycloudmachines.infrastructure.cluster.x-k8s.io"
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    definition = await bare.request("GET", path)
    assert definition["spec"]["names"]["kind"] == "MyCloudMachine"
    assert "deletionTimestamp" not in definition["metadata"]


def test_an_extension_of_a_checkout(shell: Shell) -> None:
    run = f"run --no-project --with-editable {ROOT}/infra"
    project = new(shell, run, "extension storage-guard")
    _, begin, go_on, *_ = blocks(project.folder / "README.md", "sh")
    up, certificate, serve = begin.strip().splitlines()
    project.run(f"{up}\n{certificate}")
    port, probes = free_port("127.0.0.1"), free_port("127.0.0.1")
    server = project.start(f"{serve} --port {port} --probes-port {probes}")
    try:
        lines = [
            line.replace(":9443", f":{port}")
            for line in go_on.splitlines()
            if "capelin hooks " in line
        ]
        register, listed, conformance, call, unregister = lines

        def registered() -> bool | None:
            try:
                project.run(register)
            except Exception:
                if server.poll() is not None:
                    raise
                return None
            return True

        wait_until(registered)
        assert "no-upgrades.storage-guard" in project.run(listed)
        assert "none failed" in project.run(conformance)
        assert "/etc/motd" in project.run(call)
        project.run(unregister)
    finally:
        server.terminate()
        server.communicate()
    dist = release(project)
    components = dist / "runtime-extension-components.yaml"
    assert "name: storage-guard\n" in components.read_text()


@pytest.fixture
def index(wheels: Path, tmp_path: Path) -> Generator[str]:
    """The URL of a package index that has Capelin's wheels."""
    write_index(wheels, tmp_path)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()
        thread.join()


def test_a_provider_of_an_index(shell: Shell, index: str) -> None:
    run = f"tool run --index {index} --reinstall --from capelin"
    release(new(shell, run, f"provider from-index --index {index}"))
