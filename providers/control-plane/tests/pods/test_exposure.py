"""Where clients reach a control plane on pods."""

from dataclasses import replace
from typing import Any

import pytest
from capelin.api.core import Node
from capelin.provider import Blocked
from capelin_control_plane.backends.pods.exposure import api_server_service, endpoint_of
from capelin_control_plane.desired.control_plane import ControlPlane

from .pod_objects import NAMES, on_pods, settings


def exposed(type_: str, host: str | None = None, port: int = 6443) -> ControlPlane:
    return replace(on_pods(), host=host, port=port, pods=settings(exposure={"type": type_}))


def service(desired: ControlPlane, status: object = None, **spec: object) -> dict[str, Any]:
    made = api_server_service(desired, NAMES)
    return {**made, "spec": {**made["spec"], **spec}, "status": status or {}}


def node(name: str, address: str, *, ready: bool = True) -> Node:
    return Node.read(
        {
            "metadata": {"name": name},
            "status": {
                "conditions": [{"type": "Ready", "status": str(ready)}],
                "addresses": [{"type": "InternalIP", "address": address}],
            },
        }
    )


@pytest.mark.parametrize("ingress", [{"ip": "192.0.2.7"}, {"hostname": "192.0.2.7"}])
def test_a_load_balancer_provides_the_host(ingress: dict[str, str]) -> None:
    desired = exposed("LoadBalancer")
    found = service(desired, {"loadBalancer": {"ingress": [ingress]}})
    endpoint = endpoint_of(desired, NAMES, found)
    assert (endpoint.host, endpoint.port) == ("192.0.2.7", 6443)
    assert endpoint.address == "one-kube-apiserver.default.svc"


@pytest.mark.parametrize("type_", ["LoadBalancer", "NodePort", "ClusterIP"])
def test_an_endpoint_waits_for_an_address(type_: str) -> None:
    desired = exposed(type_)
    with pytest.raises(Blocked) as waiting:
        endpoint_of(desired, NAMES, service(desired))
    assert waiting.value.reason == "WaitingForAddress"


def test_a_node_port_uses_the_first_ready_node_by_name() -> None:
    desired = exposed("NodePort")
    ports = [{"port": 6443, "nodePort": 30123}]
    nodes = [
        node("c", "192.0.2.3"),
        node("b", "192.0.2.2"),
        node("a", "192.0.2.1", ready=False),
    ]
    endpoint = endpoint_of(desired, NAMES, service(desired, ports=ports), nodes)
    assert (endpoint.host, endpoint.port) == ("192.0.2.2", 30123)


def test_a_balancer_of_the_user_forwards_its_own_port_to_the_node_port() -> None:
    desired = replace(exposed("NodePort", "lb.example.com"), is_port_given=True)
    found = service(desired, ports=[{"port": 6443, "nodePort": 30123}])
    endpoint = endpoint_of(desired, NAMES, found)
    assert (endpoint.host, endpoint.port) == ("lb.example.com", 6443)


def test_the_port_of_an_endpoint_outlives_its_service() -> None:
    (port,) = api_server_service(exposed("NodePort", "192.0.2.2", 30123), NAMES)["spec"]["ports"]
    assert port["nodePort"] == 30123


def test_a_cluster_ip_is_the_host() -> None:
    desired = exposed("ClusterIP")
    endpoint = endpoint_of(desired, NAMES, service(desired, clusterIP="10.96.0.7"))
    assert (endpoint.host, endpoint.port) == ("10.96.0.7", 6443)


@pytest.mark.parametrize("type_", ["LoadBalancer", "ClusterIP"])
def test_a_host_in_the_spec_is_used_unchanged(type_: str) -> None:
    desired = exposed(type_, "api.example.com", 443)
    endpoint = endpoint_of(desired, NAMES, service(desired))
    assert (endpoint.host, endpoint.port) == ("api.example.com", 443)
