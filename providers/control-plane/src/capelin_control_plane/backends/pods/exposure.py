"""Where clients reach the API servers: their Service and its address. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from capelin.api import Unstructured
from capelin.api.core import Node
from capelin.contract import READY, is_condition_true
from capelin.provider import Blocked

from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backends.pods.names import API_SERVER_PORT, Names, items_at, value_at
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import AgentsEndpoint, Endpoint

_NODE_PORTS = range(30000, 32768)


def service_port(desired: ControlPlane) -> int:
    """The port of the API servers' Service inside the management cluster."""
    is_node_port = desired.pods.exposure.type == "NodePort"
    return API_SERVER_PORT if is_node_port else desired.port


def api_server_service(desired: ControlPlane, names: Names) -> Unstructured:
    """The Service of the API servers. It sends connections to ready ones only."""
    port: dict[str, Any] = {
        "name": "https",
        "port": service_port(desired),
        "targetPort": API_SERVER_PORT,
        "protocol": "TCP",
    }
    if desired.pods.exposure.type == "NodePort" and desired.port in _NODE_PORTS:
        # The endpoint is in every machine's kubeconfig: a new Service has the same port.
        port["nodePort"] = desired.port
    return exposed_service(desired, names, names.of_component("kube-apiserver"), port)


def exposed_service(
    desired: ControlPlane, names: Names, name: str, port: Unstructured
) -> Unstructured:
    """A Service of the API servers' pods, exposed with the settings of the control plane."""
    exposure = desired.pods.exposure
    spec: dict[str, Any] = {
        "type": exposure.type,
        "selector": names.labels("kube-apiserver"),
        "ports": [port],
    }
    if exposure.load_balancer_class is not None:
        spec["loadBalancerClass"] = exposure.load_balancer_class
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": names.namespace,
            "annotations": dict(exposure.annotations),
        },
        "spec": spec,
    }


def endpoint_of(
    desired: ControlPlane, names: Names, service: Mapping[str, Any], nodes: Iterable[Node] = ()
) -> Endpoint:
    """The endpoint that a Service gives.

    Args:
        desired: The control plane.
        names: The names of its objects.
        service: The Service as it is.
        nodes: The nodes of the management cluster, where the host is one of theirs.

    Raises:
        Blocked: no address is available yet.
    """
    host, port = _address(desired, service, desired.host, desired.port, nodes)
    if desired.host and desired.is_port_given:
        # A load balancer of the infrastructure, or of the user, forwards it to the node port.
        port = desired.port
    return Endpoint(names.api_server_host, host, port)


def agents_endpoint_of(
    desired: ControlPlane, service: Mapping[str, Any], nodes: Iterable[Node] = ()
) -> AgentsEndpoint:
    """Where agents of konnectivity connect, from the Service for them as it is.

    Raises:
        Blocked: no address is available yet.
    """
    # A host that the spec names is that of the API servers' Service, or all nodes'.
    host = desired.host if desired.pods.exposure.type == "NodePort" else None
    return AgentsEndpoint(
        *_address(desired, service, host, service["spec"]["ports"][0]["port"], nodes)
    )


def own_hosts(service: Mapping[str, Any] | None, nodes: Iterable[Node]) -> frozenset[str]:
    """The addresses that the management cluster gives to API servers."""
    hosts = [address.address for node in nodes for address in node.status.addresses]
    hosts += value_at(service, "spec", "clusterIPs") or []
    for ingress in items_at(service, "status", "loadBalancer", "ingress"):
        hosts += filter(None, (ingress.get("ip"), ingress.get("hostname")))
    return frozenset(hosts)


def _address(
    desired: ControlPlane,
    service: Mapping[str, Any],
    host: str | None,
    port: int,
    nodes: Iterable[Node],
) -> tuple[str, int]:
    spec = service["spec"]
    match desired.pods.exposure.type:
        case "NodePort":
            port = spec["ports"][0].get("nodePort")
            host = host or _node_address(nodes)
            problem = "no node of the management cluster is ready and has an internal address"
        case "LoadBalancer":
            host = host or _balancer_host(service)
            problem = (
                "the load balancer of the management cluster has given no address yet to Service"
                f" {service['metadata']['name']}"
            )
        case "ClusterIP":
            cluster_ip = spec.get("clusterIP")
            host = host or (None if cluster_ip in {None, "", "None"} else cluster_ip)
            problem = "the management cluster has given its Service no address yet"
    if not host or not port:
        raise Blocked(
            Reason.WAITING_FOR_ADDRESS,
            problem,
            "if it never will, write another spec.pods.exposure.type",
        )
    return host, port


def _node_address(nodes: Iterable[Node]) -> str | None:
    """The first node's by name: the same one each time, until the endpoint is written down."""
    for node in sorted(nodes, key=lambda node: node.name):
        if is_condition_true(node.status.conditions, READY):
            for address in node.status.addresses:
                if address.type == "InternalIP":
                    return address.address
    return None


def _balancer_host(service: Mapping[str, Any]) -> str | None:
    for ingress in items_at(service, "status", "loadBalancer", "ingress"):
        if host := ingress.get("ip") or ingress.get("hostname"):
            return host
    return None
