"""The settings that users may change in control planes that share the provider's machine. Pure.

A user may change how a component behaves towards its own cluster. A flag that names a file, a
socket, an address or a program would reach the machine and its other control planes, so flags and
environment variables are allow lists. An administrator widens them with options of the provider.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from pathlib import PurePosixPath
from typing import Final

from capelin.versions import Version

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SOCKET: Final = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*){3,}")
_LONGEST_SOCKET: Final = 107
"""The longest path of a socket on Linux."""

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin that users may choose."""

    name: str
    socket: PurePosixPath
    """On the machines of API servers."""


Plugins = tuple[Plugin, ...]

Values = str | range | tuple[str, range]
"""The values of a flag: a pattern, the bounds of a number, or either of both."""


def _up_to(most: int) -> range:
    return range(most + 1)


_DECIMAL = r"[0-9]{1,4}([.][0-9]{1,9})?"
_DURATION = r"0|([0-9]{1,9}([.][0-9]{1,9})?(ns|us|ms|s|m|h))+"
# Kubernetes lets a pod take this long to end.
_SHORT_DURATION = r"0|[0-9]m([0-9]{1,2}s)?|[0-9]{1,3}s"
_BOOLEAN = r"true|false"
_NAMES = r"[A-Za-z0-9_.*/=:#,-]*"
_FORMAT = r"text|json"
_MEBIBYTE = 2**20
_DAY_SECONDS = 24 * 60 * 60

_EVERYWHERE: Final[Mapping[str, Values]] = {
    "contention-profiling": _BOOLEAN,
    "disabled-metrics": _NAMES,
    "feature-gates": _NAMES,
    "log-flush-frequency": _DURATION,
    "logging-format": _FORMAT,
    "profiling": _BOOLEAN,
    "show-hidden-metrics-for-version": _NAMES,
    "tls-cipher-suites": _NAMES,
    "tls-min-version": _NAMES,
    "v": _up_to(10),
    "vmodule": _NAMES,
}
_CLIENT: Final[Mapping[str, Values]] = {
    "kube-api-burst": _up_to(10_000),
    "kube-api-content-type": r"application/(json|vnd\.kubernetes\.protobuf)",
    "kube-api-qps": _DECIMAL,
    "leader-elect-(lease-duration|renew-deadline|retry-period)": _DURATION,
}
ALLOWED_ARGUMENTS: Final[Mapping[str, Mapping[str, Values]]] = {
    "etcd": {
        "auto-compaction-mode": r"periodic|revision",
        "auto-compaction-retention": (_DURATION, _up_to(10**9)),
        "backend-batch-interval": _DURATION,
        "backend-batch-limit": _up_to(1_000_000),
        "cipher-suites": _NAMES,
        "compaction-batch-limit": _up_to(100_000),
        "compaction-sleep-interval": _DURATION,
        "election-timeout": _up_to(50_000),
        "experimental-compaction-batch-limit": _up_to(100_000),
        "experimental-initial-corrupt-check": _BOOLEAN,
        "experimental-watch-progress-notify-interval": _DURATION,
        "feature-gates": _NAMES,
        "grpc-keepalive-interval": _DURATION,
        "grpc-keepalive-min-time": _DURATION,
        "grpc-keepalive-timeout": _DURATION,
        "heartbeat-interval": _up_to(10_000),
        "log-level": r"debug|info|warn|error",
        "max-concurrent-streams": _up_to(2**32 - 1),
        "max-request-bytes": _up_to(16 * _MEBIBYTE),
        "max-snapshots": range(1, 51),
        "max-txn-ops": _up_to(10_000),
        "max-wals": range(1, 51),
        "metrics": r"basic|extensive",
        "pre-vote": _BOOLEAN,
        "quota-backend-bytes": _up_to(16 * 1024 * _MEBIBYTE),
        "snapshot-catchup-entries": _up_to(1_000_000),
        "snapshot-count": _up_to(1_000_000),
        "strict-reconfig-check": _BOOLEAN,
        "tls-min-version": _NAMES,
        "warning-apply-duration": _DURATION,
        "watch-progress-notify-interval": _DURATION,
    },
    "kube-apiserver": {
        **_EVERYWHERE,
        "allow-privileged": _BOOLEAN,
        "anonymous-auth": _BOOLEAN,
        "api-audiences": _NAMES,
        "cors-allowed-origins": r"[ -~]*",
        "default-not-ready-toleration-seconds": _up_to(30 * _DAY_SECONDS),
        "default-unreachable-toleration-seconds": _up_to(30 * _DAY_SECONDS),
        "default-watch-cache-size": _up_to(10_000),
        "delete-collection-workers": _up_to(100),
        "disable-admission-plugins": _NAMES,
        "emulated-version": _NAMES,
        "emulation-forward-compatible": _BOOLEAN,
        "enable-admission-plugins": _NAMES,
        "enable-aggregator-routing": _BOOLEAN,
        "enable-bootstrap-token-auth": _BOOLEAN,
        "enable-garbage-collector": _BOOLEAN,
        "enable-priority-and-fairness": _BOOLEAN,
        "etcd-compaction-interval": _DURATION,
        "etcd-count-metric-poll-period": _DURATION,
        "etcd-db-metric-poll-interval": _DURATION,
        "etcd-healthcheck-timeout": _DURATION,
        "etcd-readycheck-timeout": _DURATION,
        "event-ttl": _DURATION,
        "goaway-chance": _DECIMAL,
        "http2-max-streams-per-connection": _up_to(10_000),
        "kubelet-timeout": _DURATION,
        "lease-reuse-duration-seconds": _up_to(_DAY_SECONDS),
        "livez-grace-period": _DURATION,
        "max-connection-bytes-per-sec": _up_to(10**12),
        "max-mutating-requests-inflight": _up_to(10_000),
        "max-requests-inflight": _up_to(20_000),
        "min-request-timeout": _up_to(_DAY_SECONDS),
        "request-timeout": _DURATION,
        "runtime-config": _NAMES,
        "service-account-extend-token-expiration": _BOOLEAN,
        "service-account-issuer": r"[!-~]*",
        "service-account-jwks-uri": r"https://[!-~]*",
        "service-account-lookup": _BOOLEAN,
        "service-account-max-token-expiration": _DURATION,
        "service-node-port-range": r"[0-9]+-[0-9]+",
        "shutdown-delay-duration": _SHORT_DURATION,
        "shutdown-send-retry-after": _BOOLEAN,
        "shutdown-watch-termination-grace-period": _SHORT_DURATION,
        "storage-media-type": _NAMES,
        "strict-transport-security-directives": r"[ -~]*",
        "watch-cache": _BOOLEAN,
        "watch-cache-sizes": r"[a-z0-9.-]+#[0-9]{1,5}(,[a-z0-9.-]+#[0-9]{1,5})*",
    },
    "kube-controller-manager": {
        **_EVERYWHERE,
        **_CLIENT,
        "allocate-node-cidrs": _BOOLEAN,
        "attach-detach-reconcile-sync-period": _DURATION,
        "cluster-signing-duration": _DURATION,
        "concurrent-[a-z-]+-syncs": _up_to(500),
        "controllers": _NAMES,
        "disable-attach-detach-reconcile-sync": _BOOLEAN,
        "enable-dynamic-provisioning": _BOOLEAN,
        "enable-garbage-collector": _BOOLEAN,
        "endpoint-updates-batch-period": _DURATION,
        "endpointslice-updates-batch-period": _DURATION,
        "horizontal-pod-autoscaler-[a-z-]+": rf"{_DURATION}|{_DECIMAL}",
        "large-cluster-size-threshold": _up_to(100_000),
        "legacy-service-account-token-clean-up-period": _DURATION,
        "max-endpoints-per-slice": _up_to(1_000),
        "min-resync-period": _DURATION,
        "mirroring-[a-z-]+": (_DURATION, _up_to(1_000)),
        "namespace-sync-period": _DURATION,
        "node-cidr-mask-size(-ipv[46])?": _up_to(128),
        "node-eviction-rate": _DECIMAL,
        "node-monitor-grace-period": _DURATION,
        "node-monitor-period": _DURATION,
        "node-startup-grace-period": _DURATION,
        "pvclaimbinder-sync-period": _DURATION,
        "resource-quota-sync-period": _DURATION,
        "secondary-node-eviction-rate": _DECIMAL,
        "terminated-pod-gc-threshold": _up_to(100_000),
        "unhealthy-zone-threshold": _DECIMAL,
    },
    "kube-scheduler": {
        **_EVERYWHERE,
        **_CLIENT,
        "pod-max-in-unschedulable-pods-duration": _DURATION,
    },
}
"""By component, patterns of flags with their values.

Numbers have upper bounds: they decide how much memory, disk and work of the machine a component
takes. An administrator who allows a flag beyond the safe ones takes its bounds away as well.
"""

_SINCE: Final[Mapping[tuple[str, str], str]] = {
    ("kube-apiserver", "emulation-forward-compatible"): "v1.34.0",
}
"""Flags that older versions of Kubernetes do not have."""

_ALLOWED_VARIABLES = frozenset({"GODEBUG", "GOGC", "GOTRACEBACK"})

# Five etcd members with three ports each; controller manager, scheduler; 2 * 9 + 1 API servers.
COMPONENT_PORTS: Final = frozenset(
    {
        *(2379 + 10 * member + port for member in range(5) for port in range(3)),
        10257,
        10259,
        *range(10443, 10443 + 19),
    }
)
"""The ports at which components listen at the control plane's own address."""

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
# Programs read a name whose last label is a number as an IPv4 address.
_DNS_NAME = re.compile(rf"({_LABEL}\.)*(?![0-9]+$){_LABEL}", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The additions that an administrator allows with the provider's options."""

    extra_args: frozenset[str] = frozenset()
    """Flags, as `kube-apiserver.audit-log-path`."""
    extra_env: frozenset[str] = frozenset()
    """Environment variables, as `kube-apiserver.HTTPS_PROXY`."""
    endpoint_networks: tuple[Network, ...] = ()
    """The networks of addresses of this machine at which endpoints may listen."""
    kms_plugins: Plugins = ()
    """The KMS plugins that users may choose."""

    def problem_of_argument(
        self, component: str, version: str, flag: str, value: str
    ) -> str | None:
        """Why a flag is not allowed, if it is not."""
        if f"{component}.{flag}" in self.extra_args:
            return None
        allowed = ALLOWED_ARGUMENTS[component].items()
        values = next((values for flags, values in allowed if re.fullmatch(flags, flag)), None)
        if values is None:
            return (
                "this provider does not allow the flag, which may reach its machine: leave it"
                f" out, or ask its administrator for --allow-extra-args={component}.{flag}"
            )
        since = _SINCE.get((component, flag))
        if since is not None and Version.parse(version) < Version.parse(since):
            return f"{component} {version} does not have the flag, which came with {since}"
        if not any(_is_in(part, value) for part in _parts(values)):
            allowed_values = " or ".join(_described(part) for part in _parts(values))
            return f"{value!r} is not one of the values that this provider allows: {allowed_values}"
        return None

    def problem_of_variable(self, component: str, name: str) -> str | None:
        """Why an environment variable is not allowed, if it is not."""
        if name in _ALLOWED_VARIABLES or f"{component}.{name}" in self.extra_env:
            return None
        return (
            "this provider does not allow the variable, which may reach its machine: leave it out,"
            f" or ask its administrator for --allow-extra-env={component}.{name}"
        )

    def may_listen_at(self, address: IPv4Address | IPv6Address) -> bool:
        """Whether an endpoint may listen at an address that is not its control plane's own."""
        return any(address in network for network in self.endpoint_networks)


def _parts(values: Values) -> Sequence[str | range]:
    return values if isinstance(values, tuple) else (values,)


def _is_in(values: str | range, value: str) -> bool:
    if isinstance(values, range):
        return re.fullmatch("[0-9]{1,18}", value) is not None and int(value) in values
    return re.fullmatch(values, value) is not None


def _described(values: str | range) -> str:
    return f"{values.start} to {values.stop - 1}" if isinstance(values, range) else values


DEFAULT_POLICY = Policy()
"""Nothing beyond what every provider allows."""


def problem_of_host(host: str) -> str | None:
    """Why a text cannot be the host of an endpoint, if it cannot."""
    if (address := address_of(host)) is not None:
        if address.is_unspecified or address.is_multicast:
            return "is not the address of one machine: write one such as 192.0.2.7"
        return None
    if len(host) <= 253 and _DNS_NAME.fullmatch(host):
        return None
    return "is neither a DNS name nor an IP address: write one such as api.example.com"


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """The IP address that a host is, if it is one and not a name."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def problem_of_port(port: int) -> str | None:
    """Why an endpoint cannot have a port, if it cannot."""
    if port not in COMPONENT_PORTS:
        return None
    return f"the port {port} belongs to a component of the control plane: write one such as 6443"


def read_names(text: str) -> frozenset[str]:
    """An option such as `kube-apiserver.audit-log-path,etcd.enable-pprof`.

    Raises:
        ValueError: a part is not of the form `component.name`.
    """
    names = frozenset(filter(None, text.split(",")))
    for name in sorted(names):
        component, _, rest = name.partition(".")
        if component not in ALLOWED_ARGUMENTS or not rest:
            raise ValueError(
                f'"{name}" does not name a setting of a component: write kube-apiserver.NAME,'
                f" with one of {', '.join(ALLOWED_ARGUMENTS)}"
            )
    return names


def read_networks(text: str) -> tuple[Network, ...]:
    """An option such as `192.0.2.0/24,fd00::/64`.

    Raises:
        ValueError: a part is not a network.
    """
    networks = tuple(ip_network(part) for part in text.split(",") if part)
    for network in networks:
        if network.is_loopback or network.prefixlen == 0:
            raise ValueError(
                f'"{network}" has loopback addresses, which belong to single control planes:'
                " write a network of this machine"
            )
    return networks


def read_plugins(text: str) -> Plugins:
    """An option such as `vault=/run/kms/vault/plugin.sock,cloud=/run/kms/cloud/plugin.sock`.

    Raises:
        ValueError: a part does not name a socket in a folder of its own.
    """
    plugins: dict[str, Plugin] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, socket = part.partition("=")
        if not _NAME.fullmatch(name) or name in plugins:
            raise ValueError(
                f'"{part}" does not begin with an own name of lower case letters and digits: write'
                " NAME=/run/kms/NAME/plugin.sock"
            )
        if not _SOCKET.fullmatch(socket) or len(socket) > _LONGEST_SOCKET:
            raise ValueError(
                f'"{socket}" is not the path of a socket in a folder of its own, which pods mount:'
                f" write {name}=/run/kms/{name}/plugin.sock"
            )
        folder = PurePosixPath(socket).parent
        for other in plugins.values():
            theirs = other.socket.parent
            if folder.is_relative_to(theirs) or theirs.is_relative_to(folder):
                raise ValueError(
                    f'"{socket}" and "{other.socket}" share a folder, and pods would mount both:'
                    f" write {name}=/run/kms/{name}/plugin.sock"
                )
        plugins[name] = Plugin(name, PurePosixPath(socket))
    return tuple(plugins.values())
