"""Bundles: all that an installation without a network needs, as one layout in one archive."""

import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from capelin_release.oci import MANIFEST, Descriptor, Store, timestamp

HELM_CONFIG = "application/vnd.cncf.helm.config.v1+json"
HELM_CHART = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
COMPONENTS = "application/vnd.capelin.components.v1"
YAML = "application/yaml"


def add_chart(store: Store, package: Path, created: int) -> Descriptor:
    """A packaged chart, as `helm push` would store it."""
    with tarfile.open(package) as archive:
        stream = archive.extractfile(f"{archive.getnames()[0].split('/')[0]}/Chart.yaml")
        chart = cast("dict[str, Any]", yaml.safe_load(stream.read()) if stream else {})
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": store.add_json(chart, HELM_CONFIG).as_json(),
        "layers": [store.add(package.read_bytes(), HELM_CHART).as_json()],
        "annotations": {
            "org.opencontainers.image.created": timestamp(created),
            "org.opencontainers.image.title": chart["name"],
            "org.opencontainers.image.version": chart["version"],
        },
    }
    # A tag cannot have a plus sign; Helm writes it so, too.
    tag = str(chart["version"]).replace("+", "_")
    return store.add_json(manifest, MANIFEST).named(f"charts/{chart['name']}:{tag}")


def add_components(
    store: Store, name: str, tag: str, files: Sequence[Path], created: int
) -> Descriptor:
    """A provider's components and metadata, by the file names that Cluster API Operator reads."""
    contents = {file.name: (YAML, file.read_bytes()) for file in sorted(files)}
    artifact = store.add_artifact(COMPONENTS, contents, created)
    return artifact.named(f"components/{name}:{tag}")


def installation_entries(store: Store, out: Path, created: int) -> list[Descriptor]:
    """The charts and component files that a release has written into its folder."""
    charts = [add_chart(store, package, created) for package in sorted(out.glob("*.tgz"))]
    components = [
        add_components(store, folder.parent.name, folder.name, [*folder.glob("*.yaml")], created)
        for folder in sorted((out / "clusterctl").glob("*/*"))
    ]
    return [*charts, *components]
