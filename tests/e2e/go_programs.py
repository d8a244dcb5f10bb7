"""Programs of Kubernetes, built with the pinned modules. That takes minutes, once.

Go compares modules that are not pinned with the public checksum database.
"""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from capelin.embedded.binaries import KUBERNETES
from capelin.embedded.folders import cache_folder

PROGRAMS: Final = ("kubelet", "kubeadm")
"""The programs of a node."""
_STAMPED: Final = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
_PACKAGES: Final = {
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "kubeadm": "k8s.io/kubernetes/cmd/kubeadm",
    "agnhost": "k8s.io/kubernetes/test/images/agnhost",
    "e2e.test": "k8s.io/kubernetes/test/e2e",
    "ginkgo": "github.com/onsi/ginkgo/v2/ginkgo",
    "go-runner": "k8s.io/kubernetes/test/conformance/image/go-runner",
}
_FLAGS: Final = "-mod=mod -trimpath -buildvcs=false"


async def node_programs(version: str) -> dict[str, bytes]:
    """The programs of a node of a Kubernetes version."""
    programs = await kubernetes_programs(version, PROGRAMS)
    return {name: program.read_bytes() for name, program in programs.items()}


async def kubernetes_programs(version: str, names: Sequence[str]) -> dict[str, Path]:
    """Programs of a Kubernetes version, built with its pinned modules and those that these lack."""
    major, minor, _ = version.removeprefix("v").split(".", 2)
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    variables = {f"{package}.{key}": text for package in _STAMPED for key, text in values.items()}

    def build(name: str, source: Path, output: Path) -> None:
        _copy_modules(version, source)
        command = ("test", "-c", "-vet=off") if name.endswith(".test") else ("build",)
        flags = ("-ldflags", _linker_flags(variables), "-o", str(output))
        _go(source, *command, *flags, _PACKAGES[name])

    return await asyncio.to_thread(_built, _folder() / version, names, build)


def _folder() -> Path:
    return cache_folder().parent / "capelin-testbed" / "programs"


def _built(
    folder: Path, names: Sequence[str], build: Callable[[str, Path, Path], None]
) -> dict[str, Path]:
    """Programs of a folder. It builds those that the folder lacks."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (folder / name).exists():
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                source, output = Path(temporary, "source"), Path(temporary, name)
                source.mkdir()
                build(name, source, output)
                output.rename(folder / name)
    return {name: folder / name for name in names}


def _copy_modules(version: str, folder: Path) -> None:
    for name in ("go.mod", "go.sum"):
        shutil.copy(KUBERNETES.module_files(version) / name, folder)


def _linker_flags(variables: Mapping[str, str]) -> str:
    return " ".join(["-s", "-w", *(f"-X {name}={text}" for name, text in variables.items())])


def _go(folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": _FLAGS, "GOWORK": "off"}
    subprocess.run(["nice", "go", *arguments], cwd=folder, env=environment, check=True)
