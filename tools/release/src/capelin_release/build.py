"""Builds a release of the commit that is checked out: packages, images, bills of materials."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from capelin.errors import InvalidInputError, UserError

from capelin_release.bundle import installation_entries
from capelin_release.checksums import write_checksums
from capelin_release.commit import Commit, Version, set_version
from capelin_release.downloads import Downloads
from capelin_release.image import BuiltImage, ImageBuilder, Source
from capelin_release.oci import Descriptor, Store, canonical_json, docker_manifest
from capelin_release.project import Project, ReleaseSettings
from capelin_release.sbom import bill_of_materials


@dataclass(frozen=True, slots=True)
class Release:
    """A release under way: what it is of, where it goes, and the store of its images."""

    version: Version
    commit: Commit
    settings: ReleaseSettings
    tree: Path
    """The commit's files, with the version in them."""
    out: Path
    store: Store

    @property
    def tag(self) -> str:
        """As images and folders have it: `v0.2.0`."""
        return f"v{self.version.semantic}"


AddFiles = Callable[[Release], Sequence[Descriptor]]
"""Writes more into a release's folder, and returns what its bundle is to hold beside the images."""


def build_release(
    repository: Path, out: Path, add_files: AddFiles, report: Callable[[str], None]
) -> Release:
    """Build the release of the commit that is checked out, into an empty folder.

    Changes that are not committed are not in it. It needs the network only for what no cache has.

    Raises:
        InvalidInputError: The folder is not empty, or the project does not say what to release.
    """
    # Packages are built in a folder of the commit's own.
    out = out.absolute()
    if out.exists() and any(out.iterdir()):
        raise InvalidInputError(f"{out} is not empty.", hint="Remove it, or name another folder.")
    commit = Commit.of(repository)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        tree.mkdir()
        commit.export(tree)
        project = Project(tree)
        version = commit.version(project.version)
        base = project.version
        for file in project.files:
            set_version(file, base, version)
        out.mkdir(parents=True, exist_ok=True)
        store = Store(Path(folder, "store"))
        release = Release(version, commit, project.release, tree, out, store)
        report(f"{version.semantic}, commit {commit.revision[:12]}")
        wheels = _build_packages(release)
        report(f"{len(wheels)} Python packages")
        images = _build_images(release, wheels, report)
        more = add_files(release)
        installed = installation_entries(store, out, commit.time)
        report(f"{len(installed)} charts and component files")
        bundle = out / f"capelin-{release.tag}-bundle.tar"
        store.write_archive(bundle, [*images, *installed, *more], commit.time)
        report(f"{bundle.name}: {bundle.stat().st_size / 1e6:.0f} MB")
    write_checksums(out)
    return release


def _build_packages(release: Release) -> list[Path]:
    """Wheels and source archives; the wheels are built from the archives."""
    folder = release.out / "python"
    command = ["uv", "build", "--quiet", "--all-packages", "--no-create-gitignore"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(release.commit.time)}
    # The build backend is pinned, so that the cache has it after the first time.
    for offline in (["--offline"], []):
        done = subprocess.run(
            [*command, *offline, f"--out-dir={folder}"],
            cwd=release.tree,
            env=environment,
            capture_output=True,
            check=False,
        )
        if done.returncode == 0:
            return sorted(folder.glob("*.whl"))
    reason = done.stderr.decode(errors="replace").strip()
    raise UserError("The Python packages cannot be built.", reason=reason)


def _build_images(
    release: Release, wheels: Sequence[Path], report: Callable[[str], None]
) -> list[Descriptor]:
    """All images: an archive and a bill of materials for each architecture; their indexes."""
    source = Source(
        version=release.version.semantic,
        revision=release.commit.revision,
        time=release.commit.time,
        project=release.tree,
        wheels=wheels,
        url=release.settings.source,
    )
    builder = ImageBuilder(release.store, source, Downloads())
    indexes: list[Descriptor] = []
    digests: dict[str, object] = {}
    for image in release.settings.images:
        built = [
            builder.build(image.spec(), architecture)
            for architecture in release.settings.architectures
        ]
        for built_image in built:
            _write_image(release, built_image)
            _write_bill(release, built_image)
            report(_summary(built_image))
        index = builder.join(built)
        digests[image.name] = {
            "index": index.digest,
            **{built_image.image.architecture: _digests(built_image) for built_image in built},
        }
        indexes.append(index.named(f"{image.name}:{release.tag}"))
    file = release.out / "images" / "digests.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(digests, indent=2, sort_keys=True) + "\n")
    return indexes


def _write_image(release: Release, built: BuiltImage) -> None:
    """The archive that `docker load`, `ctr images import` and `kind load image-archive` read."""
    reference = f"{release.settings.registry}/{built.spec.name}:{release.tag}"
    folder = release.out / "images"
    folder.mkdir(exist_ok=True)
    manifest = built.image.manifest
    entry = Descriptor(
        manifest.media_type,
        manifest.digest,
        manifest.size,
        manifest.platform,
        {
            "io.containerd.image.name": reference,
            "org.opencontainers.image.ref.name": release.tag,
        },
    )
    release.store.write_archive(
        folder / f"{_stem(release, built)}.tar",
        [entry],
        release.commit.time,
        docker_manifest(built.image, reference),
    )


def _write_bill(release: Release, built: BuiltImage) -> None:
    folder = release.out / "sbom"
    folder.mkdir(exist_ok=True)
    bill = bill_of_materials(
        built.files,
        image=built.package,
        digest=built.image.manifest.digest,
        created=release.commit.time,
    )
    (folder / f"{_stem(release, built)}.cdx.json").write_bytes(canonical_json(bill))


def _stem(release: Release, built: BuiltImage) -> str:
    return f"{built.spec.name}-{release.tag}-linux-{built.image.architecture}"


def _digests(built: BuiltImage) -> Mapping[str, object]:
    """Diff ids are the same wherever an image is built; digests also depend on zlib's version."""
    return {
        "manifest": built.image.manifest.digest,
        "diffIDs": {layer.name: layer.diff_id for layer in built.image.layers},
        "size": built.size,
    }


def _summary(built: BuiltImage) -> str:
    packages = len({file.package for file in built.files.values()})
    return (
        f"{built.spec.name} {built.image.architecture}: {built.size / 1e6:.1f} MB compressed,"
        f" {len(built.files)} files of {packages} packages"
    )
