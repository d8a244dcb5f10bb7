"""The programs and sources of other projects that releases, and tests of charts, need."""

from pathlib import Path
from typing import Final

from capelin_embedded.binaries import Component, Project

_MODULES: Final = Path(__file__).parent / "modules"


def _helm(name: str, title: str, module: str) -> Component:
    stamps = {f"{module}/internal/version.version": "{version}"}
    project = Project(name, title, sources={}, stamps=stamps, modules=_MODULES)
    return Component(name, project, f"{module}/cmd/helm", version_arguments=("version", "--short"))


HELM: Final = _helm("helm", "Helm", "helm.sh/helm/v4")
HELM_3: Final = _helm("helm3", "Helm 3", "helm.sh/helm/v3")
CERT_MANAGER: Final = Project(
    "cert-manager",
    "cert-manager",
    sources={"cert-manager": "github.com/cert-manager/cert-manager"},
    stamps={},
    modules=_MODULES,
)
