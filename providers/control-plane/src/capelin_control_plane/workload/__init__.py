"""The objects that a control plane keeps in its workload cluster.

They are those of kubeadm, so that its machines can join. The YAML files contain them. `${name}`
stands for a value of the cluster.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from importlib.resources import files
from ipaddress import ip_address, ip_network
from typing import Any, cast

from capelin.api import Unstructured, resource_of
from capelin.client import Client, Config, needs_apply
from capelin.controller import ObjectKey
from capelin.yaml import read_all_yaml, write_yaml

from capelin_control_plane.backends.pods.konnectivity import konnectivity_image
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import Endpoint

RESYNC = timedelta(minutes=2)
"""How soon an object that was deleted from the workload cluster is created again."""
COREDNS_IMAGES = {
    "1.31": "registry.k8s.io/coredns/coredns:v1.11.3",
    "1.32": "registry.k8s.io/coredns/coredns:v1.11.3",
    "1.33": "registry.k8s.io/coredns/coredns:v1.12.0",
    "1.34": "registry.k8s.io/coredns/coredns:v1.12.1",
    "1.35": "registry.k8s.io/coredns/coredns:v1.13.1",
    "1.36": "registry.k8s.io/coredns/coredns:v1.14.2",
}
"""The CoreDNS of each Kubernetes minor version."""

_PLACEHOLDER = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class _Applied:
    digest: str
    moment: datetime


class WorkloadSync:
    """Applies objects to workload clusters, and checks now and then that they still exist."""

    def __init__(self, manager: str) -> None:
        self._manager = manager
        self._applied: dict[ObjectKey, _Applied] = {}

    async def apply(
        self, key: ObjectKey, config: Config, objects: Sequence[Unstructured], now: datetime
    ) -> None:
        """Apply the objects, unless a recent check found the same ones.

        Raises:
            ClientError: the workload cluster does not answer, or refuses an object.
        """
        digest = hashlib.sha256(json.dumps(objects, sort_keys=True).encode()).hexdigest()
        applied = self._applied.get(key)
        if applied and applied.digest == digest and now - applied.moment < RESYNC:
            return
        self.forget(key)
        async with Client(config, manager=self._manager) as workload:
            for manifest in objects:
                await self._ensure(workload, manifest)
        self._applied[key] = _Applied(digest, now)

    def forget(self, key: ObjectKey) -> None:
        """Check the workload cluster the next time."""
        self._applied.pop(key, None)

    async def _ensure(self, workload: Client, manifest: Unstructured) -> None:
        metadata = manifest["metadata"]
        resource = replace(resource_of(manifest), namespaced="namespace" in metadata)
        live = await workload.find(resource, metadata["name"], metadata.get("namespace"))
        if live is None or needs_apply(live, manifest, self._manager):
            await workload.apply(manifest, resource=resource)


def workload_objects(
    desired: ControlPlane, endpoint: Endpoint, ca_certificate_pem: bytes
) -> list[Unstructured]:
    """Everything that belongs in the workload cluster."""
    addons = desired.addons
    dns_addresses = [_dns_address(cidr) for cidr in desired.service_cidrs]
    pod_cidrs = ",".join(desired.pod_cidrs)
    values: dict[str, Any] = {
        "ca": base64.b64encode(ca_certificate_pem).decode(),
        "clusterName": desired.cluster,
        "dns": {} if addons.core_dns.enabled else {"disabled": True},
        "dnsAddress": dns_addresses[0],
        "dnsAddresses": dns_addresses,
        "encryptionAlgorithm": desired.algorithm.upper(),
        "endpoint": endpoint.authority,
        "podCIDRs": pod_cidrs,
        "podSubnet": pod_cidrs or None,
        "proxy": {} if addons.kube_proxy.enabled else {"disabled": True},
        "server": endpoint.url,
        "serviceCIDRs": ",".join(desired.service_cidrs),
        "serviceDomain": desired.service_domain,
        "version": desired.version,
    }
    objects = [*_rendered("kubeadm-join", values), *_kubernetes_service(endpoint)]
    if addons.core_dns.enabled:
        image = addons.core_dns.image or coredns_image(desired.version)
        objects += _rendered("coredns", {**values, "image": image})
    if addons.kube_proxy.enabled:
        image = addons.kube_proxy.image or f"registry.k8s.io/kube-proxy:{desired.version}"
        conntrack = _conntrack(addons.kube_proxy.conntrack_max_per_core)
        objects += _rendered("kube-proxy", {**values, "image": image, "conntrack": conntrack})
    if endpoint.agents is not None:
        objects += _rendered(
            "konnectivity",
            {
                "agentImage": konnectivity_image(desired, "agent"),
                "agentsHost": endpoint.agents.host,
                "agentsPort": endpoint.agents.port,
                "apiHost": endpoint.host,
                "apiPort": str(endpoint.port),
            },
        )
    return objects


def coredns_image(version: str) -> str:
    """The CoreDNS of a Kubernetes version: that of its minor version, else the newest known."""
    minor = ".".join(version.removeprefix("v").split(".")[:2])
    return COREDNS_IMAGES.get(minor, list(COREDNS_IMAGES.values())[-1])


def _conntrack(max_per_core: int | None) -> dict[str, int] | None:
    """kube-proxy's settings for tracked connections. With 0, kube-proxy ignores its minimum."""
    return None if max_per_core is None else {"maxPerCore": max_per_core}


def _kubernetes_service(endpoint: Endpoint) -> list[Unstructured]:
    """The endpoint of the service `kubernetes`, through which pods find the API.

    API servers do not register themselves: they would register addresses behind the endpoint. Pods
    cannot use a loopback address, and Kubernetes refuses it.
    """
    try:
        address = ip_address(endpoint.host)
    except ValueError:
        return []
    if address.is_loopback:
        return []
    return [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kubernetes",
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": "kubernetes"},
            },
            "addressType": f"IPv{address.version}",
            "endpoints": [{"addresses": [str(address)], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": endpoint.port, "protocol": "TCP"}],
        }
    ]


def _dns_address(service_cidr: str) -> str:
    """The tenth address of a service network, where kubeadm puts the cluster's DNS."""
    network = ip_network(service_cidr)
    return str(ip_address(int(network.network_address) + 10))


@cache
def _manifests(name: str) -> list[Unstructured]:
    text = files("capelin_control_plane.workload").joinpath(f"{name}.yaml").read_text()
    return list(read_all_yaml(text))


def _rendered(name: str, values: Mapping[str, Any]) -> list[Unstructured]:
    return [_manifest(manifest, values) for manifest in _manifests(name)]


def _manifest(manifest: Unstructured, values: Mapping[str, Any]) -> Unstructured:
    rendered = cast("Unstructured", _filled(manifest, values))
    if rendered["kind"] == "ConfigMap":
        rendered["data"] = {key: _document(data) for key, data in rendered["data"].items()}
    return rendered


def _filled(node: object, values: Mapping[str, Any]) -> object:
    """A node with its placeholders filled in. It omits a field whose value is None."""
    if isinstance(node, dict):
        fields = cast("Mapping[str, object]", node)
        return {
            name: _filled(field, values)
            for name, field in fields.items()
            if not (_is_placeholder(field) and _filled(field, values) is None)
        }
    if isinstance(node, list):
        return [_filled(item, values) for item in cast("list[object]", node)]
    if not isinstance(node, str):
        return node
    whole = _PLACEHOLDER.fullmatch(node)
    if whole:
        return values[whole[1]]
    return _PLACEHOLDER.sub(lambda match: str(values[match[1]]), node)


def _is_placeholder(node: object) -> bool:
    return isinstance(node, str) and _PLACEHOLDER.fullmatch(node) is not None


def _document(data: object) -> str:
    """An entry of a ConfigMap: a text as it is, anything else as a YAML document."""
    if isinstance(data, str):
        return data
    return write_yaml(data, sort_keys=True)
