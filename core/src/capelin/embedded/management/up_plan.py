"""What `capelin up` does: one pure plan, from what is asked for and what is there to steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from capelin.client import Config
from capelin.contract import upgrade_problem
from capelin.embedded.binaries import DEFAULT_KUBERNETES, KNOWN_KUBERNETES, check_kubernetes_version
from capelin.embedded.management.attach import SUPPORTED_SERVERS, Attachment
from capelin.embedded.management.environment import Settings, Target
from capelin.errors import BusyError, InvalidInputError
from capelin.versions import Version


@dataclass(frozen=True, slots=True)
class UpRequest:
    """What a user asks an environment to be. None leaves it as it is, or takes the default."""

    kubernetes_version: str | None = None
    providers: tuple[str, ...] = ()
    durable: bool = True
    target: Target | None = None
    kubeconfig: Path | None = None
    context: str | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """What is there before anything is changed."""

    name: str
    settings: Settings | None = None
    attachment: Attachment | None = None
    """The API server that was there already, where that is the target."""
    capelin: str = ""
    """The version of Capelin that looks."""
    busy_ports: Mapping[str, int] = field(default_factory=dict[str, int])
    """Labels of providers, and a port of each that something else listens on."""


@dataclass(frozen=True, slots=True)
class FetchPrograms:
    """Have the programs of the API server and of Cluster API in the cache.

    Where some are missing, those of installed providers are obtained with them.
    """

    settings: Settings


@dataclass(frozen=True, slots=True)
class FetchProviderPrograms:
    """Have what installed providers run in the cache.

    The API server starts meanwhile: a provider's package has to be loaded to know its programs.
    """

    settings: Settings


@dataclass(frozen=True, slots=True)
class CheckVacant:
    """Refuse an existing API server in which somebody else's Cluster API is."""

    attachment: Attachment
    settings: Settings


@dataclass(frozen=True, slots=True)
class StartSupervisor:
    """Write the settings and start a supervisor that works by them. Running processes stay."""

    settings: Settings
    config: Config | None = None
    """What leads to the API server, where that is not our own."""


@dataclass(frozen=True, slots=True)
class WaitUntilUp:
    """Follow the supervisor until everything runs."""


Step = FetchPrograms | CheckVacant | StartSupervisor | FetchProviderPrograms | WaitUntilUp


def choose_target(request: UpRequest, name: str, settings: Settings | None) -> Target:
    """Where the API server of an environment is: where it was, or else where it is asked for.

    Raises:
        InvalidInputError: if it was elsewhere.
    """
    if settings is None:
        target = request.target or "process"
    elif request.target in {None, settings.target}:
        target = settings.target
    else:
        raise InvalidInputError(
            f"Environment {name} has the target {settings.target}.",
            reason="Its objects are in that API server, and nothing takes them to another.",
            hint=f"Leave out --target, choose another environment with -e, or remove it first: "
            f"capelin down -e {name}.",
        )
    if target == "process" and (request.kubeconfig is not None or request.context is not None):
        raise InvalidInputError(
            "--kubeconfig and --context lead to an API server that is there already.",
            reason=f"Environment {name} has, or gets, one of its own.",
            hint="Add --target existing, or leave them out.",
        )
    return target


def plan_up(request: UpRequest, observed: Observed) -> tuple[Step, ...]:
    """The steps from what is there to what is asked for. The same ones when all of it runs.

    Raises:
        InvalidInputError: if the request contradicts what is there.
        BusyError: if a provider's port, which nobody can choose, is taken.
    """
    settings = _desired_settings(request, observed)
    if observed.busy_ports:
        label, port = next(iter(observed.busy_ports.items()))
        raise BusyError(
            f"The provider {label} cannot run in environment {observed.name}.",
            reason=f"It always listens on port {port}, and that is taken; "
            "another environment may have this provider.",
            hint="Take that one down first, or leave the provider out of --with.",
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
    """The settings from now on: as they were, and the providers asked for now."""
    before = observed.settings
    if before is not None:
        _check_capelin(before, observed)
    providers = sorted({*(before.providers if before else ()), *request.providers})
    kept = _successor(before.kubernetes_version, KNOWN_KUBERNETES) if before else DEFAULT_KUBERNETES
    version = request.kubernetes_version or kept
    check_kubernetes_version(version)
    if observed.attachment is None:
        _check_management_version(version)
    if before is None or observed.attachment is not None:
        return Settings(
            kubernetes_version=version,
            providers=providers,
            durable=request.durable,
            existing=observed.attachment.server if observed.attachment else None,
            capelin=observed.capelin,
            ports={} if before is None else before.ports,
        )
    if version != kept:
        raise InvalidInputError(
            f"Environment {observed.name} runs Kubernetes {before.kubernetes_version}.",
            reason="A management cluster keeps the version that it was started with.",
            hint="Choose another environment with -e, or remove it first: "
            f"capelin down -e {observed.name}.",
        )
    return before.model_copy(
        update={"providers": providers, "kubernetes_version": kept, "capelin": observed.capelin}
    )


def _check_capelin(before: Settings, observed: Observed) -> None:
    """Refuse to take back what a newer Capelin has brought: kinds and data have no way back."""
    if not (before.capelin and observed.capelin):
        return
    if Version.parse(f"v{observed.capelin}").precedes(Version.parse(f"v{before.capelin}")):
        raise InvalidInputError(
            f"Environment {observed.name} was brought up by Capelin {before.capelin}.",
            reason=f"This is Capelin {observed.capelin}, which may not understand its data.",
            hint=f"Use Capelin {before.capelin} or later, or remove the environment first: "
            f"capelin down -e {observed.name}.",
        )


def _successor(version: str, known: Sequence[str]) -> str:
    """The version to go on with where a newer Capelin can no longer get an environment's own.

    A later patch of its minor version, or else the next minor; Kubernetes goes no further at once.
    """
    if version in known:
        return version
    possible = [candidate for candidate in known if upgrade_problem(version, candidate) is None]
    minor = version.rpartition(".")[0]
    same = [candidate for candidate in possible if candidate.rpartition(".")[0] == minor]
    if not possible:
        raise InvalidInputError(
            f"The environment runs Kubernetes {version}, which Capelin can no longer get.",
            reason="Nothing that it can get may follow that version.",
            hint="Move its clusters into a new environment with clusterctl move, then remove it.",
        )
    return (same or possible)[-1]


def _check_management_version(version: str) -> None:
    (major, oldest), (_, newest) = SUPPORTED_SERVERS
    if not oldest <= Version.parse(version).minor <= newest:
        raise InvalidInputError(
            f"A management cluster cannot run Kubernetes {version}.",
            reason=f"Cluster API supports v{major}.{oldest} to v{major}.{newest} there.",
            hint="Choose one of these; its workload clusters may have others: "
            f"capelin create cluster NAME --kubernetes-version {version}.",
        )
