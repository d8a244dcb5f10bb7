"""The real cert-manager, as clusterctl installs it: its chart, from the sources of its module."""

import asyncio
from pathlib import Path
from typing import Any, Final

from capelin.embedded.binaries import Binaries
from capelin.yaml import read_all_yaml
from capelin_infra.release.charts import dump_yaml
from capelin_infra.release.components import helm

PROGRAM: Final = "CAPELIN_E2E_CERT_MANAGER"
"""The variable with a program that is cert-manager's controller, webhook and CA injector."""
IMAGE: Final = "localhost/cert-manager:e2e"
VERSION: Final = "v1.21.2"
NAMESPACE: Final = "cert-manager"

_ELECTION: Final = f"--leader-election-namespace={NAMESPACE}"
_ARGUMENTS: Final = {
    "controller": [_ELECTION, f"--cluster-resource-namespace={NAMESPACE}"],
    "cainjector": [_ELECTION],
}


async def manifests(to: Path) -> Path:
    """Write what clusterctl is to install, with one image for all three Deployments."""
    binaries = Binaries()
    source = await binaries.module_dir("cert-manager")
    text = await helm(
        binaries,
        *("template", "cert-manager", str(source / "deploy" / "charts" / "cert-manager")),
        *(f"--namespace={NAMESPACE}", "--no-hooks", "--kube-version=v1.34.0"),
        *("--set=crds.enabled=true", f"--set=global.leaderElection.namespace={NAMESPACE}"),
    )
    objects = [_own(obj) for obj in read_all_yaml(text) if obj]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    text = "---\n".join(dump_yaml(obj) for obj in [namespace, *objects])
    await asyncio.to_thread(to.write_text, text)
    return to


def _own(obj: Any) -> Any:
    if obj["kind"] == "Deployment":
        component = obj["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
        (container,) = obj["spec"]["template"]["spec"]["containers"]
        container["image"] = IMAGE
        container["command"] = ["/manager", component]
        if component in _ARGUMENTS:
            # They serve neither metrics nor probes here.
            container["args"] = _ARGUMENTS[component]
            for probe in ("livenessProbe", "readinessProbe"):
                container.pop(probe, None)
    return obj
