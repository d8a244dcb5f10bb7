"""Container images: Python programs on Debian's Python, and Cluster API's own managers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from capelin.errors import UserError
from capelin_embedded.binaries import CLUSTER_API
from packaging.utils import canonicalize_name

from capelin_release.debian import Lock, debian_layer
from capelin_release.downloads import Downloads
from capelin_release.files import File, Layer, Package
from capelin_release.oci import Descriptor, Store, StoredLayer, timestamp
from capelin_release.programs import LockedProgram, build
from capelin_release.project import ImageSpec, Release
from capelin_release.sbom import bill_of_materials
from capelin_release.scan import scan
from capelin_release.wheels import (
    Requirements,
    Target,
    add_wheel,
    license_of,
    locked_requirements,
    package_of,
)

USER: Final = 65532
HOME: Final = "/home/nonroot"
MANAGERS: Final = ("cluster-api-controller", "kubeadm-bootstrap-controller")
_PROGRAMS: Final = "/usr/local/bin"
_CLUSTER_API_LICENSE: Final = "Apache-2.0"


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """One architecture's image with its layers, which bills of materials read."""

    package: Package
    """The image as a package, for files that the builder itself wrote."""
    architecture: str
    manifest: Descriptor
    layers: Sequence[StoredLayer]
    created: int

    @property
    def stem(self) -> str:
        """Prefix of its files in a release, such as `fish-v0.1.0-linux-amd64`."""
        version = self.package.version.removeprefix("v")
        return f"{self.package.name}-v{version}-linux-{self.architecture}"

    @property
    def files(self) -> dict[str, File]:
        """The files of all layers."""
        return {path: file for stored in self.layers for path, file in stored.layer.files.items()}

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(stored.descriptor["size"] for stored in self.layers)

    @property
    def bill(self) -> dict[str, Any]:
        """Its bill of materials."""
        return bill_of_materials(
            self.files, image=self.package, digest=self.manifest["digest"], created=self.created
        )


class ImageError(UserError):
    """An image would contain a forbidden file."""


@dataclass(slots=True)
class ImageBuilder:
    """Builds a release's images into its store. Images share equal layers."""

    release: Release
    wheels: Sequence[Path]
    """Wheels of the project's own packages, and of path sources."""
    downloads: Downloads = field(default_factory=Downloads)
    debian: Lock = field(default_factory=Lock.read)
    _stored: dict[tuple[str, ...], StoredLayer] = field(
        default_factory=dict[tuple[str, ...], StoredLayer], init=False
    )

    def path_sources(self) -> dict[str, Path]:
        """The folders of packages that images need and the project does not build, by name."""
        built = set(map(package_of, self.wheels))
        return {
            name: folder
            for spec in self.release.settings.images
            for architecture in self.release.settings.architectures
            for name, folder in self._requirements(spec, architecture).folders.items()
            if name not in built
        }

    def build(self, spec: ImageSpec, architecture: str) -> BuiltImage:
        """Build the image for one architecture."""
        target = Target(architecture, self.debian.python)
        needed = self._requirements(spec, architecture)
        own = self._own_wheels(needed)
        license_ = license_of(own[canonicalize_name(spec.package)])
        url = f"pkg:oci/{spec.name}@{self.release.version}?arch={architecture}"
        licenses = (license_,) if license_ else ()
        package = Package("image", spec.name, self.release.version, url, licenses)

        def debian() -> Layer:
            return debian_layer(self.debian, architecture, self.downloads)

        def wheels() -> Layer:
            layer = Layer("wheels", self.debian.time)
            for wheel in self.downloads.fetch(needed.wheels).values():
                add_wheel(layer, wheel, target)
            return layer

        def programs() -> Layer:
            layer = Layer("programs", self.debian.time)
            for program in map(LockedProgram.read, spec.programs):
                content = build(program, architecture, self.downloads)
                path = f"{_PROGRAMS}/{program.name}".strip("/")
                layer.add(path, File(program.package, 0o755, content=content))
            return layer

        layers = [
            self._shared(("debian", architecture), debian),
            self._shared(("wheels", architecture, *(w.sha256 for w in needed.wheels)), wheels),
        ]
        if spec.programs:
            layers.append(self._shared(("programs", architecture, *spec.programs), programs))
        application = Layer("application", self.release.commit.time)
        for wheel in own.values():
            add_wheel(application, wheel, target)
        _add_user(application, package)
        layers.append(store_layer(self.release.store, application, architecture))
        config = {
            "User": f"{USER}:{USER}",
            "WorkingDir": HOME,
            "Entrypoint": ["/usr/bin/python3", "-m", spec.module],
            "Env": [
                f"PATH={_PROGRAMS}:/usr/bin",
                f"HOME={HOME}",
                "LANG=C.UTF-8",
                "PYTHONDONTWRITEBYTECODE=1",
                "PYTHONUNBUFFERED=1",
                *([f"CAPELIN_BINARIES={_PROGRAMS}"] if spec.programs else []),
            ],
        }
        return _add_image(
            self.release,
            package,
            layers,
            architecture,
            config,
            description=spec.description,
            revision=self.release.commit.revision,
            source=self.release.settings.source,
            licenses=license_,
        )

    def _requirements(self, spec: ImageSpec, architecture: str) -> Requirements:
        target = Target(architecture, self.debian.python)
        return locked_requirements(self.release.tree, spec.package, target, self.downloads)

    def _shared(self, key: tuple[str, ...], make: Callable[[], Layer]) -> StoredLayer:
        if key not in self._stored:
            self._stored[key] = store_layer(self.release.store, make(), key[1])
        return self._stored[key]

    def _own_wheels(self, needed: Requirements) -> dict[str, Path]:
        built = {package_of(wheel): wheel for wheel in self.wheels}
        names = sorted(needed.folders)
        if missing := [name for name in names if name not in built]:
            raise ImageError(f"No wheel was built of {', '.join(missing)}.")
        return {name: built[name] for name in names}


def manager_image(
    release: Release, program: LockedProgram, architecture: str, downloads: Downloads
) -> BuiltImage:
    """The image of a manager of Cluster API, for places without a network: one program.

    It is built from the pinned Go module, which needs no registry.
    """
    name = program.name
    # A commit of ours must not change the layer.
    layer = Layer("manager", 0)
    content = build(program, architecture, downloads)
    layer.add("manager", File(program.package, 0o755, content=content))
    return _add_image(
        release,
        Package("image", name, program.version, f"pkg:oci/{name}@{program.version}"),
        [store_layer(release.store, layer, architecture)],
        architecture,
        {"User": f"{USER}:{USER}", "Entrypoint": ["/manager"]},
        description=f"{name} of {CLUSTER_API.title}, built from its Go module.",
        source="https://github.com/kubernetes-sigs/cluster-api",
        licenses=_CLUSTER_API_LICENSE,
    )


def store_layer(store: Store, layer: Layer, architecture: str) -> StoredLayer:
    """Store a layer, unless it has a file that must not be released."""
    if findings := scan(layer.files, architecture):
        raise ImageError(
            f"The layer {layer.name} for {architecture} must not be released.",
            reason="; ".join(map(str, findings)),
        )
    return store.add_layer(layer)


def _add_image(
    release: Release,
    package: Package,
    layers: Sequence[StoredLayer],
    architecture: str,
    config: Mapping[str, Any],
    **labels: str,
) -> BuiltImage:
    """Store an image. Labels go by their names in the OCI specification, without empty ones."""
    created = release.commit.time
    labels |= {
        "created": timestamp(created),
        "title": package.name,
        "version": package.version,
    }
    named = {f"org.opencontainers.image.{key}": value for key, value in labels.items() if value}
    manifest = release.store.add_image(
        layers, architecture=architecture, config={**config, "Labels": named}, created=created
    )
    return BuiltImage(package, architecture, manifest, layers, created)


def _add_user(layer: Layer, package: Package) -> None:
    texts = {
        "etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\n"
        f"nonroot:x:{USER}:{USER}:nonroot:{HOME}:/usr/sbin/nologin\n",
        "etc/group": f"root:x:0:\nnonroot:x:{USER}:\n",
    }
    for path, text in texts.items():
        layer.add(path, File(package, 0o644, content=text.encode()))
    layer.add(HOME.strip("/"), File(package, 0o700, "folder", owner=USER))
