"""The dependencies of an installation: Cluster API's component files, and cert-manager.

They are rendered from the pinned Go modules: a module proxy may be reachable where releases are
not. Their images have the names of their own releases, and have to come from there.
"""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from capelin.errors import UserError
from capelin.programs import run_program
from capelin_embedded.binaries import CLUSTER_API, Binaries

from capelin_release.charts import Chart, dump_yaml
from capelin_release.components import KUBERNETES, helm
from capelin_release.tools import CERT_MANAGER

CERT_MANAGER_NAMESPACE: Final = "cert-manager"
_KUSTOMIZATIONS: Final = {
    "cluster-api": ("core-components.yaml", "core/config/default"),
    "bootstrap-kubeadm": ("bootstrap-components.yaml", "bootstrap/kubeadm/config/default"),
}
_STAGED: Final = re.compile(r"gcr\.io/k8s-staging-cluster-api/([a-z-]+):[a-z]+")


async def cluster_api_files(binaries: Binaries) -> Mapping[str, bytes]:
    """Cluster API's core and kubeadm bootstrap provider, as folders of a clusterctl repository.

    Raises:
        UserError: The sources cannot be rendered.
    """
    version = CLUSTER_API.versions[-1]
    source = await binaries.module_dir("cluster-api", version)
    metadata = await asyncio.to_thread((source / "metadata.yaml").read_bytes)
    files: dict[str, bytes] = {}
    for label, (name, path) in _KUSTOMIZATIONS.items():
        text = as_released(await _kustomize(binaries, source / path), version)
        files[f"clusterctl/{label}/{version}/{name}"] = text.encode()
        files[f"clusterctl/{label}/{version}/metadata.yaml"] = metadata
    return files


def as_released(text: str, version: str) -> str:
    """Component files in the form of Cluster API's releases. The sources are for its developers."""
    text = _STAGED.sub(rf"registry.k8s.io/cluster-api/\1:{version}", text)
    return text.replace("imagePullPolicy: Always", "imagePullPolicy: IfNotPresent")


async def cert_manager_chart(binaries: Binaries) -> Chart:
    """cert-manager's chart, in the version that its module has."""
    source = await binaries.module_dir(CERT_MANAGER) / "deploy" / "charts" / "cert-manager"
    files = await asyncio.to_thread(_texts, source)
    chart = files["Chart.yaml"].replace("ersion: v0.0.0", f"ersion: {CERT_MANAGER.default_version}")
    return Chart("cert-manager", {**files, "Chart.yaml": chart})


async def cert_manager_manifests(binaries: Binaries, chart: Path) -> str:
    """The objects for clusterctl: the chart with its kinds, in a namespace.

    Args:
        binaries: Where Helm comes from.
        chart: The chart's folder or archive.

    Raises:
        UserError: Helm refuses it.
    """
    namespace = CERT_MANAGER_NAMESPACE
    text = await helm(
        binaries,
        *("template", "cert-manager", str(chart), f"--namespace={namespace}", "--no-hooks"),
        *(f"--kube-version={KUBERNETES}", "--set=crds.enabled=true"),
        f"--set=global.leaderElection.namespace={namespace}",
    )
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    return f"{dump_yaml(made)}---\n{text}"


def _texts(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): file.read_text(encoding="utf-8")
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


async def _kustomize(binaries: Binaries, folder: Path) -> str:
    ended = await run_program(await binaries.path("kubectl"), "kustomize", folder)
    if ended.code:
        raise UserError(f"The components in {folder} cannot be rendered.", reason=ended.errors)
    return ended.output.decode()
