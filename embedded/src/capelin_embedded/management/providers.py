"""The providers of an environment, their components and their binaries."""

import hashlib
import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final, cast, get_args

from capelin.api import Unstructured
from capelin.contract import ProviderType, provider_label
from capelin.errors import InvalidInputError, UserError
from capelin.programs import run_program
from capelin.provider import ENTRY_POINTS, Provider
from capelin.yaml import read_all_yaml

from capelin_embedded.apiserver import ETCD, KUBE_APISERVER, KUBE_CONTROLLER_MANAGER
from capelin_embedded.binaries import CLUSTER_API, KUBERNETES, Binaries, parse_component
from capelin_embedded.management.components import Component
from capelin_embedded.management.environment import Target
from capelin_embedded.management.manifests import LaunchSpec, launch_spec
from capelin_embedded.processes import private_folder, write_private

_VARIABLE = re.compile(
    r"""
    \$(?P<escaped>\$)                         # $$ stands for $
    | \$\{\s*(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*
      (?: :?[=-] (?P<default>(?: \$\{(?: \$\{[^{}]*\} | [^{}] )*\} | (?!\$\{)[^}] )*) )?
      \}
    | (?P<foreign>\$\{[^}]*\}?)               # other shell syntax, which no template uses
    """,
    re.VERBOSE,
)


def code_digest(module: str) -> str:
    """A digest that changes with every file of a module's package, and of Capelin."""
    lines: list[str] = []
    for package in sorted({module.partition(".")[0], "capelin"}):
        for path in _sources(package):
            status = path.stat()
            lines.append(f"{path}\0{status.st_mtime_ns}\0{status.st_size}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _sources(package: str) -> Iterable[Path]:
    spec = find_spec(package)
    if spec is None:
        return []
    if spec.submodule_search_locations is None:
        return [Path(spec.origin)] if spec.origin else []
    return sorted(
        path for folder in spec.submodule_search_locations for path in Path(folder).rglob("*.py")
    )


class SubstitutionError(ValueError):
    """A template needs a missing variable, or has unsupported syntax."""


def substitute(template: str, variables: Mapping[str, str]) -> str:
    """The template with each `${NAME}` and `${NAME:=default}` replaced.

    Like in clusterctl, an empty value counts as missing if there is a default, and a default may
    be another variable: `${NAME:=${OTHER}}`.

    Raises:
        SubstitutionError: Variables without a default are missing (it lists all of them), or the
            syntax is not supported.
    """
    missing: set[str] = set()

    def replace(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        if match["foreign"]:
            msg = f"{match['foreign']} is not supported: use ${{NAME}} or ${{NAME:=default}}"
            raise SubstitutionError(msg)
        name, default = match["name"], match["default"]
        if default is not None:
            return variables.get(name) or _VARIABLE.sub(replace, default)
        if name not in variables:
            missing.add(name)
        return variables.get(name, "")

    result = _VARIABLE.sub(replace, template)
    if missing:
        msg = f"the template needs values for {', '.join(sorted(missing))}"
        raise SubstitutionError(msg)
    return result


@dataclass(frozen=True, slots=True)
class UpstreamProvider:
    """A provider of the Cluster API project: a binary, and the kustomization that installs it."""

    name: str
    type: ProviderType
    program: str
    """Its name among the binaries."""
    source: str
    """The Go module of the kustomization, by its name among the binaries."""
    kustomization: str
    fixed_ports: tuple[int, ...] = ()
    """Ports that it always uses, so a second one cannot run on the same machine."""

    @property
    def label(self) -> str:
        """Its name for clusterctl and for our processes, such as `bootstrap-kubeadm`."""
        return provider_label(self.type, self.name)


CORE: Final = UpstreamProvider(
    "cluster-api", "CoreProvider", "cluster-api-controller", "cluster-api", "core/config/default"
)
_KUBEADM_BOOTSTRAP: Final = UpstreamProvider(
    "kubeadm",
    "BootstrapProvider",
    "kubeadm-bootstrap-controller",
    "cluster-api",
    "bootstrap/kubeadm/config/default",
)
OPTIONAL_PROVIDERS: Final[dict[str, tuple[UpstreamProvider, ...]]] = {
    "kubeadm-bootstrap": (_KUBEADM_BOOTSTRAP,),
    "kubeadm": (
        _KUBEADM_BOOTSTRAP,
        UpstreamProvider(
            "kubeadm",
            "ControlPlaneProvider",
            "kubeadm-control-plane-controller",
            "cluster-api",
            "controlplane/kubeadm/config/default",
        ),
    ),
    "dev": (
        UpstreamProvider(
            "docker",
            "InfrastructureProvider",
            "capd-manager",
            "cluster-api/test",
            "infrastructure/docker/config/default",
            # The server that shows its in-memory objects.
            fixed_ports=(19000,),
        ),
    ),
}
"""The values of `--with`, and the providers of each."""


def optional_providers() -> list[str]:
    """The values of `--with`: names of Cluster API's providers, and of packages on request."""
    return [
        *OPTIONAL_PROVIDERS,
        *(provider.name for provider in installed_providers() if provider.on_request),
    ]


def upstream_providers(requested: Iterable[str]) -> list[UpstreamProvider]:
    """Cluster API's core and, after it, the providers for these `--with` names.

    Raises:
        InvalidInputError: A name is neither in `OPTIONAL_PROVIDERS` nor a provider on request
            from an installed package.
    """
    asked = set(requested)
    known = [*OPTIONAL_PROVIDERS]
    if not asked <= OPTIONAL_PROVIDERS.keys():
        known += [provider.name for provider in installed_providers() if provider.on_request]
    if unknown := sorted(asked.difference(known)):
        raise InvalidInputError(
            f"Unknown provider {unknown[0]!r}.",
            reason=f"Available providers: {', '.join(known)}.",
            hint="Use these names, separated by commas.",
        )
    brought = (
        provider
        for name, several in OPTIONAL_PROVIDERS.items()
        if name in asked
        for provider in several
    )
    return [CORE, *dict.fromkeys(brought)]


def installed_providers(points: Iterable[EntryPoint] | None = None) -> list[Provider]:
    """The providers of all installed packages, by label.

    Raises:
        UserError: An entry point does not return a provider.
    """
    found = entry_points(group=ENTRY_POINTS) if points is None else points
    return sorted((_described(point) for point in found), key=lambda provider: provider.label)


def chosen_providers(requested: Iterable[str]) -> list[Provider]:
    """The providers of installed packages in an environment."""
    asked = set(requested)
    return [
        provider
        for provider in installed_providers()
        if not provider.on_request or provider.name in asked
    ]


def provider_modules(requested: Iterable[str]) -> dict[str, str]:
    """The module of each provider from an installed package, by the provider's label."""
    return {provider.label: provider.module for provider in chosen_providers(requested)}


def _described(point: EntryPoint) -> Provider:
    describe: Callable[[], object] = point.load()
    provider = describe()
    if not isinstance(provider, Provider) or provider.type not in get_args(ProviderType):
        raise UserError(
            f"The entry point {point.name!r} of {ENTRY_POINTS} does not describe a provider.",
            reason=f"{point.value} returns {type(provider).__name__} instead of a valid Provider.",
            hint="Fix the package that has it, or uninstall it.",
        )
    return provider


CLUSTER_API_VERSION: Final = CLUSTER_API.versions[-1]


def own_programs(
    kubernetes_version: str, requested: Iterable[str], *, target: Target = "process"
) -> list[str]:
    """The binaries of an environment's API server and of Cluster API, for `Binaries`."""
    server = (KUBE_APISERVER, KUBE_CONTROLLER_MANAGER, ETCD) if target == "process" else ()
    return [
        *_in_version(server, kubernetes_version),
        f"kubectl@{kubernetes_version}",
        *(provider.program for provider in upstream_providers(requested)),
    ]


def provider_programs(kubernetes_version: str, requested: Iterable[str]) -> list[str]:
    """The binaries that the providers of installed packages run, for `Binaries`."""
    programs = (name for provider in chosen_providers(requested) for name in provider.programs)
    return _in_version(programs, kubernetes_version)


def required_programs(
    kubernetes_version: str, requested: Iterable[str], *, target: Target = "process"
) -> list[str]:
    requested = [*requested]
    own = own_programs(kubernetes_version, requested, target=target)
    return [*dict.fromkeys([*own, *provider_programs(kubernetes_version, requested)])]


def _in_version(programs: Iterable[str], kubernetes_version: str) -> list[str]:
    return [
        f"{name}@{kubernetes_version}"
        if parse_component(name).component.project is KUBERNETES
        else name
        for name in dict.fromkeys(programs)
    ]


def workload_programs(kubernetes_version: str) -> list[str]:
    """The binaries of a workload cluster's control plane, for `Binaries`."""
    return [
        f"{name}@{kubernetes_version}"
        for provider in installed_providers()
        for name in provider.programs
        if parse_component(name).component.project is KUBERNETES
    ]


async def resolve_components(
    requested: Iterable[str],
    kubernetes_version: str,
    binaries: Binaries,
    *,
    core_only: bool = False,
) -> list[Component]:
    """All components of an environment, Cluster API's core first.

    With `core_only`, without the providers of installed packages, and with core's metrics.

    Raises:
        UserError: The components of a provider cannot be rendered.
    """
    asked_names = [*requested]
    asked = upstream_providers(asked_names)
    found = await binaries.fetch(provider.program for provider in asked)
    kubectl = partial(binaries.path, "kubectl", kubernetes_version)
    ours = [
        upstream_component(
            provider,
            version=CLUSTER_API_VERSION,
            program=found[provider.program].path,
            manifests=await _manifests(provider, binaries, kubectl),
        )
        for provider in asked
    ]
    if core_only:
        return [replace(each, listens_for=(*each.listens_for, "diagnostics")) for each in ours]
    return [*ours, *map(python_component, chosen_providers(asked_names))]


def render_template(text: str, variables: Mapping[str, str]) -> list[Unstructured]:
    """The objects of a YAML template."""
    return [manifest for manifest in read_all_yaml(substitute(text, variables)) if manifest]


async def _manifests(
    provider: UpstreamProvider, binaries: Binaries, kubectl: Callable[[], Awaitable[Path]]
) -> list[Unstructured]:
    """The manifests that clusterctl would install for a provider, with our feature gates."""
    given = hashlib.sha256(json.dumps(VARIABLES, sort_keys=True).encode()).hexdigest()[:12]
    folder = binaries.cache.root / "components" / f"{CLUSTER_API_VERSION}-{given}"
    cached = folder / f"{provider.label}.json"
    if (found := _read(cached)) is not None:
        return found
    source = await binaries.module_dir(provider.source, CLUSTER_API_VERSION)
    text = await _kustomize(await kubectl(), source / provider.kustomization)
    rendered = render_template(text, VARIABLES)
    private_folder(folder)
    write_private(cached, json.dumps(rendered).encode())
    return rendered


def _read(path: Path) -> list[Unstructured] | None:
    try:
        return cast("list[Unstructured]", json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError):
        return None


async def _kustomize(kubectl: Path, folder: Path) -> str:
    rendered = await run_program(kubectl, "kustomize", folder)
    if rendered.code:
        raise UserError(
            f"The components in {folder} cannot be rendered.",
            reason=f"kubectl kustomize failed: {rendered.errors}",
            hint="Remove that folder and try again, which unpacks it again.",
        )
    return rendered.output.decode()


VARIABLES: Final = {
    "CLUSTER_TOPOLOGY": "true",
    "EXP_IN_PLACE_UPDATES": "true",
    "EXP_MACHINE_POOL": "true",
    # It delays every step of every object until a second after the previous step.
    "EXP_RECONCILER_RATE_LIMITING": "false",
    "EXP_RUNTIME_SDK": "true",
}
"""Values for clusterctl's variables: the feature gates of every environment."""


def upstream_component(
    provider: UpstreamProvider, *, version: str, program: Path, manifests: Sequence[Unstructured]
) -> Component:
    """A provider of Cluster API, from the components that clusterctl would install."""
    return Component(
        label=provider.label,
        name=provider.name,
        type=provider.type,
        version=version,
        program=(str(program),),
        dialect="go",
        launch=launch_spec(manifests),
        manifests=manifests,
        listens_for=("health", "webhooks"),
    )


def python_component(provider: Provider) -> Component:
    """A provider of an installed package, in this Python interpreter."""
    is_extension = provider.type == "RuntimeExtensionProvider"
    return Component(
        label=provider.label,
        name=provider.name,
        type=provider.type,
        version=provider.version,
        program=(sys.executable, "-m", provider.module),
        dialect="extension" if is_extension else "python",
        launch=LaunchSpec(
            provider.namespace,
            provider.label,
            tuple(provider.arguments),
            # A process whose command has not changed keeps running.
            {"CAPELIN_CODE": code_digest(provider.module)},
        ),
        manifests=provider.components(),
        listens_for=("health", "webhooks")
        if is_extension or provider.serves_webhooks
        else ("health",),
        late=provider.objects,
    )
