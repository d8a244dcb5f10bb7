"""The CRDs of Cluster API and its own providers, for API servers without Cluster API."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from capelin.api import Unstructured
from capelin.yaml import read_yaml

from capelin_embedded.binaries import Binaries

_PLACES: Final = {
    "cluster.x-k8s.io": ("cluster-api", "core"),
    "runtime.cluster.x-k8s.io": ("cluster-api", "core"),
    "bootstrap.cluster.x-k8s.io": ("cluster-api", "bootstrap/kubeadm"),
    "controlplane.cluster.x-k8s.io": ("cluster-api", "controlplane/kubeadm"),
    "infrastructure.cluster.x-k8s.io": ("cluster-api/test", "infrastructure/docker"),
}
"""The module, and the folder in it, by API group."""


def kinds_in(rules: Iterable[Mapping[str, Any]]) -> list[str]:
    """Core's kinds in these permissions, by the names of their CRDs."""
    group = "cluster.x-k8s.io"
    ours = [rule for rule in rules if group in rule.get("apiGroups", ())]
    resources = [resource for rule in ours for resource in rule["resources"]]
    # Omit subresources and wildcards.
    return sorted({f"{resource}.{group}" for resource in resources if resource.isalpha()})


async def cluster_api_crds(*names: str) -> list[Unstructured]:
    """The CRDs with names such as `clusters.cluster.x-k8s.io`: core's, kubeadm's, Dev's.

    They equal those in Cluster API's sources: nothing converts between their versions.
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
    return read_yaml(file.read_bytes())
