"""The container of a machine: its name, its labels and its settings. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from capelin.api import amount
from capelin.provider import Blocked, MachineAddress

from capelin_machine_pool.containers.engine import PROVIDER_LABEL, Container
from capelin_machine_pool.desired import Instance
from capelin_machine_pool.reasons import Reason

UID_LABEL: Final = "capelin.cluster.x-k8s.io/machine-uid"
CLUSTER_LABEL: Final = "capelin.cluster.x-k8s.io/cluster"
MACHINE_LABEL: Final = "capelin.cluster.x-k8s.io/machine"
_UID_CHARACTERS: Final = 8
_NANO: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPolicy:
    """The options of the provider by which an administrator allows containers."""

    images: tuple[str, ...] = ()
    """The images that machines may have. Without any, no container is created."""
    network: str = "bridge"
    """The network of the containers."""
    provider: str = ""
    """Identifies the provider on this machine."""


def read_images(text: str) -> tuple[str, ...]:
    """An option such as `kindest/node:v1.34.0,localhost/node`, in its order.

    Raises:
        ValueError: a name is empty, or contains a space.
    """
    images = [name.strip() for name in text.split(",")]
    if not all(images) or any(len(name.split()) > 1 for name in images):
        raise ValueError(f"{text!r} is not a list of images: write NAME:TAG,...")
    return tuple(dict.fromkeys(images))


def container_name(machine: str, uid: str) -> str:
    """The name of a machine's container. Another machine of the same name has another one."""
    return f"{machine}-{uid[:_UID_CHARACTERS]}"


def allowed_image(instance: Instance, policy: ContainerPolicy) -> str:
    """The image of a machine.

    Raises:
        Blocked: The administrator of the provider does not allow it.
    """
    if not policy.images:
        message = "this provider does not run containers on its machine"
        hint = "choose another backend, or ask its administrator for --container-images"
        raise Blocked(Reason.CONTAINERS_NOT_ALLOWED, message, hint)
    image = instance.containers.image or image_for(instance.version, policy.images)
    if image not in policy.images:
        message = f"this provider does not run the image {image}"
        hint = f"choose one of {', '.join(policy.images)}"
        raise Blocked(Reason.CONTAINERS_NOT_ALLOWED, message, hint)
    return image


def image_for(version: str, images: Sequence[str]) -> str:
    """The first image whose tag is a version, or else the first one of all."""
    return next((image for image in images if _tag(image) == version), images[0])


def _tag(image: str) -> str:
    """The tag of `REGISTRY:PORT/NAME:TAG@DIGEST`."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def container_body(instance: Instance, policy: ContainerPolicy) -> Mapping[str, Any]:
    """The request that creates a machine's container, with the settings of kind's nodes.

    Raises:
        Blocked: The administrator of the provider does not allow the image.
    """
    settings = instance.containers
    memory = 0 if settings.memory is None else int(amount(settings.memory))
    return {
        "Image": allowed_image(instance, policy),
        "Hostname": instance.key.name,
        "Tty": True,
        "Labels": {
            PROVIDER_LABEL: policy.provider,
            UID_LABEL: instance.uid,
            CLUSTER_LABEL: f"{instance.key.namespace}/{instance.cluster}",
            MACHINE_LABEL: f"{instance.key.namespace}/{instance.key.name}",
        },
        "Volumes": {"/var": {}},
        "HostConfig": {
            "Privileged": True,
            "CgroupnsMode": "private",
            "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"],
            "Tmpfs": {"/tmp": "", "/run": ""},  # noqa: S108 - in the container
            "Binds": ["/lib/modules:/lib/modules:ro"],
            "NetworkMode": policy.network,
            # The node image looks it up when it starts, and would wait for a missing name server.
            "ExtraHosts": ["host.docker.internal:host-gateway"],
            # After a restart of the machine. A container that a person stopped stays stopped.
            "RestartPolicy": {"Name": "unless-stopped"},
            "NanoCpus": 0 if settings.cpu is None else int(amount(settings.cpu) * _NANO),
            "Memory": memory,
            "MemorySwap": memory,
        },
    }


def container_addresses(machine: str, container: Container | None) -> tuple[MachineAddress, ...]:
    """The addresses of a machine."""
    internal = container.addresses if container else ()
    return (
        MachineAddress(type="Hostname", address=machine),
        *(MachineAddress(type="InternalIP", address=address) for address in internal),
    )
