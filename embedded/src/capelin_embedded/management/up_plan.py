"""Plans `capelin up`: one pure function, from a request and observations to steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from capelin.client import Config
from capelin.contract import upgrade_problem
from capelin.errors import BusyError, InvalidInputError
from capelin.versions import Version

from capelin_embedded.binaries import DEFAULT_KUBERNETES, KNOWN_KUBERNETES, check_kubernetes_version
from capelin_embedded.management.attach import SUPPORTED_SERVERS, Attachment
from capelin_embedded.management.environment import Settings, Target


@dataclass(frozen=True, slots=True)
class UpRequest:
    """A user's desired environment. None keeps the current value, or uses the default."""

    kubernetes_version: str | None = None
    providers: tuple[str, ...] = ()
    durable: bool = True
    target: Target | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    prefetch: bool | None = None
    """Whether to get the programs of the next Kubernetes version in the background."""
    backup_folder: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables of our managers, in addition to those of the environment."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The state before any change."""

    name: str
    settings: Settings | None = None
    attachment: Attachment | None = None
    """The existing API server, if that is the target."""
    capelin: str = ""
    """The version of the running Capelin."""
    busy_ports: Mapping[str, int] = field(default_factory=dict[str, int])
    """Labels of providers, and a port of each that another process uses."""


@dataclass(frozen=True, slots=True)
class FetchPrograms:
    """Ensure that the cache has the binaries of the API server and of Cluster API.

    If some are missing, this also provides those of installed providers.
    """

    settings: Settings


@dataclass(frozen=True, slots=True)
class FetchProviderPrograms:
    """Ensure that the cache has the binaries of installed providers.

    The API server starts meanwhile: reading the binaries' names requires loading the packages.
    """

    settings: Settings


@dataclass(frozen=True, slots=True)
class CheckVacant:
    """Reject an existing API server that has the Cluster API of another installation."""

    attachment: Attachment
    settings: Settings


@dataclass(frozen=True, slots=True)
class StartSupervisor:
    """Write the settings and start a supervisor with them. Running processes stay."""

    settings: Settings
    config: Config | None = None
    """The access to the API server, if it is not our own."""


@dataclass(frozen=True, slots=True)
class WaitUntilUp:
    """Follow the supervisor until everything runs."""


Step = FetchPrograms | CheckVacant | StartSupervisor | FetchProviderPrograms | WaitUntilUp


def choose_target(request: UpRequest, name: str, settings: Settings | None) -> Target:
    """The target of an environment: the existing one, or else the requested one.

    Raises:
        InvalidInputError: The request contradicts the existing target.
    """
    if settings is None:
        target = request.target or "process"
    elif request.target in {None, settings.target}:
        target = settings.target
    else:
        raise InvalidInputError(
            f"Environment {name} has the target {settings.target}.",
            reason="Its objects are in that API server, and Capelin cannot move them.",
            hint=f"Omit --target, choose another environment with -e, or remove it first: "
            f"capelin down -e {name}.",
        )
    if target == "process" and (request.kubeconfig is not None or request.context is not None):
        raise InvalidInputError(
            "--kubeconfig and --context require an existing API server.",
            reason=f"Environment {name} has its own API server.",
            hint="Add --target existing, or omit them.",
        )
    return target


def plan_up(request: UpRequest, observed: Observed) -> tuple[Step, ...]:
    """The steps from the observed to the desired state. The same steps if everything runs.

    Raises:
        InvalidInputError: The request contradicts the observed state.
        BusyError: Another process uses a provider's fixed port.
    """
    settings = _desired_settings(request, observed)
    if observed.busy_ports:
        label, port = next(iter(observed.busy_ports.items()))
        raise BusyError(
            f"The provider {label} cannot run in environment {observed.name}.",
            reason=f"It always uses port {port}, which another process uses. "
            "Another environment may have this provider.",
            hint="Remove that environment first, or omit the provider from --with.",
        )
    attachment = observed.attachment
    return (
        FetchPrograms(settings),
        *((CheckVacant(attachment, settings),) if attachment else ()),
        StartSupervisor(settings, attachment.config if attachment else None),
        FetchProviderPrograms(settings),
        WaitUntilUp(),
    )


def _desired_settings(request: UpRequest, observed: Observed) -> Settings:
    """The new settings: the previous ones, plus the requested providers."""
    before = observed.settings
    if before is not None:
        _check_capelin(before, observed)
    providers = sorted({*(before.providers if before else ()), *request.providers})
    kept = _successor(before.kubernetes_version, KNOWN_KUBERNETES) if before else DEFAULT_KUBERNETES
    backup_folder = request.backup_folder or (before.backup_folder if before else None)
    variables = {**(before.variables if before else {}), **request.variables}
    version = request.kubernetes_version or kept
    check_kubernetes_version(version)
    if observed.attachment is None:
        _check_management_version(version)
    prefetch = before is not None and before.prefetch
    if request.prefetch is not None:
        prefetch = request.prefetch
    if before is None or observed.attachment is not None:
        return Settings(
            kubernetes_version=version,
            providers=providers,
            durable=request.durable,
            existing=observed.attachment.server if observed.attachment else None,
            backup_folder=backup_folder,
            variables=variables,
            capelin=observed.capelin,
            ports={} if before is None else before.ports,
            prefetch=prefetch,
        )
    if problem := upgrade_problem(before.kubernetes_version, version):
        raise InvalidInputError(
            f"Environment {observed.name} runs Kubernetes {before.kubernetes_version}.",
            reason=f"{problem}.",
            hint="Choose another environment with -e, or remove it first: "
            f"capelin down -e {observed.name}.",
        )
    return before.model_copy(
        update={
            "providers": providers,
            "kubernetes_version": version,
            "backup_folder": backup_folder,
            "variables": variables,
            "capelin": observed.capelin,
            "prefetch": prefetch,
        }
    )


def _check_capelin(before: Settings, observed: Observed) -> None:
    """Reject a downgrade of Capelin: newer kinds and data cannot be reverted."""
    if not (before.capelin and observed.capelin):
        return
    if Version.parse(f"v{observed.capelin}").precedes(Version.parse(f"v{before.capelin}")):
        raise InvalidInputError(
            f"Environment {observed.name} belongs to Capelin {before.capelin}.",
            reason=f"This is Capelin {observed.capelin}, which may not understand its data.",
            hint=f"Use Capelin {before.capelin} or later, or remove the environment first: "
            f"capelin down -e {observed.name}.",
        )


def _successor(version: str, known: Sequence[str]) -> str:
    """The next version of an environment, if a newer Capelin no longer provides its own.

    A later patch of its minor version, or else the next minor: Kubernetes cannot skip one.
    """
    if version in known:
        return version
    possible = [candidate for candidate in known if upgrade_problem(version, candidate) is None]
    minor = version.rpartition(".")[0]
    same = [candidate for candidate in possible if candidate.rpartition(".")[0] == minor]
    if not possible:
        raise InvalidInputError(
            f"The environment runs Kubernetes {version}, which Capelin no longer provides.",
            reason="Kubernetes cannot upgrade from it to any version that Capelin provides.",
            hint="Move its clusters into a new environment with clusterctl move, then remove it.",
        )
    return (same or possible)[-1]


def _check_management_version(version: str) -> None:
    (major, oldest), (_, newest) = SUPPORTED_SERVERS
    if not oldest <= Version.parse(version).minor <= newest:
        raise InvalidInputError(
            f"A management cluster cannot run Kubernetes {version}.",
            reason=f"Cluster API supports v{major}.{oldest} to v{major}.{newest} for it.",
            hint="Choose one of these. Workload clusters may have others: "
            f"capelin create cluster NAME --kubernetes-version {version}.",
        )
