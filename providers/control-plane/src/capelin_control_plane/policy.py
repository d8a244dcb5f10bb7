"""What users may set in a control plane, which runs beside others' on the provider's machine. Pure.

A user may change how a component behaves towards its own cluster. A flag that names a file, a
socket, an address or a program would reach the machine and its other control planes, so flags and
environment variables are allow lists. An administrator widens them with options of the provider.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final

from capelin.versions import Version

Network = IPv4Network | IPv6Network

_NUMBER = r"[0-9]{1,18}"
_POSITIVE = r"[1-9][0-9]{0,17}"
_DECIMAL = r"[0-9]{1,9}([.][0-9]{1,9})?"
_DURATION = r"0|([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+"
_DURATION_OR_NUMBER = rf"{_DURATION}|{_NUMBER}"
_BOOLEAN = r"true|false"
_NAMES = r"[A-Za-z0-9_.*/=:#,-]*"
_FORMAT = r"text|json"
_BYTES_UP_TO_16_GIB = r"[0-9]{1,10}|1[0-6][0-9]{9}"

_EVERYWHERE = {
    "contention-profiling": _BOOLEAN,
    "disabled-metrics": _NAMES,
    "feature-gates": _NAMES,
    "log-flush-frequency": _DURATION,
    "logging-format": _FORMAT,
    "profiling": _BOOLEAN,
    "show-hidden-metrics-for-version": _NAMES,
    "tls-cipher-suites": _NAMES,
    "tls-min-version": _NAMES,
    "v": _NUMBER,
    "vmodule": _NAMES,
}
_CLIENT = {
    "kube-api-burst": _NUMBER,
    "kube-api-content-type": r"application/(json|vnd\.kubernetes\.protobuf)",
    "kube-api-qps": _DECIMAL,
    "leader-elect-(lease-duration|renew-deadline|retry-period)": _DURATION,
}
_ALLOWED_ARGUMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "etcd": {
        "auto-compaction-mode": r"periodic|revision",
        "auto-compaction-retention": _DURATION_OR_NUMBER,
        "backend-batch-interval": _DURATION,
        "backend-batch-limit": _NUMBER,
        "cipher-suites": _NAMES,
        "compaction-batch-limit": _NUMBER,
        "compaction-sleep-interval": _DURATION,
        "election-timeout": _NUMBER,
        "experimental-compaction-batch-limit": _NUMBER,
        "experimental-initial-corrupt-check": _BOOLEAN,
        "experimental-watch-progress-notify-interval": _DURATION,
        "feature-gates": _NAMES,
        "grpc-keepalive-interval": _DURATION,
        "grpc-keepalive-min-time": _DURATION,
        "grpc-keepalive-timeout": _DURATION,
        "heartbeat-interval": _NUMBER,
        "log-level": r"debug|info|warn|error",
        "max-concurrent-streams": _NUMBER,
        "max-request-bytes": _NUMBER,
        "max-snapshots": _POSITIVE,
        "max-txn-ops": _NUMBER,
        "max-wals": _POSITIVE,
        "metrics": r"basic|extensive",
        "pre-vote": _BOOLEAN,
        "quota-backend-bytes": _BYTES_UP_TO_16_GIB,
        "snapshot-catchup-entries": _NUMBER,
        "snapshot-count": _NUMBER,
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
        "default-not-ready-toleration-seconds": _NUMBER,
        "default-unreachable-toleration-seconds": _NUMBER,
        "default-watch-cache-size": _NUMBER,
        "delete-collection-workers": _NUMBER,
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
        "http2-max-streams-per-connection": _NUMBER,
        "kubelet-timeout": _DURATION,
        "lease-reuse-duration-seconds": _NUMBER,
        "livez-grace-period": _DURATION,
        "max-connection-bytes-per-sec": _NUMBER,
        "max-mutating-requests-inflight": _NUMBER,
        "max-requests-inflight": _NUMBER,
        "min-request-timeout": _NUMBER,
        "request-timeout": _DURATION,
        "runtime-config": _NAMES,
        "service-account-extend-token-expiration": _BOOLEAN,
        "service-account-issuer": r"[!-~]*",
        "service-account-jwks-uri": r"https://[!-~]*",
        "service-account-lookup": _BOOLEAN,
        "service-account-max-token-expiration": _DURATION,
        "service-node-port-range": r"[0-9]+-[0-9]+",
        "shutdown-delay-duration": _DURATION,
        "shutdown-send-retry-after": _BOOLEAN,
        "shutdown-watch-termination-grace-period": _DURATION,
        "storage-media-type": _NAMES,
        "strict-transport-security-directives": r"[ -~]*",
        "watch-cache": _BOOLEAN,
        "watch-cache-sizes": _NAMES,
    },
    "kube-controller-manager": {
        **_EVERYWHERE,
        **_CLIENT,
        "allocate-node-cidrs": _BOOLEAN,
        "attach-detach-reconcile-sync-period": _DURATION,
        "cluster-signing-duration": _DURATION,
        "concurrent-[a-z-]+-syncs": _NUMBER,
        "controllers": _NAMES,
        "disable-attach-detach-reconcile-sync": _BOOLEAN,
        "enable-dynamic-provisioning": _BOOLEAN,
        "enable-garbage-collector": _BOOLEAN,
        "endpoint-updates-batch-period": _DURATION,
        "endpointslice-updates-batch-period": _DURATION,
        "horizontal-pod-autoscaler-[a-z-]+": rf"{_DURATION}|{_DECIMAL}",
        "large-cluster-size-threshold": _NUMBER,
        "legacy-service-account-token-clean-up-period": _DURATION,
        "max-endpoints-per-slice": _NUMBER,
        "min-resync-period": _DURATION,
        "mirroring-[a-z-]+": rf"{_DURATION}|{_NUMBER}",
        "namespace-sync-period": _DURATION,
        "node-cidr-mask-size(-ipv[46])?": _NUMBER,
        "node-eviction-rate": _DECIMAL,
        "node-monitor-grace-period": _DURATION,
        "node-monitor-period": _DURATION,
        "node-startup-grace-period": _DURATION,
        "pvclaimbinder-sync-period": _DURATION,
        "resource-quota-sync-period": _DURATION,
        "secondary-node-eviction-rate": _DECIMAL,
        "terminated-pod-gc-threshold": _NUMBER,
        "unhealthy-zone-threshold": _DECIMAL,
    },
    "kube-scheduler": {
        **_EVERYWHERE,
        **_CLIENT,
        "pod-max-in-unschedulable-pods-duration": _DURATION,
    },
}
"""By component, patterns of flags with the pattern of their values."""

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
    """What an administrator allows besides: the provider's options."""

    extra_args: frozenset[str] = frozenset()
    """Flags, as `kube-apiserver.audit-log-path`."""
    extra_env: frozenset[str] = frozenset()
    """Environment variables, as `kube-apiserver.HTTPS_PROXY`."""
    endpoint_networks: tuple[Network, ...] = ()
    """The networks of addresses of this machine at which endpoints may listen."""

    def problem_of_argument(
        self, component: str, version: str, flag: str, value: str
    ) -> str | None:
        """Why a flag is not allowed, if it is not."""
        if f"{component}.{flag}" in self.extra_args:
            return None
        allowed = _ALLOWED_ARGUMENTS[component].items()
        values = next((values for flags, values in allowed if re.fullmatch(flags, flag)), None)
        if values is None:
            return (
                "this provider does not allow the flag, which may reach its machine; leave it"
                f" out, or ask its administrator for --allow-extra-args={component}.{flag}"
            )
        since = _SINCE.get((component, flag))
        if since is not None and Version.parse(version) < Version.parse(since):
            return f"{component} {version} does not have the flag; it came with {since}"
        if not re.fullmatch(values, value):
            return f"{value!r} is not one of the values that this provider allows: {values}"
        return None

    def problem_of_variable(self, component: str, name: str) -> str | None:
        """Why an environment variable is not allowed, if it is not."""
        if name in _ALLOWED_VARIABLES or f"{component}.{name}" in self.extra_env:
            return None
        return (
            "this provider does not allow the variable, which may reach its machine; leave it out,"
            f" or ask its administrator for --allow-extra-env={component}.{name}"
        )

    def may_listen_at(self, address: IPv4Address | IPv6Address) -> bool:
        """Whether an endpoint may listen at an address that is not its control plane's own."""
        return any(address in network for network in self.endpoint_networks)


DEFAULT_POLICY = Policy()
"""Nothing beyond what every provider allows."""


def problem_of_host(host: str) -> str | None:
    """Why a text cannot be the host of an endpoint, if it cannot."""
    if (address := address_of(host)) is not None:
        if address.is_unspecified or address.is_multicast:
            return "is not the address of one machine; write one such as 192.0.2.7"
        return None
    if len(host) <= 253 and _DNS_NAME.fullmatch(host):
        return None
    return "is neither a DNS name nor an IP address; write one such as api.example.com"


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
    return f"the port {port} is that of a component of the control plane; write one such as 6443"


def read_names(text: str) -> frozenset[str]:
    """An option such as `kube-apiserver.audit-log-path,etcd.enable-pprof`.

    Raises:
        ValueError: a part is not of the form `component.name`.
    """
    names = frozenset(filter(None, text.split(",")))
    for name in sorted(names):
        component, _, rest = name.partition(".")
        if component not in _ALLOWED_ARGUMENTS or not rest:
            raise ValueError(
                f'"{name}" does not name a setting of a component; write kube-apiserver.NAME,'
                f" with one of {', '.join(_ALLOWED_ARGUMENTS)}"
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
                f'"{network}" has loopback addresses, which each control plane has of its own;'
                " write a network of this machine"
            )
    return networks
