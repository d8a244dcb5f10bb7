"""The real cert-manager of clusterctl in a local image."""

import asyncio
from pathlib import Path
from typing import Any, Final

from capelin.yaml import read_all_yaml
from capelin_release.charts import dump_yaml
from capelin_release.tools import CERT_MANAGER
from capelin_release.upstream import CERT_MANAGER_NAMESPACE

from .go_programs import local_program

IMAGE: Final = "localhost/cert-manager:e2e"
VERSION: Final = CERT_MANAGER.default_version

_ELECTION: Final = f"--leader-election-namespace={CERT_MANAGER_NAMESPACE}"
_ARGUMENTS: Final = {
    "controller": [_ELECTION, f"--cluster-resource-namespace={CERT_MANAGER_NAMESPACE}"],
    "cainjector": [_ELECTION],
}


async def program() -> Path:
    """cert-manager's controller, webhook and CA injector in one program."""
    folder = Path(__file__).with_name("cert-manager")
    return await asyncio.to_thread(local_program, folder)


def use_own_image(repositories: Path) -> Path:
    """Use the image in all three Deployments, and return the file for clusterctl."""
    file = repositories / "cert-manager" / VERSION / "cert-manager.yaml"
    objects = [_own(obj) for obj in read_all_yaml(file.read_text()) if obj]
    file.write_text("---\n".join(map(dump_yaml, objects)))
    return file


def _own(obj: Any) -> Any:
    if obj["kind"] == "Deployment":
        component = obj["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
        (container,) = obj["spec"]["template"]["spec"]["containers"]
        container["image"] = IMAGE
        container["command"] = ["/manager", component]
        if component in _ARGUMENTS:
            # The test needs neither metrics nor probes.
            container["args"] = _ARGUMENTS[component]
            for probe in ("livenessProbe", "readinessProbe"):
                container.pop(probe, None)
    return obj
