"""The manager of the infrastructure provider."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capelin.client import Destinations
from capelin.controller import Options, Reconciler, flag
from capelin.controller import main as run
from capelin.embedded.binaries import Binaries, PlainProgress
from capelin.embedded.folders import provider_folder

from capelin_machine_pool.api import BackendName
from capelin_machine_pool.backends import Backend
from capelin_machine_pool.backends.hosts import HostsBackend
from capelin_machine_pool.backends.kubelet import SimulatedKubelet
from capelin_machine_pool.backends.simulated import SimulatedBackend
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


def build(options: MachinePoolOptions) -> Sequence[Reconciler[Any]]:
    kubelet = SimulatedKubelet(options.state_folder)
    simulated = SimulatedBackend(options.state_folder, Binaries(progress=PlainProgress()), kubelet)
    backends: dict[BackendName, Backend] = {"Simulated": simulated, "Hosts": HostsBackend()}
    return [
        ClusterReconciler(),
        MachineReconciler(backends, serving=kubelet.serving, refresh=simulated.kwok.refresh),
        MachinePoolReconciler(),
        MachineTemplateReconciler(),
        HostReconciler(Destinations.from_environ()),
    ]


def main() -> None:
    sys.exit(run(MANAGER, build, MachinePoolOptions))


if __name__ == "__main__":
    main()
