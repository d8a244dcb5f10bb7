"""The manager of the control plane provider."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

from capelin.client import AllowedEndpoint, Client, Config, read_endpoints
from capelin.controller import ObjectKey, Options, Reconciler, flag, seconds
from capelin.controller import main as run
from capelin_embedded.binaries import Binaries, PlainProgress
from capelin_embedded.folders import provider_folder

from capelin_control_plane.api import BackendName
from capelin_control_plane.api.policy import (
    Network,
    Plugins,
    Policy,
    read_names,
    read_networks,
    read_plugins,
)
from capelin_control_plane.backends import Backend
from capelin_control_plane.backends.pods import PodsBackend
from capelin_control_plane.backends.processes import ProcessesBackend
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.reconciler import MANAGER, CapelinControlPlaneReconciler


def read_backends(text: str) -> tuple[BackendName, ...]:
    """An option such as `pods,processes`, in its order.

    Raises:
        ValueError: the backend does not exist.
    """
    known: dict[str, BackendName] = {name.lower(): name for name in get_args(BackendName)}
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ValueError(f'"{name}" is not a backend: write {" or ".join(sorted(known))}')
    return tuple(dict.fromkeys(known[name] for name in names))


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneOptions(Options):
    """Options of the manager of the control plane provider."""

    backends: tuple[BackendName, ...] = flag(
        ("Processes",),
        read_backends,
        "How control planes may run: `processes` of this machine, `pods` of the management cluster,"
        " or both with a comma between them. Those without spec.backend take the first.",
        shown="processes",
    )
    state_folder: Path = flag(
        provider_folder("control-planes"),
        Path,
        "Directory of the state of control planes on processes. Providers that share it can hand"
        " control planes over.",
        shown="~/.local/state/capelin/.control-planes",
    )
    allow_extra_args: frozenset[str] = flag(
        frozenset[str](),
        read_names,
        "Flags that users may set beyond the safe ones, as COMPONENT.FLAG,... They may reach this"
        " machine.",
        shown="none",
    )
    allow_extra_env: frozenset[str] = flag(
        frozenset[str](),
        read_names,
        "Environment variables that users may set beyond the safe ones, as COMPONENT.NAME,...",
        shown="none",
    )
    endpoint_networks: tuple[Network, ...] = flag(
        (),
        read_networks,
        "Networks of this machine's addresses at which users may let endpoints listen.",
        shown="only each control plane's own loopback address",
    )

    kms_plugins: Plugins = flag(
        (),
        read_plugins,
        "KMS v2 plugins that users may encrypt with, as NAME=SOCKET,... Each socket is in a folder"
        " of its own, on the machine or on the nodes of API servers.",
        shown="none",
    )
    backup_folder: Path | None = flag(
        None,
        Path,
        "Existing folder for backups of control planes. Users choose names of folders in a"
        " folder of their namespace below it.",
        shown="none: no backups in folders",
    )
    backup_endpoints: tuple[AllowedEndpoint, ...] = flag(
        (),
        read_endpoints,
        "S3 endpoints that users may back up to, with commas between them. `https://*.example.com`"
        " and `https://*` allow more, except local addresses. `http` is possible for one endpoint.",
        shown="none: no backups to S3",
    )
    restore_image: str | None = flag(
        None,
        str,
        "Image of the pods that create the data of restored etcd members: that of the provider.",
        shown="the image of the provider's own pod",
    )
    delete_orphans_after: float | None = flag(
        None,
        seconds,
        "Time after which to delete a control plane if its object was deleted and its finalizer was"
        " then removed by hand. One that was moved or lost its object otherwise is only logged.",
        shown="never: the provider only logs them",
    )

    @property
    def policy(self) -> Policy:
        return Policy(
            extra_args=self.allow_extra_args,
            extra_env=self.allow_extra_env,
            endpoint_networks=self.endpoint_networks,
            kms_plugins=self.kms_plugins,
        )

    @property
    def orphan_grace(self) -> timedelta | None:
        """How long to keep control planes without an object. None keeps them."""
        after = self.delete_orphans_after
        return None if after is None else timedelta(seconds=after)


def build(options: ControlPlaneOptions) -> Sequence[Reconciler[Any]]:
    def wake(key: ObjectKey) -> None:
        reconciler.wake(key)

    def backend(name: BackendName) -> Backend:
        if name == "Processes":
            binaries = Binaries(progress=PlainProgress())
            return ProcessesBackend(options.state_folder, binaries, wake, options.policy)
        config = Config.find(options.kubeconfig, environ=os.environ)
        return PodsBackend(
            Client(config, manager=MANAGER), options.namespace, options.restore_image
        )

    backends: dict[BackendName, Backend] = {name: backend(name) for name in options.backends}
    reconciler = CapelinControlPlaneReconciler(
        backends,
        options.policy,
        options.orphan_grace,
        Stores(options.backup_folder, options.backup_endpoints),
    )
    return [reconciler]


def main() -> None:
    sys.exit(run(MANAGER, build, ControlPlaneOptions))


if __name__ == "__main__":
    main()
