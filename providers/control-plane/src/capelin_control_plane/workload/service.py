"""Where pods find the API: what stands behind the service `kubernetes`."""

from ipaddress import ip_address

from capelin.api import Unstructured

from capelin_control_plane.workload.facts import Facts


def service_objects(facts: Facts) -> list[Unstructured]:
    """The endpoint of the service `kubernetes`, where it can be one.

    API servers do not register themselves: they would with addresses of their own, behind the
    endpoint. A loopback address leads no pod anywhere, and Kubernetes refuses it.
    """
    try:
        address = ip_address(facts.host)
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
            "ports": [{"name": "https", "port": facts.port, "protocol": "TCP"}],
        }
    ]
