"""The manager of the infrastructure provider."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capelin.client import Destinations
from capelin.controller import Options, Reconciler, flag
from capelin.controller import main as run
from capelin_embedded.binaries import Binaries, PlainProgress
from capelin_embedded.folders import provider_folder

from capelin_machine_pool.api import BackendName
from capelin_machine_pool.backends import Backend
from capelin_machine_pool.backends.containers import ContainersBackend
from capelin_machine_pool.backends.hosts import HostsBackend
from capelin_machine_pool.backends.simulated import SimulatedBackend
from capelin_machine_pool.bootstrap import Archives
from capelin_machine_pool.containers.desired import ContainerPolicy, read_images
from capelin_machine_pool.containers.engine import Engine, socket_of
from capelin_machine_pool.desired import MANAGER
from capelin_machine_pool.reconcilers import (
    ClusterReconciler,
    HostReconciler,
    MachinePoolReconciler,
    MachineReconciler,
    MachineTemplateReconciler,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePoolOptions(Options):
    """Options of the infrastructure provider's manager."""

    state_folder: Path = flag(
        provider_folder("machines"),
        Path,
        "Directory for the processes that keep simulated machines alive.",
        shown="~/.local/state/capelin/.machines",
    )
    container_images: tuple[str, ...] = flag(
        (),
        read_images,
        "Images of machines of the backend `Containers`, with commas between them. A machine gets"
        " the one whose tag is its version, or else the first one. Users who may"
        " create such machines become root on this machine: the containers are privileged.",
        shown="none: no containers",
    )
    container_engine: str = flag(
        socket_of(os.environ),
        str,
        "Socket of the container engine, Docker or Podman.",
        shown="that of DOCKER_HOST, else /var/run/docker.sock or /run/podman/podman.sock",
    )
    host_bundles: Path | None = flag(
        None,
        Path,
        "Directory with archives of kubelet, kubeadm and container runtime, which the provider"
        " installs on hosts, and their file SHA256SUMS.",
        shown="none",
    )
    power_commands: Path | None = flag(
        None,
        Path,
        "Directory with a folder for each namespace, with programs that power cycle its hosts."
        " Users choose one by its name. They run as this process, with HOST_NAME and HOST_ADDRESS.",
        shown="none",
    )
    container_network: str = flag("bridge", str, "Name of the containers' network.")


def build(options: MachinePoolOptions) -> Sequence[Reconciler[Any]]:
    simulated = SimulatedBackend(options.state_folder, Binaries(progress=PlainProgress()))
    policy = ContainerPolicy(
        images=options.container_images,
        network=options.container_network,
        provider=str(options.state_folder),
    )
    archives = Archives(options.host_bundles)
    backends: dict[BackendName, Backend] = {
        "Simulated": simulated,
        "Containers": ContainersBackend(Engine(options.container_engine), policy),
        "Hosts": HostsBackend(archives),
    }
    return [
        ClusterReconciler(),
        MachineReconciler(backends, simulated.kwok.refresh),
        MachinePoolReconciler(),
        MachineTemplateReconciler(),
        HostReconciler(Destinations.from_environ(), archives, options.power_commands),
    ]


def main() -> None:
    sys.exit(run(MANAGER, build, MachinePoolOptions))


if __name__ == "__main__":
    main()
