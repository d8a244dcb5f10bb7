"""Machines that are containers: the requirements of `capelin up`, and their end with `down`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from capelin.errors import InvalidInputError, UnfitMachineError, UserError
from capelin.versions import Version
from capelin_embedded.addresses import is_free
from capelin_embedded.binaries import KNOWN_KUBERNETES
from capelin_embedded.management import Environment
from capelin_machine_pool.containers.desired import read_images
from capelin_machine_pool.containers.engine import (
    PROVIDER_LABEL,
    Engine,
    EngineError,
    socket_of,
)

from capelin_cli.terminal.checklist import Checklist, Line

Machines = Literal["containers", "simulated", "auto"]

DEFAULT_IMAGE: Final = (
    "kindest/node:v1.36.1@sha256:3489c7674813ba5d8b1a9977baea8a6e553784dab7b84759d1014dbd78f7ebd5"
)
"""The newest image of kind for a Kubernetes version that Capelin provides."""
_IMAGES: Final = "CAPELIN_CONTAINER_IMAGES"
_ENGINE: Final = "CAPELIN_CONTAINER_ENGINE"
_NETWORK: Final = "CAPELIN_CONTAINER_NETWORK"
_ENDPOINTS: Final = "CAPELIN_ENDPOINT_NETWORKS"
_NETWORKS: Final = ("bridge", "podman")
"""The networks that Docker and Podman have from the start."""
_PULL_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerMachines:
    """Properties of an engine and of the image of its machines."""

    images: tuple[str, ...]
    """The first one is that of new clusters. Others have other versions of Kubernetes."""
    socket: str
    network: str
    gateway: str
    """The address of this machine in the network, at which control planes listen."""
    kubernetes_version: str
    """That of the first image."""
    manifests: Mapping[str, str]
    """The pod network and the storage class that kind gives its nodes, by file name."""

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The settings of the managers of an environment."""
        networks = filter(None, (self.gateway, environ.get(_ENDPOINTS)))
        return {
            _IMAGES: ",".join(self.images),
            _ENGINE: self.socket,
            _NETWORK: self.network,
            _ENDPOINTS: ",".join(networks),
        }


class _UnusableError(Exception):
    """No machine can be a container here. The text names the reason."""


async def find_container_machines(
    machines: Machines, image: str | None, checklist: Checklist
) -> ContainerMachines | None:
    """The engine and the image of machines, or None if the machines are simulated.

    Raises:
        UnfitMachineError: The user requires containers, and they are not possible.
    """
    if machines == "simulated":
        return None
    with checklist.step("container engine") as line:
        try:
            found = await _examine(Engine(socket_of(os.environ)), image, checklist, line)
        except (EngineError, _UnusableError) as error:
            if machines == "containers":
                raise UnfitMachineError(
                    "Machines cannot be containers here.",
                    reason=f"{str(error).rstrip('.')}.",
                    hint="Start Docker, or name an image that it has with --machine-image. "
                    "--machines simulated needs neither.",
                ) from None
            line.detail = f"machines are simulated: {error}"
            return None
        names = ", ".join(image.partition("@")[0] for image in found.images)
        line.detail = f"machines are containers of {names}"
        return found


async def _examine(
    engine: Engine, image: str | None, checklist: Checklist, line: Line
) -> ContainerMachines:
    await engine.version()
    network, gateway = await _find_network(engine)
    try:
        images = read_images(image or DEFAULT_IMAGE)
    except ValueError as error:
        raise _UnusableError(str(error)) from error
    for needed in images:
        if not await engine.has_image(needed):
            name = needed.partition("@")[0]
            checklist.update(line, f"pulling {name}")
            try:
                await engine.pull(needed, seconds=_PULL_SECONDS)
            except EngineError as error:
                raise _UnusableError(f"the engine cannot pull {name}: {error}") from error
    version, manifests = await _read_image(engine, images[0])
    return ContainerMachines(
        images=images,
        socket=engine.socket,
        network=network,
        gateway=gateway,
        kubernetes_version=version,
        manifests=manifests,
    )


async def _find_network(engine: Engine) -> tuple[str, str]:
    """The default network, and this machine's address in it."""
    for network in _NETWORKS:
        gateway = await engine.gateway(network)
        if gateway is None:
            continue
        if is_free(gateway, 0):
            return network, gateway
        message = f"control planes cannot listen at {gateway}, the gateway of the network {network}"
        raise _UnusableError(message)
    raise _UnusableError("the engine has no default network with a gateway")


async def _read_image(engine: Engine, image: str) -> tuple[str, Mapping[str, str]]:
    """The Kubernetes version of a node image of kind, and its manifests."""
    container = await engine.create({"Image": image, "Cmd": ["none"]})
    try:
        version = await engine.read_files(container, "/kind/version")
        manifests = await engine.read_files(container, "/kind/manifests")
    except EngineError as error:
        raise _UnusableError(f"{image} is not a node image of kind: {error}") from error
    finally:
        await engine.remove(container)
    return version["version"].decode().strip(), {
        name: content.decode() for name, content in sorted(manifests.items())
    }


def version_for(image_version: str, requested: str | None) -> str:
    """The Kubernetes version of a cluster whose nodes have the version of an image.

    Raises:
        InvalidInputError: The nodes would be newer than the control plane.
    """
    nodes = Version.parse(image_version)
    if requested is not None:
        if Version.parse(requested).minor < nodes.minor:
            raise InvalidInputError(
                f"A cluster of {requested} cannot have nodes of {image_version}.",
                reason="The kubelets of the image are newer than the control plane.",
                hint=f"Choose {image_version} or later, or another image with --machine-image.",
            )
        return requested
    if image_version in KNOWN_KUBERNETES:
        return image_version
    suitable = [known for known in KNOWN_KUBERNETES if Version.parse(known).minor >= nodes.minor]
    if not suitable:
        raise InvalidInputError(
            f"Capelin provides no control plane for nodes of {image_version}.",
            reason=f"The newest version that it provides is {KNOWN_KUBERNETES[-1]}.",
            hint="Choose an older image with --machine-image.",
        )
    return suitable[0]


def engine_of(environment: Environment) -> Engine | None:
    """The engine that runs the machines of an environment, if any are containers."""
    try:
        settings = environment.settings()
    except UserError:
        return None
    socket = settings.variables.get(_ENGINE) if settings else None
    return None if socket is None else Engine(socket)


async def pause_containers(environment: Environment, engine: Engine) -> None:
    """Freeze the machines of an environment. Its provider lets them continue."""
    for container in await _containers_of(environment, engine):
        found = await engine.find(container)
        if found is not None and found.state == "running":
            await engine.pause(container, on=True)


async def remove_containers(environment: Environment, engine: Engine) -> None:
    """Remove the machines of an environment."""
    for container in await _containers_of(environment, engine):
        await engine.remove(container)


async def _containers_of(environment: Environment, engine: Engine) -> list[str]:
    providers = await engine.labelled(PROVIDER_LABEL)
    return [
        container
        for container, folder in providers.items()
        if Path(folder).is_relative_to(environment.workloads)
    ]
