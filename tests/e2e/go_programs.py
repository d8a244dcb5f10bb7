"""Programs of Go modules, such as Kubernetes, with the modules that they pin. That takes minutes.

Go compares modules that are not pinned with the public checksum database.
"""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from capelin_embedded.binaries import KUBERNETES
from capelin_embedded.folders import cache_folder

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


@dataclass(frozen=True, slots=True)
class GoModule:
    """A module with programs, which are built with the modules that it pins itself."""

    path: str
    version: str
    replaced: tuple[str, ...] = ()
    """Modules that it replaces by folders, which a published module does not contain."""
    newer: tuple[str, ...] = ()
    """Modules that it takes in a newer version than it pins, as `path@version`."""

    async def folder(self) -> Path:
        """Its files."""
        return await asyncio.to_thread(_downloaded, f"{self.path}@{self.version}")

    async def programs(
        self, packages: Mapping[str, str], sources: Mapping[str, Path] = {}
    ) -> dict[str, Path]:
        """Its programs.

        Args:
            packages: The package of each program, by the program's name.
            sources: Files that are added to the module, by their paths there.
        """

        def build(name: str, source: Path, output: Path) -> None:
            files = _downloaded(f"{self.path}@{self.version}")
            shutil.copytree(files, source, dirs_exist_ok=True, copy_function=shutil.copyfile)
            for path in (source, *source.rglob("*")):
                path.chmod(0o755)
            for path, file in sources.items():
                (source / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, source / path)
            for module in self.replaced:
                _go(source, "mod", "edit", f"-dropreplace={module}")
            for module in self.newer:
                _go(source, "mod", "edit", f"-require={module}")
            _go(source, "build", "-ldflags=-s -w", "-o", str(output), packages[name])

        contents = {path: file.read_bytes() for path, file in sources.items()}
        digest = sha256(repr((self, dict(packages), contents)).encode()).hexdigest()
        name = "-".join([self.path.replace("/", "-"), self.version, digest[:8]])
        return await asyncio.to_thread(_built, _folder() / name, tuple(packages), build)


def local_program(folder: Path) -> Path:
    """The program of a module of the repository, which pins its own modules."""

    def build(_: str, source: Path, output: Path) -> None:
        shutil.copytree(folder, source, dirs_exist_ok=True)
        _go(source, "build", "-ldflags=-s -w", "-o", str(output), ".")

    contents = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
    place = _folder() / f"{folder.name}-{sha256(repr(contents).encode()).hexdigest()[:8]}"
    return _built(place, (folder.name,), build)[folder.name]


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


def _downloaded(module: str) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        answer = _go(Path(folder), "mod", "download", "-json", module)
    return Path(json.loads(answer)["Dir"])


def _copy_modules(version: str, folder: Path) -> None:
    for name in ("go.mod", "go.sum"):
        shutil.copy(KUBERNETES.module_files(version) / name, folder)


def _linker_flags(variables: Mapping[str, str]) -> str:
    return " ".join(["-s", "-w", *(f"-X {name}={text}" for name, text in variables.items())])


def _go(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": _FLAGS, "GOWORK": "off"}
    command = ["nice", "go", *arguments]
    answer = subprocess.run(
        command, cwd=folder, env=environment, check=True, text=True, stdout=subprocess.PIPE
    )
    return answer.stdout
