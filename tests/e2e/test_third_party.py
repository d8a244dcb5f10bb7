"""The release of a new provider and of a new extension, installed and used on kind.

The commands are those of `capelin new`, of the projects' READMEs, and of the pages "How your users
install it" and "Install".
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest
from capelin.client import Client, Config
from capelin.testing.waiting import until
from capelin.yaml import read_yaml
from capelin_cli.status.readiness import wait_until_ready
from capelin_embedded.binaries import Binaries
from capelin_release.charts import dump_yaml
from capelin_release.tools import HELM

from tests.integration.repositories import REGISTRY, Repository
from tests.integration.second_version import release_second_version
from tests.integration.third_party import (
    USERS,
    CommandFailedError,
    Shell,
    blocks,
    build_wheels,
    new,
    release,
)

from .cluster_api import WAITING, add_cluster_api, load_managers
from .conftest import VERSIONS, load_programs
from .install_page import PAGE, sections
from .kind_cluster import KindCluster, kind_cluster
from .release_images import archive_of, image_of
from .test_installation import CHARTS, LABELS, VERSION

pytestmark = [pytest.mark.timeout(3600), pytest.mark.needs_programs("clusterctl", HELM)]

CAPELIN = f"{sys.executable} -m capelin_cli"
MACHINE_CRD = "mycloudmachines.infrastructure.cluster.x-k8s.io"
LARGE = json.dumps({"spec": {"size": "large"}})
OLD_MACHINES = "mycloudmachines.v1alpha1.infrastructure.cluster.x-k8s.io"
MACHINES = "mycloudmachines.v1beta1.infrastructure.cluster.x-k8s.io"
PROVIDER_IS_AVAILABLE = (
    "kubectl wait --for=condition=Available --namespace=infrastructure-my-cloud-system"
    " deployment --all --timeout=5m"
)
SECOND = "0.2.0"
"""The version of the provider's second release."""
RELEASES = "https://github.com/example/{name}/releases/latest"


@dataclass(frozen=True)
class Projects:
    """Two projects of one author, with their releases."""

    provider: Path
    extension: Path
    source: Shell
    """The project of the provider."""


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Projects:
    wheels = build_wheels(tmp_path_factory.mktemp("wheels"))
    shell = Shell(tmp_path_factory.mktemp("projects"), tmp_path_factory.mktemp("home"))
    run = f"tool run --find-links {wheels} --reinstall --from capelin"
    provider, extension = (
        new(shell, run, f"{arguments} --find-links {wheels}")
        for arguments in ("provider my-cloud", "extension my-hooks")
    )
    made = Projects(release(provider), release(extension), provider)
    release_second_version(provider, made.provider)
    return made


@pytest.fixture(scope="module")
async def cluster(
    projects: Projects, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[KindCluster]:
    """A cluster whose node has all images, without Cluster API."""
    folder = tmp_path_factory.mktemp("kind")
    with kind_cluster(f"third-{uuid4().hex[:6]}", folder) as made:
        await load_managers(made, folder)
        for name in CHARTS:
            await asyncio.to_thread(made.load_archive, archive_of(name))
            made.tag_image(image_of(name), f"{REGISTRY}/{name}:v{VERSION}")
        for dist in (projects.provider, projects.extension):
            for archive in dist.glob("images/*-linux-amd64.tar"):
                await asyncio.to_thread(made.load_archive, archive)
        await load_programs(made, folder)
        yield made


@pytest.fixture(scope="module")
async def user(
    projects: Projects, cluster: KindCluster, tmp_path_factory: pytest.TempPathFactory
) -> Shell:
    """The shell of a user with Cluster API, Capelin, and the configuration of the page."""
    repository = Repository(tmp_path_factory.mktemp("repository"))
    await repository.add_capelin(VERSION)
    await add_cluster_api(repository, dict.fromkeys(LABELS, f"v{VERSION}"))
    config: dict[str, Any] = read_yaml(repository.config.read_text())
    (page,) = blocks(USERS, "yaml")
    folder = f"file://{projects.provider}/clusterctl/infrastructure-my-cloud/v{SECOND}"
    added: dict[str, Any] = read_yaml(page.replace(RELEASES.format(name="my-cloud"), folder))
    of_extension = {
        "name": "my-hooks",
        "type": "RuntimeExtensionProvider",
        "url": f"file://{projects.extension}/clusterctl/runtime-extension-my-hooks"
        f"/v{VERSION}/runtime-extension-components.yaml",
    }
    config["providers"] += [*added["providers"], of_extension]

    home = tmp_path_factory.mktemp("user")
    programs = home / "bin"
    programs.mkdir()
    for name, binary in (await Binaries().fetch(["clusterctl", "kubectl"])).items():
        (programs / name).symlink_to(binary.path)
    configured = home / "cluster-api"
    configured.mkdir()
    (configured / "clusterctl.yaml").write_text(dump_yaml(config))
    shell = Shell(home, home)
    variables = {
        "PATH": f"{programs}:{shell.variables['PATH']}",
        "XDG_CONFIG_HOME": str(home),
        "KUBECONFIG": str(cluster.kubeconfig),
        "CLUSTERCTL_DISABLE_VERSIONCHECK": "true",
        "GOPROXY": "off",
        "CLUSTER_TOPOLOGY": "true",
        "EXP_MACHINE_POOL": "true",
        "EXP_RUNTIME_SDK": "true",
        "CAPELIN_EXPOSURE": "NodePort",
        "CAPELIN_BACKEND": "Pods",
    }
    user = Shell(home, home, variables)
    init = "clusterctl init --core cluster-api --bootstrap kubeadm --control-plane capelin"
    await in_shell(user, f"{init} --infrastructure capelin {' '.join(WAITING)}")
    return user


async def in_shell(user: Shell, commands: str) -> str:
    return await asyncio.to_thread(user.run, commands)


async def found(user: Shell, arguments: str) -> list[Any]:
    return json.loads(await in_shell(user, f"kubectl get {arguments} --output=json"))["items"]


async def is_ready(cluster: KindCluster, name: str) -> None:
    progress: list[str] = []
    async with Client(Config.from_kubeconfig(cluster.kubeconfig)) as client:
        await wait_until_ready(client, name, "default", 600, progress.append)


async def test_users_create_a_cluster_of_a_new_provider(
    user: Shell, cluster: KindCluster, record_property: Callable[[str, object], None]
) -> None:
    started = monotonic()
    # The page installs the latest release, and this user an older one.
    latest, older = "init --infrastructure my-cloud", "init --infrastructure my-cloud:v0.1.0"
    install = blocks(USERS, "bash")[0].replace(latest, older)
    await in_shell(user, install)
    await in_shell(user, PROVIDER_IS_AVAILABLE)
    record_property("seconds: clusterctl init until the provider runs", monotonic() - started)
    await in_shell(user, "kubectl apply --filename demo.yaml")
    (without_load_balancer,) = blocks(USERS, "sh")
    await in_shell(user, without_load_balancer)
    await is_ready(cluster, "demo")
    record_property("seconds: until the cluster is ready", monotonic() - started)
    (machine,) = await found(user, "mycloudmachines")
    assert machine["status"]["initialization"]["provisioned"] is True
    assert machine["status"]["addresses"]
    (owner,) = await found(user, "machines")
    assert owner["spec"]["providerID"] == machine["spec"]["providerID"]


async def test_users_upgrade_to_a_release_with_another_version_of_a_kind(
    user: Shell, cluster: KindCluster, record_property: Callable[[str, object], None]
) -> None:
    (before,) = await found(user, OLD_MACHINES)
    upgrade, migrate = blocks(USERS, "bash")[3].strip().splitlines()
    started = monotonic()
    await in_shell(user, upgrade)
    await in_shell(user, PROVIDER_IS_AVAILABLE)

    async def is_converted() -> bool:
        try:
            (machine,) = await found(user, MACHINES)
        except CommandFailedError:  # cert-manager has not written the CA into the CRD yet.
            return False
        return machine["spec"]["flavor"] == before["spec"]["size"]

    await until(is_converted, within=120)
    record_property("seconds: clusterctl upgrade until objects convert", monotonic() - started)
    await is_ready(cluster, "demo")
    # The template is stored in the old version.
    await in_shell(user, "kubectl scale machinedeployment demo --replicas=2")
    scaled = "machinedeployment/demo --for=jsonpath='{.status.readyReplicas}'=2"
    await in_shell(user, f"kubectl wait {scaled} --timeout=3m")
    machines = await found(user, MACHINES)
    kept = before["metadata"]["uid"], before["spec"]["providerID"]
    assert kept in [(each["metadata"]["uid"], each["spec"]["providerID"]) for each in machines]
    assert [each["spec"]["flavor"] for each in machines] == ["small", "small"]

    # Also in the old version of the kind.
    name = before["metadata"]["name"]
    with pytest.raises(CommandFailedError, match=r"spec\.flavor: must stay small"):
        await in_shell(user, f"kubectl patch {OLD_MACHINES} {name} --type=merge --patch='{LARGE}'")

    await asyncio.to_thread(user.run, migrate.replace("capelin ", f"{CAPELIN} "))
    (stored,) = await found(user, f"crds --field-selector=metadata.name={MACHINE_CRD}")
    assert stored["status"]["storedVersions"] == ["v1beta1"]
    await in_shell(user, "kubectl delete cluster demo --timeout=5m")
    assert await found(user, "mycloudmachines,mycloudclusters") == []


PATCH = {
    "name": "motto",
    "external": {
        "generatePatchesExtension": "motto-v1.my-hooks",
        "discoverVariablesExtension": "variables-v1.my-hooks",
    },
}


async def test_a_cluster_uses_a_new_extension(user: Shell, cluster: KindCluster) -> None:
    (certificate,) = [
        section.commands
        for section in sections(PAGE.read_text())
        if section.title == "The client certificate of Cluster API"
    ]
    await in_shell(user, certificate)
    await in_shell(user, blocks(USERS, "bash")[2])

    older, newer = VERSIONS
    generate = "clusterctl generate cluster guarded --target-namespace=default"
    counts = "--control-plane-machine-count=1 --worker-machine-count=1"
    await in_shell(
        user,
        f"{generate} --infrastructure=capelin:v{VERSION} --kubernetes-version={older} {counts}"
        " > guarded.yaml\nkubectl apply --filename guarded.yaml",
    )
    await is_ready(cluster, "guarded")

    # GeneratePatches writes a file of every worker.
    patch = json.dumps([{"op": "add", "path": "/spec/patches/-", "value": PATCH}])
    await in_shell(user, f"kubectl patch clusterclass capelin --type=json --patch='{patch}'")

    async def workers_have_the_motto() -> bool:
        configs = await found(user, "kubeadmconfigs")
        files = [file for config in configs for file in config["spec"].get("files", ())]
        return {"path": "/etc/motd", "content": "swim"} in files

    await until(workers_have_the_motto, within=180)

    # BeforeClusterUpgrade holds an upgrade back.
    topology = json.dumps({"spec": {"topology": {"version": newer}}})
    await in_shell(user, "kubectl annotate cluster guarded my-hooks/no-upgrades=please")
    await in_shell(user, f"kubectl patch cluster guarded --type=merge --patch='{topology}'")

    async def upgrade_waits() -> bool:
        (shown,) = await found(user, "clusters")
        messages = [x.get("message", "") for x in shown["status"]["conditions"]]
        return any("BeforeClusterUpgrade" in message for message in messages)

    async def is_upgraded() -> bool:
        (control_plane,) = await found(user, "capelincontrolplanes")
        return control_plane["status"]["version"] == newer

    await until(upgrade_waits, within=180)
    assert not await is_upgraded()
    await in_shell(user, "kubectl annotate cluster guarded my-hooks/no-upgrades-")
    await until(is_upgraded, within=300)
    await is_ready(cluster, "guarded")
    await in_shell(user, "kubectl delete cluster guarded --timeout=5m")
