"""How a provider's manager runs as a local process: its ports, flags and environment."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal
from uuid import NAMESPACE_DNS, uuid5

from capelin.api import Unstructured
from capelin.client import Destinations
from capelin.contract import ProviderType

from capelin_embedded.addresses import NETWORK
from capelin_embedded.components import TIMER_SLACK
from capelin_embedded.management.manifests import LaunchSpec, inventory_entry
from capelin_embedded.processes import Command, Limits

# Cluster API's managers serve webhooks on all addresses, and have no option for another one.
ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104

Purpose = Literal["diagnostics", "health", "webhooks"]

Dialect = Literal["go", "python", "extension"]
"""A manager of Cluster API's, one on `capelin.controller`, a server on `capelin.runtime`."""

_PASSED_ON: Final = frozenset(
    {
        "CAPELIN_ALLOWED_NETWORKS",
        "CAPELIN_BACKENDS",
        "CAPELIN_BINARIES",
        "CAPELIN_ENDPOINT_NETWORKS",
        "CAPELIN_HELM",
        "CAPELIN_HOST_BUNDLES",
        "CAPELIN_IN_PLACE_UPDATES",
        "CAPELIN_KMS_PLUGINS",
        "CAPELIN_POWER_COMMANDS",
        "CAPELIN_REGISTRIES",
        # Go's own, by name: a prefix would also pass credentials such as GOOGLE_CREDENTIALS.
        "GO111MODULE",
        "GOAUTH",
        "GOCACHE",
        "GOENV",
        "GOFLAGS",
        "GOGC",
        "GOINSECURE",
        "GOMAXPROCS",
        "GOMEMLIMIT",
        "GOMODCACHE",
        "GONOPROXY",
        "GONOSUMDB",
        "GOPATH",
        "GOPRIVATE",
        "GOPROXY",
        "GOROOT",
        "GOSUMDB",
        "GOTMPDIR",
        "GOTOOLCHAIN",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "KUBEBUILDER_ASSETS",
        "NO_PROXY",
        "SSL_CERT_FILE",
        "XDG_CACHE_HOME",
    }
)
_LEADER_ELECTION: Final = re.compile(r"--leader-elect(=.*)?")


@dataclass(frozen=True, slots=True)
class Component:
    """A provider from any source, with everything for its installation and its start."""

    label: str
    name: str
    type: ProviderType
    version: str
    program: tuple[str, ...]
    """The start of the command line."""
    dialect: Dialect
    """The names of its flags."""
    launch: LaunchSpec
    manifests: Sequence[Unstructured]
    listens_for: tuple[Purpose, ...]
    late: Sequence[Unstructured] = ()
    """Objects to send after Cluster API's own webhooks answer."""

    @property
    def inventory(self) -> Unstructured:
        return inventory_entry(
            name=self.name,
            kind=self.type,
            label=self.label,
            version=self.version,
            namespace=self.launch.namespace,
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """The files and the addresses of a manager."""

    address: str
    ports: Mapping[Purpose, int]
    folder: Path
    """With its `kubeconfig`, and its certificate as `tls.crt` and `tls.key`."""
    workloads: Path
    """The folder for processes that it runs on this machine."""
    authority: Path
    """The CA of all certificates here, to verify callers."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Additional environment variables of managers on `capelin.controller`."""

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"


def component_command(component: Component, placement: Placement) -> Command:
    """The command line and environment of a component's manager.

    It omits leader election: the supervisor ensures that only one process runs, and a successor
    would have to wait for the lease of a killed one.
    """
    ours = _flags(component, placement)
    asked = [
        argument
        for argument in component.launch.arguments
        if not _LEADER_ELECTION.fullmatch(argument)
    ]
    kept = [
        argument for argument in asked if argument.removeprefix("--").partition("=")[0] not in ours
    ]
    flags = [f"--{name}={value}" for name, value in ours.items()]
    return Command(
        arguments=(*component.program, *kept, *flags),
        environment={**component.launch.environment, **_environment(component, placement)},
        limits=Limits(timer_slack=TIMER_SLACK if component.dialect == "go" else 0.0),
    )


def inherited_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that configure networks, the sources of binaries and OpenTelemetry."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if name in _PASSED_ON or name.startswith("OTEL_")
    }


def choose_ports(
    components: Iterable[Component],
    recorded: Mapping[str, int],
    *,
    usable: Callable[[int], bool],
    free: Callable[[], int],
) -> dict[str, int]:
    """A port for each listener: the previous one, if it is still usable."""
    wanted = [
        f"{component.label}/{purpose}"
        for component in components
        for purpose in component.listens_for
    ]
    chosen: dict[str, int] = {}
    for name in wanted:
        port = recorded.get(name)
        while port is None or port in chosen.values() or not usable(port):
            port = free()
        chosen[name] = port
    return chosen


def ports_of(component: Component, ports: Mapping[str, int]) -> dict[Purpose, int]:
    return {purpose: ports[f"{component.label}/{purpose}"] for purpose in component.listens_for}


def _flags(component: Component, placement: Placement) -> dict[str, str]:
    health = f"{placement.address}:{placement.ports['health']}"
    match component.dialect:
        case "python":
            flags = {
                "kubeconfig": str(placement.kubeconfig),
                "health-address": health,
                # At other addresses, metrics require TLS and a token, and so would the probes.
                "metrics-address": health if ip_address(placement.address).is_loopback else "0",
            }
            if (port := placement.ports.get("webhooks")) is None:
                return flags
            webhooks = f"{placement.address}:{port}"
            return {**flags, "webhook-address": webhooks, "cert-dir": str(placement.folder)}
        case "extension":
            return {
                "host": placement.address,
                "port": str(placement.ports["webhooks"]),
                "probes-port": str(placement.ports["health"]),
                "cert-dir": str(placement.folder),
                "client-ca": str(placement.authority),
            }
        case "go":
            diagnostics = placement.ports.get("diagnostics")
            metrics = "0" if diagnostics is None else f"{placement.address}:{diagnostics}"
            flags = {
                "kubeconfig": str(placement.kubeconfig),
                "health-addr": health,
                "diagnostics-address": metrics,
                "webhook-port": str(placement.ports["webhooks"]),
                "webhook-cert-dir": str(placement.folder),
            }
            # Extensions respond only to Cluster API's core, which presents this certificate.
            certificate = {
                "runtime-extension-client-cert-file": str(placement.folder / "tls.crt"),
                "runtime-extension-client-key-file": str(placement.folder / "tls.key"),
            }
            # Without TLS: the address is a loopback address.
            insecure = {} if diagnostics is None else {"insecure-diagnostics": "true"}
            return flags | insecure | (certificate if component.type == "CoreProvider" else {})


def workload_destinations(environ: Mapping[str, str]) -> Destinations:
    """The addresses at which programs on this machine reach an environment's workload clusters."""
    return Destinations.from_environ({"CAPELIN_ALLOWED_NETWORKS": _allowed_networks(environ)})


def _allowed_networks(environ: Mapping[str, str]) -> str:
    """The user's networks, and the loopback addresses of the environment's hosted API servers."""
    chosen = environ.get("CAPELIN_ALLOWED_NETWORKS", "")
    return ",".join(filter(None, (str(NETWORK), chosen)))


def _environment(component: Component, placement: Placement) -> dict[str, str]:
    if component.dialect != "go":
        return {
            "CAPELIN_STATE_FOLDER": str(placement.workloads / component.label),
            "KUBECONFIG": str(placement.kubeconfig),
            **inherited_variables(os.environ),
            **placement.variables,
            "CAPELIN_ALLOWED_NETWORKS": _allowed_networks(os.environ),
        }
    # A manager in a pod receives these from the downward API.
    return {
        "POD_IP": placement.address,
        "POD_NAME": component.label,
        "POD_NAMESPACE": component.launch.namespace,
        "POD_UID": str(uuid5(NAMESPACE_DNS, f"{component.label}.{placement.address}")),
    }
