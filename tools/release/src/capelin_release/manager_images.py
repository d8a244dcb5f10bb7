"""Images of Cluster API's own managers, for places without a network: one program in each.

They are built from the pinned Go module, since a module is there where a registry is not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from capelin.embedded.binaries import CLUSTER_API

from capelin_release.downloads import Downloads
from capelin_release.files import File, Layer, Package
from capelin_release.image import ARCHITECTURES, USER, ImageError
from capelin_release.oci import Descriptor, Image, Store, timestamp
from capelin_release.programs import LockedProgram, build
from capelin_release.sbom import bill_of_materials
from capelin_release.scan import scan

MANAGERS: Final = ("cluster-api-controller", "kubeadm-bootstrap-controller")
REPOSITORY: Final = "cluster-api"
"""Where they are in a bundle, as they are in `registry.k8s.io/cluster-api`."""
_EPOCH: Final = 0
"""The time of their files: it must not change with a commit of ours."""


@dataclass(frozen=True, slots=True)
class ManagerImage:
    """The image of one manager, for all architectures."""

    program: LockedProgram
    index: Descriptor
    bills: Mapping[str, Mapping[str, Any]]
    """The bill of materials for each architecture."""


def add_manager_images(
    store: Store, created: int, downloads: Downloads | None = None
) -> Iterator[ManagerImage]:
    """Build them into a store.

    Raises:
        ProgramError: A program is not the locked one.
        ImageError: An image would hold what must not be in one.
    """
    for name in MANAGERS:
        program = LockedProgram.read(name)
        image = Package("image", name, program.version, f"pkg:oci/{name}@{program.version}")
        labels = _labels(program, created)
        manifests: list[Descriptor] = []
        bills: dict[str, Mapping[str, Any]] = {}
        for architecture in ARCHITECTURES:
            layer = _layer(program, architecture, downloads or Downloads())
            built = _add_image(store, layer, architecture, labels, created)
            manifests.append(built.manifest)
            bills[architecture] = bill_of_materials(
                layer.files, image=image, digest=built.manifest.digest, created=created
            )
        index = store.add_index(manifests, labels)
        entry = index.named(f"{REPOSITORY}/{name}:{program.version}")
        yield ManagerImage(program, entry, bills)


def _layer(program: LockedProgram, architecture: str, downloads: Downloads) -> Layer:
    layer = Layer("manager", _EPOCH)
    content = build(program, architecture, downloads)
    layer.add("manager", File(program.package, 0o755, content=content))
    if findings := scan(layer.files, architecture):
        raise ImageError(
            f"The image {program.name} for {architecture} must not be released.",
            reason="; ".join(map(str, findings)),
        )
    return layer


def _add_image(
    store: Store, layer: Layer, architecture: str, labels: dict[str, str], created: int
) -> Image:
    config = {"User": f"{USER}:{USER}", "Entrypoint": ["/manager"], "Labels": labels}
    stored = store.add_layer(layer)
    return store.add_image([stored], architecture=architecture, config=config, created=created)


def _labels(program: LockedProgram, created: int) -> dict[str, str]:
    values = {
        "created": timestamp(created),
        "description": f"{program.name} of {CLUSTER_API.title}, built from its Go module.",
        "licenses": "Apache-2.0",
        "source": "https://github.com/kubernetes-sigs/cluster-api",
        "title": program.name,
        "version": program.version,
    }
    return {f"org.opencontainers.image.{key}": value for key, value in values.items()}
