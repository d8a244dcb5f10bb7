"""Builds a release of the commit that is checked out: packages, images, bills of materials."""

import json
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from capelin.errors import InvalidInputError
from capelin.yaml import read_yaml

from capelin_release.commit import Commit, set_version
from capelin_release.downloads import Downloads
from capelin_release.image import MANAGERS, BuiltImage, ImageBuilder, manager_image
from capelin_release.oci import Descriptor, Store, canonical_json, named, sha256_of, timestamp
from capelin_release.programs import LockedProgram
from capelin_release.project import ARCHITECTURES, Project, Release
from capelin_release.repository import add_installation
from capelin_release.wheels import anchor_paths, build_wheels

HELM_CONFIG: Final = "application/vnd.cncf.helm.config.v1+json"
HELM_CHART: Final = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
COMPONENTS: Final = "application/vnd.capelin.components.v1"
EMPTY: Final = "application/vnd.oci.empty.v1+json"
YAML: Final = "application/yaml"
CHECKSUMS: Final = "SHA256SUMS"


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


def build_release(repository: Path, out: Path, report: Callable[[str], None]) -> Release:
    """Build the release of the commit that is checked out, into an empty folder.

    It leaves out uncommitted changes. It needs the network only for missing cache entries.
    """
    # Packages are built in a folder that contains only the commit.
    out = out.absolute()
    if out.exists() and any(out.iterdir()):
        raise InvalidInputError(f"{out} is not empty.", hint="Remove it, or name another folder.")
    commit = Commit.of(repository)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        tree.mkdir()
        commit.export(tree)
        anchor_paths(tree / "uv.lock", commit.repository)
        project = Project(tree)
        base, version = project.version, commit.version(project.version)
        packages = project.packages
        for file in project.files:
            set_version(file, base, version, packages)
        for kind in ("images", "sbom"):
            (out / kind).mkdir(parents=True)
        store = Store(Path(folder, "store"))
        release = Release(version, commit, project.release, tree, out, store)
        report(f"{version}, commit {commit.revision[:12]}")
        wheels = build_wheels(tree, out / "python", commit.time, "--all-packages")
        report(f"{len(wheels)} Python packages")
        images = _build_images(ImageBuilder(release, wheels), Path(folder), report)
        managers = _build_managers(release) if add_installation(release) else []
        installed = installation_entries(store, out, commit.time)
        report(f"{len(installed)} charts and component files")
        bundle = out / f"{release.settings.name or project.name}-{release.tag}-bundle.tar"
        store.write_archive(bundle, [*images, *installed, *managers], commit.time)
        report(f"{bundle.name}: {bundle.stat().st_size / 1e6:.0f} MB")
    write_checksums(out)
    return release


def _build_images(
    builder: ImageBuilder, folder: Path, report: Callable[[str], None]
) -> list[Descriptor]:
    """All images: an archive and a bill of materials for each architecture, and their indexes."""
    release = builder.release
    for name, source in builder.path_sources().items():
        report(f"{name} is built from {source}")
        built = build_wheels(source, folder / "path-sources" / name, release.commit.time, "--wheel")
        builder.wheels = [*builder.wheels, *built]
    indexes: list[Descriptor] = []
    digests: dict[str, object] = {}
    for spec in release.settings.images:
        built = [builder.build(spec, name) for name in release.settings.architectures]
        for image in built:
            _write_image(release, image)
            report(_summary(image))
        index = _joined(release, built, f"{spec.name}:{release.tag}")
        digests[spec.name] = {
            "index": index["digest"],
            **{image.architecture: _digests(image) for image in built},
        }
        indexes.append(index)
    file = release.out / "images" / "digests.json"
    file.write_text(json.dumps(digests, indent=2, sort_keys=True) + "\n")
    return indexes


def _build_managers(release: Release) -> list[Descriptor]:
    """The indexes of Cluster API's managers, with their names in `registry.k8s.io/cluster-api`."""
    downloads = Downloads()
    return [
        _joined(
            release,
            [manager_image(release, program, name, downloads) for name in ARCHITECTURES],
            f"cluster-api/{program.name}:{program.version}",
        )
        for program in map(LockedProgram.read, MANAGERS)
    ]


def _joined(release: Release, images: Sequence[BuiltImage], reference: str) -> Descriptor:
    """Write the bill of materials of each architecture's image. Returns their index."""
    for image in images:
        bill = release.out / "sbom" / f"{image.stem}.cdx.json"
        bill.write_bytes(canonical_json(image.bill))
    return named(release.store.add_index([image.manifest for image in images]), reference)


def _write_image(release: Release, image: BuiltImage) -> None:
    """The archive that `docker load`, `ctr images import` and `kind load image-archive` read."""
    reference = f"{release.settings.registry}/{image.package.name}:{release.tag}"
    entry = named(image.manifest, release.tag, **{"io.containerd.image.name": reference})
    file = release.out / "images" / f"{image.stem}.tar"
    release.store.write_archive(file, [entry], release.commit.time, docker=reference)


def _digests(image: BuiltImage) -> Mapping[str, object]:
    """Diff ids are the same wherever an image is built. Digests also depend on zlib's version."""
    return {
        "manifest": image.manifest["digest"],
        "diffIDs": {stored.layer.name: stored.diff_id for stored in image.layers},
        "size": image.size,
    }


def _summary(image: BuiltImage) -> str:
    packages = len({file.package for file in image.files.values()})
    return (
        f"{image.package.name} {image.architecture}: {image.size / 1e6:.1f} MB compressed,"
        f" {len(image.files)} files of {packages} packages"
    )


def write_checksums(folder: Path) -> Path:
    """Write the SHA-256 of every file below a folder, as `sha256sum --check` reads them."""
    lines = [
        f"{sha256_of(file)}  {file.relative_to(folder)}\n"
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != CHECKSUMS
    ]
    sums = folder / CHECKSUMS
    sums.write_text("".join(lines))
    return sums
