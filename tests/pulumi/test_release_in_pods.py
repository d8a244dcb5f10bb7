"""The program `e2e` on a real engine: a release in pods, by its charts and by its components."""

import asyncio
import shutil
from pathlib import Path

import pytest
from capelin.client import Client, Config
from capelin_embedded.binaries import CLUSTER_API, Binaries

from tests.e2e import cert_manager, kind_cluster
from tests.e2e.program_images import manager_image
from tests.e2e.release_images import RELEASE

from .bed import ROOT, Bed, Record, copied_project

pytestmark = pytest.mark.timeout(1800)

PROJECT = ROOT / "infra" / "e2e"
MANAGERS = ("cluster-api-controller", "kubeadm-bootstrap-controller")


async def archives(folder: Path) -> list[Path]:
    """Images of ours, and of the managers that cannot be pulled here, by their own names."""
    version = CLUSTER_API.versions[-1]
    programs = {
        f"registry.k8s.io/cluster-api/{name}:{version}": await Binaries().path(name)
        for name in MANAGERS
    }
    programs[cert_manager.IMAGE] = await cert_manager.program()
    others = [
        manager_image(program, reference, folder / f"{number}.tar")
        for number, (reference, program) in enumerate(programs.items())
    ]
    return [*_ours(), *others]


def _ours() -> list[Path]:
    return sorted(RELEASE.glob("images/*-linux-amd64.tar"))


OURS = {"capelin-control-plane", "capelin-machine-pool"}
KINDS = "/apis/controlplane.cluster.x-k8s.io/v1alpha1"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"


async def check_installation(kubeconfig: str, programs: set[str]) -> None:
    """However they were installed, programs run, kinds are served, and a role is aggregated."""
    async with Client(Config.from_kubeconfig(kubeconfig.encode())) as client:
        deployments = (await client.request("GET", "/apis/apps/v1/deployments"))["items"]
        available = {
            container["image"].rpartition("/")[2].partition(":")[0]
            for deployment in deployments
            if deployment["status"].get("availableReplicas")
            for container in deployment["spec"]["template"]["spec"]["containers"]
        }
        assert programs <= available
        assert await client.request("GET", KINDS)
        edit = await client.request("GET", f"{ROLES}/edit")
        assert any("clusters" in rule.get("resources", ()) for rule in edit["rules"])


async def test_a_release_in_an_existing_cluster_with_simulated_nodes(
    bed: Bed, tmp_path: Path, record_property: Record
) -> None:
    """Pods are Ready there without a container, so this shows all but what programs do."""
    dev = copied_project(ROOT / "infra" / "dev", tmp_path / "dev")
    await bed.run(dev, "stack", "init", "dev")
    await bed.run(dev, "up", "--yes", "--skip-preview")
    kubeconfig: str = (await bed.outputs(dev))["workloadKubeconfig"]
    # Charts keep their CRDs.
    for install in ("components", "charts"):
        project = copied_project(PROJECT, tmp_path / install)
        await bed.run(project, "stack", "init", install)
        settings = {"release": str(RELEASE), "install": install, "target": "existing"}
        # Webhooks of these would have to answer.
        without = dict.fromkeys(("certManager", "clusterApi", "lifecycle", "cluster"), "false")
        for name, value in {**settings, **without}.items():
            await bed.run(project, "config", "set", name, value)
        await bed.run(project, "config", "set", "--secret", "kubeconfig", kubeconfig)
        await passes_its_life(bed, project, record_property, kubeconfig, OURS)
    await bed.run(dev, "destroy", "--yes", "--skip-preview")


async def passes_its_life(
    bed: Bed, project: Path, record: Record, kubeconfig: str | None, programs: set[str]
) -> None:
    up = await bed.run(project, "up", "--yes", "--skip-preview")
    record(f"seconds of an up of {project.name} from nothing", round(up.seconds, 1))
    await check_installation(kubeconfig or (await bed.outputs(project))["kubeconfig"], programs)
    again = await bed.run(project, "up", "--yes", "--skip-preview", "--expect-no-changes")
    record(f"seconds of an up of {project.name} that changes nothing", round(again.seconds, 1))
    await bed.run(project, "refresh", "--preview-only", "--expect-no-changes")
    down = await bed.run(project, "destroy", "--yes", "--skip-preview")
    record(f"seconds of destroy of {project.name}", round(down.seconds, 1))
    assert await bed.resources(project) == []


@pytest.mark.parametrize("install", ["charts", "components"])
async def test_a_release_becomes_a_cluster_in_pods(
    bed: Bed, kind_name: str, tmp_path: Path, record_property: Record, install: str
) -> None:
    release = tmp_path / "release"
    release.mkdir()
    await asyncio.to_thread(shutil.copytree, RELEASE / "clusterctl", release / "clusterctl")
    for chart in RELEASE.glob("capelin-[0-9]*.tgz"):
        (release / chart.name).symlink_to(chart)
    cert_manager.use_own_image(release / "clusterctl")
    project = copied_project(PROJECT, tmp_path / install)
    await bed.run(project, "stack", "init", "e2e")
    settings = {
        "release": str(release),
        "install": install,
        "name": kind_name,
        "nodeImage": kind_cluster.IMAGE,
        "images": ",".join(map(str, await archives(tmp_path))),
    }
    for name, value in settings.items():
        await bed.run(project, "config", "set", name, value)
    await passes_its_life(bed, project, record_property, None, {*OURS, "capelin-lifecycle"})
    assert kind_name not in kind_cluster.names()
