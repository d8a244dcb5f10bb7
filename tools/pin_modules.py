"""Pins the Go modules of a version: `python -m tools.pin_modules etcd v3.6.8`.

Needs Go and a module proxy. Go compares each module with the public checksum database.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from capelin_cli.binaries import PROGRAMS
from capelin_embedded.binaries import (
    DEFAULT_KUBERNETES,
    KUBERNETES,
    BinariesError,
    Component,
    Go,
    Platform,
    Project,
    find_go,
    needed_go,
)
from capelin_release.tools import CERT_MANAGER, HELM, HELM_3

from tests.alerts.promtool import PROMTOOL
from tests.pulumi.bed import PULUMI, PULUMI_PYTHON
from tests.registry.distribution import DISTRIBUTION, ORAS
from tests.s3.versitygw import VERSITYGW

_LOCAL = re.compile(r"^\s*(?:replace )?(\S+) => \.\.?/", re.MULTILINE)
_OLDEST_GO = "1.22"
"""Before this version, a `go` line was no promise: any Go would try, and fail late."""
_FILES = ("go.mod", "go.sum", "tools.go")


COMPONENTS: tuple[Component, ...] = (
    *PROGRAMS.values(),
    DISTRIBUTION,
    HELM,
    HELM_3,
    ORAS,
    PROMTOOL,
    PULUMI,
    PULUMI_PYTHON,
    VERSITYGW,
)
PROJECTS: dict[str, Project] = {
    project.name: project
    for project in (*(component.project for component in COMPONENTS), CERT_MANAGER)
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """The modules that hold a project's programs."""

    modules: tuple[str, ...]
    siblings: str | None = None
    """The version of the modules that the project itself replaces with local folders."""
    shares_kubernetes: bool = False
    """Whether it takes the modules that the default version of Kubernetes also has from there.

    Go then compiles their packages once for both.
    """
    keeps: tuple[str, ...] = ()
    """Beginnings of the modules that it does not share, because it needs its own versions."""


RECIPES = {
    "kubernetes": Recipe(("k8s.io/kubernetes",), siblings="v0.{minor}.{patch}"),
    "etcd": Recipe(
        (
            "go.etcd.io/etcd/server/v3",
            "go.etcd.io/etcd/etcdctl/v3",
            "go.etcd.io/etcd/etcdutl/v3",
        )
    ),
    "cluster-api": Recipe(
        ("sigs.k8s.io/cluster-api", "sigs.k8s.io/cluster-api/test"),
        siblings="v{major}.{minor}.{patch}",
        shares_kubernetes=True,
        # Its control plane provider migrates the CoreDNS of each version that it supports.
        keeps=("github.com/coredns/corefile-migration",),
    ),
    "kwok": Recipe(("sigs.k8s.io/kwok",)),
    "helm": Recipe(("helm.sh/helm/v4",)),
    "helm3": Recipe(("helm.sh/helm/v3",)),
    "cert-manager": Recipe(("github.com/cert-manager/cert-manager",)),
    "crane": Recipe(("github.com/google/go-containerregistry",)),
    "distribution": Recipe(("github.com/distribution/distribution/v3",)),
    "kind": Recipe(("sigs.k8s.io/kind",)),
    "konnectivity": Recipe(("sigs.k8s.io/apiserver-network-proxy",)),
    "oras": Recipe(("oras.land/oras",)),
    "prometheus": Recipe(("github.com/prometheus/prometheus",)),
    "pulumi": Recipe(("github.com/pulumi/pulumi/pkg/v3",)),
    "pulumi-python": Recipe(("github.com/pulumi/pulumi/sdk/v3",)),
    "versitygw": Recipe(("github.com/versity/versitygw",)),
}


async def pin_modules(
    project: str, version: str, modules: Path, environment: Mapping[str, str]
) -> Path:
    """Write the module files of a version. Returns their folder."""
    recipe = RECIPES[project]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _start(folder, project)
        go = await _go(folder, environment)
        upstream = [await _go_mod(go, module, version, folder) for module in recipe.modules]
        (folder / "go.mod").write_text(go_mod(project, version, recipe, upstream))
        (folder / "tools.go").write_text(tools_go(project))
        # The module may need a newer Go than the one that downloaded its go.mod.
        go = await _go(folder, environment)
        shared: dict[str, str] = {}
        if recipe.shares_kubernetes:
            files = KUBERNETES.module_files(DEFAULT_KUBERNETES)
            required = required_modules((files / "go.mod").read_text())
            shared = {it: required[it] for it in required if not it.startswith(recipe.keeps)}
        await _tidy(go, folder, project, shared)
        into = modules / project / version
        into.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            shutil.copy(folder / name, into)
        return into


def go_mod(project: str, version: str, recipe: Recipe, upstream: Sequence[str]) -> str:
    """A `go.mod` that requires a project's modules as its own `go.mod` files have them."""
    major, minor, patch = version.removeprefix("v").split(".")
    needed = (_OLDEST_GO, *map(_go_line, upstream))
    go = max(needed, key=lambda text: [*map(int, text.split("."))])
    lines = [f"module capelin/{project}", "", f"go {go}", "", "require ("]
    lines += [f"\t{module} {version}" for module in recipe.modules]
    lines.append(")")
    if recipe.siblings is not None:
        sibling = recipe.siblings.format(major=major, minor=minor, patch=patch)
        local = sorted({module for text in upstream for module in _LOCAL.findall(text)})
        lines += ["", "replace ("]
        lines += [f"\t{module} => {module} {sibling}" for module in local]
        lines.append(")")
    return "\n".join(lines) + "\n"


def required_modules(text: str) -> dict[str, str]:
    """The versions that a `go.mod` requires, except those of replaced modules without one."""
    text = re.sub(r"^(exclude|replace) \(.*?^\)", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^(?:\t|require )(\S+) (v\S+)", text, re.MULTILINE)
    return {module: version for module, version in found if version != "v0.0.0"}


def sharing(text: str, shared: Mapping[str, str], excluded: Iterable[tuple[str, str]]) -> str:
    """A `go.mod` that also requires the shared modules, and ignores requirements of newer ones."""
    required = "".join(f"\t{module} {shared[module]}\n" for module in sorted(shared))
    newer = "".join(f"\t{module} {version}\n" for module, version in sorted(excluded))
    return f"{text}\nrequire (\n{required})\n\nexclude (\n{newer})\n"


async def _tidy(go: Go, folder: Path, project: str, versions: Mapping[str, str]) -> None:
    """Complete a `go.mod`. It takes the modules that it needs of these in these versions."""
    text = (folder / "go.mod").read_text()
    shared: dict[str, str] = {}
    excluded: set[tuple[str, str]] = set()
    while True:
        await go.run("mod", "tidy", folder=folder, environment={"GOFLAGS": "-mod=mod"})
        selected = await _selected(go, folder, project) if versions else {}
        differing = {
            module: version
            for module, version in selected.items()
            if versions.get(module, version) != version
        }
        if not differing:
            return
        excluded |= {(module, differing[module]) for module in differing.keys() & shared.keys()}
        shared |= {module: versions[module] for module in differing}
        (folder / "go.mod").write_text(sharing(text, shared, excluded))


async def _selected(go: Go, folder: Path, project: str) -> dict[str, str]:
    """The modules of the packages that a project's programs consist of."""
    lines = await go.run(
        "list",
        "-deps",
        "-f",
        "{{with .Module}}{{.Path}} {{.Version}}{{end}}",
        *(component.package for component in COMPONENTS if component.project.name == project),
        folder=folder,
        environment={"GOFLAGS": "-mod=mod"},
    )
    return dict(line.split(" ") for line in lines.splitlines() if line)


def tools_go(project: str) -> str:
    """A Go file that imports a project's programs, so that `go mod tidy` keeps what they need."""
    packages = sorted(
        component.package for component in COMPONENTS if component.project.name == project
    )
    imports = "".join(f'\t_ "{package}"\n' for package in packages)
    return f"//go:build tools\n\npackage tools\n\nimport (\n{imports})\n"


def _start(folder: Path, project: str) -> None:
    """Write a module to run `go mod download` in."""
    (folder / "go.mod").write_text(f"module capelin/{project}\n\ngo 1.21\n")


async def _go(folder: Path, environment: Mapping[str, str]) -> Go:
    return await find_go(
        folder,
        what="this version",
        environment=environment,
        platform=Platform.current(),
        note=lambda message: sys.stderr.writelines([message, "\n"]),
    )


async def _go_mod(go: Go, module: str, version: str, folder: Path) -> str:
    answer = await go.run("mod", "download", "-json", f"{module}@{version}", folder=folder)
    return await asyncio.to_thread(Path(json.loads(answer)["GoMod"]).read_text)


def _go_line(text: str) -> str:
    match = re.search(r"^go (\S+)$", text, re.MULTILINE)
    return match[1] if match else "1.21"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.pin_modules")
    parser.add_argument("project", choices=sorted(PROJECTS))
    parser.add_argument("version", help="such as v1.35.4")
    arguments = parser.parse_args()
    try:
        written = asyncio.run(
            pin_modules(
                arguments.project,
                arguments.version,
                PROJECTS[arguments.project].modules,
                os.environ,
            )
        )
    except BinariesError as error:
        sys.exit(str(error))
    sys.stdout.write(f"{written}: needs Go {needed_go(written)}\n")


if __name__ == "__main__":
    main()
