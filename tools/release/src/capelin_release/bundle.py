"""Bundles: everything for an installation without a network, as one layout in one archive."""

import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from capelin.yaml import read_yaml

from capelin_release.oci import Descriptor, Store, named, timestamp

HELM_CONFIG: Final = "application/vnd.cncf.helm.config.v1+json"
HELM_CHART: Final = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
COMPONENTS: Final = "application/vnd.capelin.components.v1"
EMPTY: Final = "application/vnd.oci.empty.v1+json"
YAML: Final = "application/yaml"


def add_chart(store: Store, package: Path, created: int) -> Descriptor:
    """A packaged chart, as `helm push` would store it."""
    with tarfile.open(package) as archive:
        stream = archive.extractfile(f"{archive.getnames()[0].split('/')[0]}/Chart.yaml")
        chart: dict[str, Any] = read_yaml(stream.read().decode()) if stream else {}
    manifest = store.add_manifest(
        store.add_json(chart, HELM_CONFIG),
        [store.add(package.read_bytes(), HELM_CHART)],
        {
            "org.opencontainers.image.created": timestamp(created),
            "org.opencontainers.image.title": chart["name"],
            "org.opencontainers.image.version": chart["version"],
        },
    )
    # A tag cannot have a plus sign. Helm replaces it in the same way.
    tag = str(chart["version"]).replace("+", "_")
    return named(manifest, f"charts/{chart['name']}:{tag}")


def add_components(
    store: Store, name: str, tag: str, files: Sequence[Path], created: int
) -> Descriptor:
    """A provider's components and metadata, by the file names that Cluster API Operator reads."""
    layers = [
        {
            **store.add(file.read_bytes(), YAML),
            "annotations": {"org.opencontainers.image.title": file.name},
        }
        for file in sorted(files)
    ]
    manifest = store.add_manifest(
        store.add(b"{}", EMPTY),
        layers,
        {"org.opencontainers.image.created": timestamp(created)},
        artifactType=COMPONENTS,
    )
    return named(manifest, f"components/{name}:{tag}")


def installation_entries(store: Store, out: Path, created: int) -> list[Descriptor]:
    """The charts and component files that a release has written into its folder."""
    charts = [add_chart(store, package, created) for package in sorted(out.glob("*.tgz"))]
    components = [
        add_components(store, folder.parent.name, folder.name, [*folder.glob("*.yaml")], created)
        for folder in sorted((out / "clusterctl").glob("*/*"))
    ]
    return [*charts, *components]
