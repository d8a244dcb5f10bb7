"""The program `e2e` on a real engine and a kind cluster: all of a release in pods."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from capelin_embedded.binaries import CLUSTER_API, Binaries

from tests.e2e import cert_manager, kind_cluster
from tests.e2e.program_images import manager_image
from tests.e2e.release_images import RELEASE

from .bed import ROOT, Bed, copied_project

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


async def test_a_release_becomes_a_cluster_in_pods(
    bed: Bed, kind_name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    repository = tmp_path / "clusterctl"
    await asyncio.to_thread(shutil.copytree, RELEASE / "clusterctl", repository)
    cert_manager.use_own_image(repository)
    project = copied_project(PROJECT, tmp_path / "project")
    await bed.run(project, "stack", "init", "e2e")
    settings = {
        "repository": str(repository),
        "name": kind_name,
        "nodeImage": kind_cluster.IMAGE,
        "images": ",".join(map(str, await archives(tmp_path))),
    }
    for name, value in settings.items():
        await bed.run(project, "config", "set", name, value)
    up = await bed.run(project, "up", "--yes", "--skip-preview")
    record_property("seconds of an up from nothing", round(up.seconds, 1))
    assert (await bed.outputs(project))["endpoint"]
    again = await bed.run(project, "up", "--yes", "--skip-preview", "--expect-no-changes")
    record_property("seconds of an up that changes nothing", round(again.seconds, 1))
    down = await bed.run(project, "destroy", "--yes", "--skip-preview")
    record_property("seconds of destroy", round(down.seconds, 1))
    assert await bed.resources(project) == []
    assert kind_name not in kind_cluster.names()
