"""Images of Cluster API's own managers, for places without a network: one program in each.

They are built from the pinned Go module, since a module is there where a registry is not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from capelin.embedded.binaries import CLUSTER_API

from capelin_release.downloads import Downloads
from capelin_release.files import File, Layer, Package
from capelin_release.image import ARCHITECTURES, USER, labels, store_layer
from capelin_release.oci import Descriptor, Store, timestamp
from capelin_release.programs import LockedProgram, build
from capelin_release.sbom import bill_of_materials

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
        ImageError: An image would hold a file that must not be in one.
    """
    for name in MANAGERS:
        program = LockedProgram.read(name)
        image = Package("image", name, program.version, f"pkg:oci/{name}@{program.version}")
        about = labels(
            created=timestamp(created),
            description=f"{name} of {CLUSTER_API.title}, built from its Go module.",
            licenses="Apache-2.0",
            source="https://github.com/kubernetes-sigs/cluster-api",
            title=name,
            version=program.version,
        )
        config = {"User": f"{USER}:{USER}", "Entrypoint": ["/manager"], "Labels": about}
        manifests: list[Descriptor] = []
        bills: dict[str, Mapping[str, Any]] = {}
        for architecture in ARCHITECTURES:
            layer = Layer("manager", _EPOCH)
            content = build(program, architecture, downloads or Downloads())
            layer.add("manager", File(program.package, 0o755, content=content))
            manifest = store.add_image(
                [store_layer(store, layer, architecture)],
                architecture=architecture,
                config=config,
                created=created,
            ).manifest
            manifests.append(manifest)
            bills[architecture] = bill_of_materials(
                layer.files, image=image, digest=manifest.digest, created=created
            )
        index = store.add_index(manifests, about)
        yield ManagerImage(program, index.named(f"{REPOSITORY}/{name}:{program.version}"), bills)
