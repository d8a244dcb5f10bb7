"""Cluster API's quick start with Docker (CAPD): its images, and a repository for clusterctl.

Components and templates come from Cluster API's modules. The machine has no registry, so images
that a user pulls are made here: managers of static programs, and Debian's haproxy on a node image.
"""

import asyncio
import re
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from capelin.yaml import read_yaml
from capelin_embedded.binaries import Binaries
from capelin_release.charts import dump_yaml
from capelin_release.upstream import as_released

from tests.integration.repositories import CLUSTER_API, Repository, run

from .kind_cluster import IMAGE, KindCluster
from .machines import docker
from .node_images import node_image
from .program_images import manager_image

HAPROXY: Final = "haproxy"
"""The program of Debian's package, which the load balancer of CAPD runs."""
_CONFIG: Final = "/usr/local/etc/haproxy/haproxy.cfg"
_FIRST_CONFIG: Final = """
defaults
  mode tcp
  timeout connect 5s
  timeout client 5s
  timeout server 5s
frontend stats
  bind *:8404
"""
# CAPD configures 100,000 connections, for which an engine may permit too few open files.
_WRAPPER: Final = """#!/bin/sh
exec {program} -n 4000 "$@"
"""
PAUSE: Final = "registry.k8s.io/pause:3.10.1"
"""The image that kubeadm checks. The node has it under another name."""
_PROVIDERS: Final = {
    "control-plane-kubeadm": (
        "ControlPlaneProvider",
        "kubeadm-control-plane-controller",
        "cluster-api",
        "controlplane/kubeadm",
    ),
    "infrastructure-docker": (
        "InfrastructureProvider",
        "capd-manager",
        "cluster-api/test",
        "infrastructure/docker",
    ),
}
"""By label: the type for clusterctl, the manager's program, its module and its folder there."""


async def load_managers(cluster: KindCluster, folder: Path) -> None:
    """Load the managers' images to a cluster. That of CAPD needs root for the engine's socket."""
    for _, program, *_ in _PROVIDERS.values():
        user = "0" if program == "capd-manager" else "65532"
        file, name = await Binaries().path(program), f"localhost/{program}:e2e"
        archive = manager_image(file, name, folder / "manager.tar", user=user)
        await asyncio.to_thread(cluster.load_archive, archive)


async def add_quick_start(repository: Repository) -> None:
    """Add KubeadmControlPlane, and CAPD with the templates of its quick start."""
    config = read_yaml(repository.config.read_text())
    for label, (type_, _, module, path) in _PROVIDERS.items():
        kind, _, name = label.rpartition("-")
        folder = repository.folder / "dist" / "clusterctl" / label / CLUSTER_API
        source = await Binaries().module_dir(module, CLUSTER_API)
        core = await Binaries().module_dir("cluster-api", CLUSTER_API)
        await asyncio.to_thread(folder.mkdir, parents=True)
        kubectl = await Binaries().path("kubectl")
        text = await run([kubectl, "kustomize", source / path / "config" / "default"])
        (folder / f"{kind}-components.yaml").write_text(as_released(text, CLUSTER_API))
        shutil.copy(core / "metadata.yaml", folder)
        for template in (source / path / "templates").glob("*.yaml"):
            shutil.copy(template, folder)
        url = f"file://{folder}/{kind}-components.yaml"
        config["providers"].append({"name": name, "type": type_, "url": url})
        config["images"][label] = {"repository": "localhost", "tag": "e2e"}
    repository.config.write_text(dump_yaml(config))


@asynccontextmanager
async def images(version: str) -> AsyncGenerator[None]:
    """The engine with the images of CAPD's machines and load balancer, under their names."""
    async with node_image(version, names={"/pause:": PAUSE}) as image:
        await docker("tag", image, f"kindest/node:{version}")
        await _make_balancer_image()
        try:
            yield
        finally:
            await docker("rmi", f"kindest/node:{version}", await _balancer_image())


async def _make_balancer_image() -> None:
    container = (await docker("create", "--entrypoint=sleep", IMAGE, "infinity")).strip()
    await docker("start", container)
    try:
        program, *libraries = await _files_of_haproxy()
        for file in (program, *libraries):
            await docker("cp", "--follow-link", str(file), f"{container}:{file}")
        script = f"mkdir -p $(dirname {_CONFIG}) && cat > {_CONFIG}"
        write = ("exec", "--interactive", container, "sh", "-c", script)
        await docker(*write, content=_FIRST_CONFIG.encode())
        wrapper = "/usr/local/bin/haproxy"
        script = f"cat > {wrapper} && chmod +x {wrapper}"
        content = _WRAPPER.format(program=program).encode()
        await docker("exec", "--interactive", container, "sh", "-c", script, content=content)
        await docker("commit", "--change=ENTRYPOINT []", container, await _balancer_image())
    finally:
        await docker("rm", "--force", "--volumes", container)


async def _balancer_image() -> str:
    source = await Binaries().module_dir("cluster-api/test", CLUSTER_API)
    file = source / "infrastructure/docker/internal/loadbalancer/const.go"
    constants: Mapping[str, str] = dict(re.findall(r'(\w+) += "(.*)"', file.read_text()))
    repository, tag = constants["DefaultImageRepository"], constants["DefaultImageTag"]
    return f"{repository}/{constants['Image']}:{tag}"


async def _files_of_haproxy() -> list[Path]:
    """The program and its libraries, except those of the C library, which the node image has."""
    program = shutil.which(HAPROXY, path="/usr/sbin:/usr/local/sbin:/usr/bin")
    assert program is not None, "install the package haproxy"
    listed = await run(["ldd", program])
    libraries = [Path(path) for path in re.findall(r"=> (/\S+)", listed)]
    parts = ("libc.", "libm.", "libpthread.", "libdl.", "librt.")
    return [Path(program), *(each for each in libraries if not each.name.startswith(parts))]
