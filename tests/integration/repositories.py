"""A local clusterctl repository of Capelin's and Cluster API's providers."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from capelin.api import Unstructured
from capelin.yaml import read_all_yaml
from capelin_embedded.binaries import Binaries
from capelin_embedded.management import render_template
from capelin_release.charts import Chart, dump_yaml
from capelin_release.components import escape
from capelin_release.our_charts import our_charts, our_installation
from capelin_release.repository import write_installation, write_upstream
from capelin_release.tools import CERT_MANAGER

ROOT = Path(__file__).parents[2]
CLUSTER_API = "v1.14.2"
REGISTRY = "registry.example/capelin"
POOLS = "capelinmachinepools.infrastructure.cluster.x-k8s.io"
SHARED_VARIABLES = {
    "CAPELIN_BACKEND": "Processes",
    "CLUSTER_TOPOLOGY": "true",
    "EXP_MACHINE_POOL": "true",
}


class CommandError(Exception):
    """A command failed. The message is its output."""


@dataclass(frozen=True)
class Repository:
    """The repositories, and clusterctl with a configuration that names them."""

    folder: Path
    variables: dict[str, str] = field(default_factory=lambda: dict(SHARED_VARIABLES))

    @property
    def config(self) -> Path:
        return self.folder / "clusterctl.yaml"

    async def clusterctl(self, *arguments: str, kubeconfig: Path | None = None) -> str:
        """Run clusterctl and return its standard output."""
        program = await Binaries().path("clusterctl")
        environment = {
            **os.environ,
            **self.variables,
            "CLUSTERCTL_DISABLE_VERSIONCHECK": "true",
            "GOPROXY": "off",
            **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}),
        }
        return await run([program, *arguments, f"--config={self.config}"], environment)

    async def add_capelin(self, version: str) -> None:
        """Add Capelin's providers in a version such as `0.1.0`."""
        await write_installation(
            self.folder / "dist",
            our_installation(version=version, registry=REGISTRY),
            version=version,
            sources=ROOT / "clusterctl",
            modified=0,
        )

    async def add_older_capelin(self, version: str) -> None:
        """Create a fictional earlier release: with an obsolete role and a kind without columns."""
        await self.add_capelin(version)
        label = "infrastructure-capelin"
        file = self.file(label, version)
        role: Unstructured = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {
                "name": f"{label}-system-old",
                "labels": {"cluster.x-k8s.io/provider": label},
            },
            "rules": [],
        }
        objects = [*map(_older, render_template(file.read_text(), {})), role]
        file.write_text(escape("---\n".join(dump_yaml(obj) for obj in objects)))

    def file(self, label: str, version: str) -> Path:
        """A component file of Capelin."""
        folder = self.folder / "dist" / "clusterctl" / label / f"v{version}"
        (file,) = folder.glob("*-components.yaml")
        return file

    async def add_cluster_api(self) -> None:
        """Add Cluster API's core, its kubeadm bootstrap provider and cert-manager."""
        await write_upstream(self.folder / "dist", modified=0)

    def write_config(self, versions: Mapping[str, str]) -> None:
        """Write the configuration, with the newest version of each provider."""
        base = f"file://{self.folder}/dist/clusterctl"
        types = {
            "cluster-api": ("cluster-api", "CoreProvider", "core"),
            "bootstrap-kubeadm": ("kubeadm", "BootstrapProvider", "bootstrap"),
            "control-plane-capelin": ("capelin", "ControlPlaneProvider", "control-plane"),
            "infrastructure-capelin": ("capelin", "InfrastructureProvider", "infrastructure"),
            "runtime-extension-lifecycle": (
                "lifecycle",
                "RuntimeExtensionProvider",
                "runtime-extension",
            ),
        }
        providers = [
            {
                "name": types[label][0],
                "type": types[label][1],
                "url": f"{base}/{label}/{version}/{types[label][2]}-components.yaml",
            }
            for label, version in versions.items()
        ]
        self.config.write_text(dump_yaml({"providers": providers}))


def older_charts(version: str) -> dict[str, Chart]:
    """Capelin's charts of a fictional earlier release with the same differences."""
    charts = our_charts(version, REGISTRY)
    kinds = charts["capelin-crds"]
    file = "templates/infrastructure-capelin-kinds.yaml"
    texts = kinds.files[file].split("---\n")
    older = Chart(
        kinds.name,
        {**kinds.files, file: "---\n".join(map(_older_template, texts))},
        kinds.dependencies,
    )
    everything = charts["capelin"]
    parts = [older if part.name == kinds.name else part for part in everything.dependencies]
    return {**charts, "capelin": Chart("capelin", everything.files, parts)}


def _older(obj: Unstructured) -> Unstructured:
    if obj["metadata"]["name"] == POOLS:
        del obj["spec"]["versions"][0]["additionalPrinterColumns"]
    return obj


def _older_template(text: str) -> str:
    """The same for a chart's template, which is not YAML. The columns are its last part."""
    return text.partition("      additionalPrinterColumns:")[0] if f": {POOLS}\n" in text else text


async def run(command: list[object], environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return its standard output."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    if process.returncode:
        raise CommandError(f"{command}\n{out.decode()}\n{err.decode()}")
    return out.decode()


async def cert_manager_crds() -> list[Unstructured]:
    """cert-manager's kinds, from the sources of its module."""
    source = await Binaries().module_dir(CERT_MANAGER)
    texts = [file.read_text() for file in sorted((source / "deploy" / "crds").glob("*.yaml"))]
    return [obj for text in texts for obj in read_all_yaml(text) if obj]
