"""Kubelets and kubeadms of versions that the node image does not have, built from Go modules."""

import asyncio
import os
import shutil
import subprocess
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

from capelin.embedded.folders import cache_folder

_STAMPED: Final = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
PROGRAMS: Final = ("kubelet", "kubeadm")


async def node_programs(version: str) -> dict[str, bytes]:
    """The programs of a version. They are built once: that takes minutes."""
    folder = cache_folder().parent / "capelin-testbed" / "programs" / version
    return await asyncio.to_thread(_node_programs, version, folder)


def _node_programs(version: str, folder: Path) -> dict[str, bytes]:
    modules = files("capelin.embedded.modules") / "kubernetes" / version
    for name in PROGRAMS:
        if not (folder / name).exists():
            with as_file(modules) as source:
                _build(name, version, source, folder)
    return {name: (folder / name).read_bytes() for name in PROGRAMS}


def _build(name: str, version: str, modules: Path, folder: Path) -> None:
    """Build a program with the pinned modules. The kubelet's own are not among them."""
    source = folder / "source"
    shutil.copytree(modules, source, dirs_exist_ok=True)
    major, minor, _ = version.removeprefix("v").split(".", 2)
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    stamps = [f"-X {package}.{key}={text}" for package in _STAMPED for key, text in values.items()]
    flags = " ".join(["-s", "-w", *stamps])
    new = folder / f"{name}.new"
    subprocess.run(
        ["go", "build", "-ldflags", flags, "-o", str(new), f"k8s.io/kubernetes/cmd/{name}"],
        cwd=source,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -trimpath -buildvcs=false"},
        check=True,
    )
    new.rename(folder / name)
