"""The CRDs of Cluster API and of its own providers, for API servers on which it does not run."""

import asyncio
from pathlib import Path
from typing import Any, Final

import yaml

from capelin.api import Unstructured
from capelin.embedded.binaries import Binaries

_PLACES: Final = {
    "cluster.x-k8s.io": ("cluster-api", "core"),
    "bootstrap.cluster.x-k8s.io": ("cluster-api", "bootstrap/kubeadm"),
    "controlplane.cluster.x-k8s.io": ("cluster-api", "controlplane/kubeadm"),
    "infrastructure.cluster.x-k8s.io": ("cluster-api/test", "infrastructure/docker"),
}
"""The module, and the folder in it, by API group."""

# libyaml's loader is ten times as fast, and these files are long.
_Loader: Final[type[Any]] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


async def cluster_api_crds(*names: str) -> list[Unstructured]:
    """The CRDs with these names, as `clusters.cluster.x-k8s.io`: core's, kubeadm's, Dev's.

    They are as in Cluster API's sources: nothing converts between their versions.
    """
    binaries = Binaries()
    found: list[Unstructured] = []
    for name in names:
        plural, _, group = name.partition(".")
        module, folder = _PLACES[group]
        bases = await binaries.module_dir(module) / folder / "config/crd/bases"
        found.append(await asyncio.to_thread(_read, bases / f"{group}_{plural}.yaml"))
    return found


def _read(file: Path) -> Unstructured:
    return yaml.load(file.read_bytes(), Loader=_Loader)  # noqa: S506 - both loaders are safe
