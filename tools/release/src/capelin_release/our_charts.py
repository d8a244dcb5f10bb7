"""The charts in `charts/`: python -m capelin_release.our_charts [FOLDER] generates them.

Only the templates in `library/` and the values' models are written by hand.
"""

import json
import shutil
import sys
from importlib.metadata import version as version_of
from os.path import relpath
from pathlib import Path
from typing import Annotated, Any

from capelin.api import DescribedModel
from capelin.provider import Provider
from capelin.runtime import openapi_document
from capelin.runtime.v1alpha1 import CLUSTER_API
from capelin_control_plane.provider import provider as control_plane
from capelin_lifecycle.provider import OPTIONAL_RESOURCES
from capelin_lifecycle.provider import provider as lifecycle
from capelin_machine_pool.provider import provider as machine_pool
from pydantic import Field

from capelin_release.alerts import CONTROL_PLANE_ALERTS
from capelin_release.charts import (
    LIBRARY,
    Chart,
    kinds_chart,
    provider_chart,
    umbrella_chart,
)
from capelin_release.repository import Installation
from capelin_release.values import (
    ExtensionConfigValues,
    ExtensionValues,
    Image,
    ManagerValues,
)

REGISTRY = "ghcr.io/capelin"
_PROJECT = "capelin"


class Components(DescribedModel):
    """The components to install."""

    crds: bool = True
    """Kinds."""
    control_plane: bool = True
    """Control plane provider."""
    machine_pool: bool = True
    """Infrastructure provider."""
    lifecycle: bool = False
    """Lifecycle extension. Cluster API needs its feature RuntimeSDK for it."""


class UmbrellaValues(DescribedModel):
    """The values of the chart of everything. Those of a chart in it go under the chart's name."""

    components: Components = Components()
    capelin_crds: Annotated[dict[str, Any], Field(alias="capelin-crds")] = {}
    """Values of the chart `capelin-crds`."""
    capelin_control_plane: Annotated[dict[str, Any], Field(alias="capelin-control-plane")] = {}
    """Values of the chart `capelin-control-plane`."""
    capelin_machine_pool: Annotated[dict[str, Any], Field(alias="capelin-machine-pool")] = {}
    """Values of the chart `capelin-machine-pool`."""
    capelin_lifecycle: Annotated[dict[str, Any], Field(alias="capelin-lifecycle")] = {}
    """Values of the chart `capelin-lifecycle`."""


def our_providers() -> dict[str, Provider]:
    """Our providers, by the names of their charts."""
    return {
        "capelin-control-plane": control_plane(),
        "capelin-machine-pool": machine_pool(),
        "capelin-lifecycle": lifecycle(),
    }


def our_charts(version: str, registry: str = REGISTRY) -> dict[str, Chart]:
    """All charts, by name, in a version such as `0.1.0`."""
    hosted, machines, hooks = our_providers().values()
    crds = kinds_chart(
        [hosted, machines, hooks],
        name="capelin-crds",
        version=version,
        description="Kinds of Capelin's Cluster API providers.",
        part_of=_PROJECT,
    )
    hosted_chart = provider_chart(
        hosted,
        ManagerValues(
            image=Image(repository=f"{registry}/capelin-control-plane"), args=["--backends=pods"]
        ),
        name="capelin-control-plane",
        version=version,
        description="Hosted control planes for Cluster API.",
        with_kinds=False,
        part_of=_PROJECT,
        more_alerts=CONTROL_PLANE_ALERTS,
    )
    machines_chart = provider_chart(
        machines,
        ManagerValues(image=Image(repository=f"{registry}/capelin-machine-pool")),
        name="capelin-machine-pool",
        version=version,
        description="Machine pools and machines for Cluster API.",
        with_kinds=False,
        part_of=_PROJECT,
    )
    hooks_chart = provider_chart(
        hooks,
        ExtensionValues(
            image=Image(repository=f"{registry}/capelin-lifecycle"),
            replicas=2,
            args=["--leader-elect"],
            extension_config=ExtensionConfigValues(name=hooks.name),
        ),
        name="capelin-lifecycle",
        version=version,
        description="A Runtime Extension with lifecycle policies for Cluster API.",
        with_kinds=False,
        part_of=_PROJECT,
        optional=OPTIONAL_RESOURCES,
    )
    parts = {
        "crds": crds,
        "controlPlane": hosted_chart,
        "machinePool": machines_chart,
        "lifecycle": hooks_chart,
    }
    everything = umbrella_chart(
        parts,
        UmbrellaValues(),
        name="capelin",
        version=version,
        description="Capelin's Cluster API providers.",
    )
    return {chart.name: chart for chart in (*parts.values(), everything)}


def our_installation(*, version: str, registry: str) -> Installation:
    """The installation of a release of Capelin."""
    charts = our_charts(version, registry)
    providers = [
        (provider, [charts[name], charts["capelin-crds"]])
        for name, provider in our_providers().items()
    ]
    document = openapi_document(CLUSTER_API, title="Cluster API - Runtime SDK", version=version)
    openapi = json.dumps(document, indent=2) + "\n"
    return Installation(
        [*charts.values()],
        providers,
        files={"runtime-sdk-openapi.json": openapi.encode()},
        with_cluster_api=True,
    )


def write_tree(folder: Path) -> None:
    """Write all charts into a folder, with links instead of copies of common files."""
    for chart in our_charts(version_of("capelin")).values():
        target = folder / chart.name
        shutil.rmtree(target, ignore_errors=True)
        Chart(chart.name, chart.files).write(folder)
        (target / "charts").mkdir()
        for dependency in chart.dependencies:
            shared = Path(__file__).parent / "library"
            source = shared if dependency.name == LIBRARY else folder / dependency.name
            link = target / "charts" / dependency.name
            link.symlink_to(relpath(source.resolve(), link.parent.resolve()))


if __name__ == "__main__":
    write_tree(Path(sys.argv[1] if len(sys.argv) > 1 else "charts"))
