"""What the objects in a workload cluster are made from."""

from dataclasses import dataclass
from ipaddress import ip_address, ip_network


@dataclass(frozen=True, slots=True)
class Addon:
    """An add-on that is wanted, and its image where the default is not."""

    image: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """A workload cluster, as far as the objects in it depend on it."""

    cluster_name: str
    version: str
    host: str
    port: int
    ca_pem: bytes
    service_cidrs: tuple[str, ...]
    pod_cidrs: tuple[str, ...]
    service_domain: str
    encryption_algorithm: str
    coredns: Addon | None
    kube_proxy: Addon | None

    @property
    def server(self) -> str:
        """The URL at which the workload cluster's API answers."""
        return server_url(self.host, self.port)

    @property
    def dns_addresses(self) -> tuple[str, ...]:
        """The cluster DNS addresses: the tenth of each service range, where kubeadm puts them."""
        networks = (ip_network(cidr) for cidr in self.service_cidrs)
        return tuple(str(ip_address(int(network.network_address) + 10)) for network in networks)


def server_url(host: str, port: int) -> str:
    """The URL of an API server, which has an IPv6 address in brackets."""
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
