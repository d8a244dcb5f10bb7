"""A container image of a Python program: Debian's Python, locked wheels, our own wheels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from capelin.errors import UserError

from capelin_release.debian import Lock, debian_layer
from capelin_release.downloads import Downloads
from capelin_release.files import File, Layer, Package
from capelin_release.oci import Descriptor, Image, Store, StoredLayer, timestamp
from capelin_release.programs import LockedProgram, program_layer
from capelin_release.scan import scan
from capelin_release.wheels import Requirements, Target, locked_requirements, wheel_layer

ARCHITECTURES = ("amd64", "arm64")
USER = 65532
HOME = "/home/nonroot"
_PROGRAMS = "/usr/local/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """What an image is made of."""

    name: str
    """As in `capelin-machine-pool`."""
    package: str
    """The Python package that uv.lock has under this name, with all that it needs."""
    module: str
    """The module that a container starts."""
    description: str
    programs: tuple[str, ...] = ()
    """Go programs that go with it, by their names in programs.lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What all images of a release are built from."""

    version: str
    revision: str
    """The commit."""
    time: int
    """The time of the commit, in seconds since 1970."""
    project: Path
    """The project's folder, with its uv.lock."""
    wheels: Sequence[Path]
    """The project's own wheels."""
    url: str = ""
    """Where the source is."""
    licenses: str = "Apache-2.0"


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """One architecture's image with its files, which scans and bills of materials read."""

    spec: ImageSpec
    image: Image
    package: Package
    """The image as a package: what the builder itself wrote belongs to it."""
    files: Mapping[str, File]

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(layer.descriptor.size for layer in self.image.layers)


class ImageError(UserError):
    """An image would hold what must not be in one."""


@dataclass(slots=True)
class ImageBuilder:
    """Builds images into a store. Layers that images share are made once."""

    store: Store
    source: Source
    downloads: Downloads = field(default_factory=Downloads)
    debian: Lock = field(default_factory=Lock.read)
    _stored: dict[tuple[str, ...], tuple[Layer, StoredLayer]] = field(
        default_factory=dict[tuple[str, ...], tuple[Layer, StoredLayer]], init=False
    )

    def build(self, spec: ImageSpec, architecture: str) -> BuiltImage:
        """Build the image for one architecture.

        Raises:
            ImageError: It would hold a secret, a shell, or another file that must not be there.
        """
        target = Target(architecture, self.debian.python)
        needed = locked_requirements(self.source.project, spec.package, target)
        package = self._package(spec, architecture)
        made = [
            self._store(
                ("debian", architecture),
                lambda: debian_layer(self.debian, architecture, self.downloads),
            ),
            self._store(
                ("wheels", architecture, *(wheel.sha256 for wheel in needed.wheels)),
                lambda: wheel_layer(
                    "wheels",
                    self.downloads.fetch(needed.wheels).values(),
                    target,
                    self.debian.time,
                ),
            ),
        ]
        if spec.programs:
            programs = [LockedProgram.read(name) for name in spec.programs]
            made.append(
                self._store(
                    ("programs", architecture, *spec.programs),
                    lambda: program_layer(programs, architecture, self.debian.time, self.downloads),
                )
            )
        own = self._own_wheels(needed)
        application = wheel_layer("application", own, target, self.source.time)
        _add_user(application, package)
        made.append(self._store(("application", architecture, spec.name), lambda: application))
        image = self.store.add_image(
            [stored for _, stored in made],
            architecture=architecture,
            config=self._config(spec),
            created=self.source.time,
        )
        files = {path: file for layer, _ in made for path, file in layer.files.items()}
        return BuiltImage(spec, image, package, files)

    def join(self, images: Sequence[BuiltImage]) -> Descriptor:
        """The index of one image for several architectures."""
        manifests = [built.image.manifest for built in images]
        return self.store.add_index(manifests, self._labels(images[0].spec))

    def _store(self, key: tuple[str, ...], make: Callable[[], Layer]) -> tuple[Layer, StoredLayer]:
        if key not in self._stored:
            layer = make()
            self._stored[key] = layer, store_layer(self.store, layer, key[1])
        return self._stored[key]

    def _own_wheels(self, needed: Requirements) -> list[Path]:
        built = {wheel.name.split("-")[0]: wheel for wheel in self.source.wheels}
        names = sorted(name.replace("-", "_") for name in needed.own)
        if missing := [name for name in names if name not in built]:
            raise ImageError(f"No wheel was built of {', '.join(missing)}.")
        return [built[name] for name in names]

    def _package(self, spec: ImageSpec, architecture: str) -> Package:
        version = self.source.version
        url = f"pkg:oci/{spec.name}@{version}?arch={architecture}"
        return Package("image", spec.name, version, url, (self.source.licenses,))

    def _config(self, spec: ImageSpec) -> dict[str, object]:
        return {
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
            "Labels": self._labels(spec),
        }

    def _labels(self, spec: ImageSpec) -> dict[str, str]:
        return labels(
            created=timestamp(self.source.time),
            description=spec.description,
            licenses=self.source.licenses,
            revision=self.source.revision,
            source=self.source.url,
            title=spec.name,
            version=self.source.version,
        )


def store_layer(store: Store, layer: Layer, architecture: str) -> StoredLayer:
    """Store a layer, unless it has a file that must not be released.

    Raises:
        ImageError: It has one.
    """
    if findings := scan(layer.files, architecture):
        raise ImageError(
            f"The layer {layer.name} for {architecture} must not be released.",
            reason="; ".join(map(str, findings)),
        )
    return store.add_layer(layer)


def labels(**values: str) -> dict[str, str]:
    """Labels of an image, by their names in the OCI specification; empty ones are left out."""
    return {f"org.opencontainers.image.{key}": value for key, value in values.items() if value}


def _add_user(layer: Layer, package: Package) -> None:
    texts = {
        "etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\n"
        f"nonroot:x:{USER}:{USER}:nonroot:{HOME}:/usr/sbin/nologin\n",
        "etc/group": f"root:x:0:\nnonroot:x:{USER}:\n",
    }
    for path, text in texts.items():
        layer.add(path, File(package, 0o644, content=text.encode()))
    layer.add(HOME.strip("/"), File(package, 0o700, "folder", owner=USER))
