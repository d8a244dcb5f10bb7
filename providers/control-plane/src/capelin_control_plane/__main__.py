"""The manager of the control plane provider."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capelin.controller import ObjectKey, Options, Reconciler, flag
from capelin.controller import main as run
from capelin.embedded.binaries import Binaries, PlainProgress
from capelin.embedded.folders import provider_folder

from capelin_control_plane.backends.processes import ProcessesBackend
from capelin_control_plane.reconciler import MANAGER, CapelinControlPlaneReconciler


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneOptions(Options):
    """Options of the manager of the control plane provider."""

    state_folder: Path = flag(
        provider_folder("control-planes"),
        Path,
        "Where control planes on processes keep their state. Providers that share it can hand them"
        " over.",
        shown="~/.local/state/capelin/.control-planes",
    )


def build(options: ControlPlaneOptions) -> Sequence[Reconciler[Any]]:
    """The reconcilers of the provider."""

    def wake(key: ObjectKey) -> None:
        reconciler.wake(key)

    binaries = Binaries(progress=PlainProgress())
    reconciler = CapelinControlPlaneReconciler(
        ProcessesBackend(options.state_folder, binaries, wake)
    )
    return [reconciler]


def main() -> None:
    """Run the manager."""
    sys.exit(run(MANAGER, build, ControlPlaneOptions))


if __name__ == "__main__":
    main()
