"""What an environment can be made of: Cluster API's own providers, and installed packages'."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final, get_args

from capelin.contract.names import ProviderType, provider_label
from capelin.errors import InvalidInputError, UserError
from capelin.provider import ENTRY_POINTS, Provider


@dataclass(frozen=True, slots=True)
class Upstream:
    """A provider of the Cluster API project: a program, and the kustomization that installs it."""

    name: str
    type: ProviderType
    program: str
    """Its name among the binaries."""
    source: str
    """The Go module, by its name among the binaries, that the kustomization is in."""
    kustomization: str
    fixed_ports: tuple[int, ...] = ()
    """Ports that it listens on whatever one says: a second one on the machine cannot run."""

    @property
    def label(self) -> str:
        """As in `bootstrap-kubeadm`: what clusterctl, and our processes, call it."""
        return provider_label(self.type, self.name)


CORE: Final = Upstream(
    "cluster-api", "CoreProvider", "cluster-api-controller", "cluster-api", "core/config/default"
)

_KUBEADM_BOOTSTRAP: Final = Upstream(
    "kubeadm",
    "BootstrapProvider",
    "kubeadm-bootstrap-controller",
    "cluster-api",
    "bootstrap/kubeadm/config/default",
)

ON_REQUEST: Final[dict[str, tuple[Upstream, ...]]] = {
    "kubeadm-bootstrap": (_KUBEADM_BOOTSTRAP,),
    "kubeadm": (
        _KUBEADM_BOOTSTRAP,
        Upstream(
            "kubeadm",
            "ControlPlaneProvider",
            "kubeadm-control-plane-controller",
            "cluster-api",
            "controlplane/kubeadm/config/default",
        ),
    ),
    "dev": (
        Upstream(
            "docker",
            "InfrastructureProvider",
            "capd-manager",
            "cluster-api/test",
            "infrastructure/docker/config/default",
        ),
    ),
}
"""What `--with` takes, and the providers that each name brings."""


def upstream(requested: Iterable[str]) -> list[Upstream]:
    """Cluster API's core and, after it, the providers asked for by their `--with` names.

    Raises:
        InvalidInputError: for a name that is not in `ON_REQUEST`.
    """
    asked = set(requested)
    if unknown := sorted(asked - ON_REQUEST.keys()):
        raise InvalidInputError(
            f"No provider is called {unknown[0]!r}.",
            reason=f"Those that there are: {', '.join(ON_REQUEST)}.",
            hint="Name some of them, separated by commas.",
        )
    brought = (each for name, several in ON_REQUEST.items() if name in asked for each in several)
    return [CORE, *dict.fromkeys(brought)]


def discover(points: Iterable[EntryPoint] | None = None) -> list[Provider]:
    """The providers of all installed packages, by label.

    Raises:
        UserError: if what a package registered is no provider; it is named.
    """
    found = entry_points(group=ENTRY_POINTS) if points is None else points
    return sorted((_described(point) for point in found), key=lambda each: each.label)


def _described(point: EntryPoint) -> Provider:
    describe: Callable[[], object] = point.load()
    provider = describe()
    if not isinstance(provider, Provider) or provider.type not in get_args(ProviderType):
        raise UserError(
            f"The entry point {point.name!r} of {ENTRY_POINTS} describes no provider.",
            reason=f"{point.value} returns {type(provider).__name__} instead of a valid Provider.",
            hint="Repair the package that has it, or uninstall it.",
        )
    return provider
