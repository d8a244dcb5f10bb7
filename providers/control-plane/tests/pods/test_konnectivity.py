"""Konnectivity: servers in the pods of API servers, their Service, certificates and agents."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from capelin.api import Unstructured
from capelin.pki import new_ca, new_service_account_keys
from capelin_control_plane.backends.pods.exposure import agents_endpoint_of, api_server_service
from capelin_control_plane.backends.pods.konnectivity import agents_service
from capelin_control_plane.backends.pods.objects import DesiredObjects, desired_objects
from capelin_control_plane.backends.pods.pki_secret import pki_data
from capelin_control_plane.backends.pods.pod_security import pod_problems
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import AgentsEndpoint, Endpoint
from capelin_control_plane.keys.certificates import Authorities
from capelin_control_plane.workload import workload_objects
from cryptography import x509

from .pod_objects import NAMES, objects_of, on_pods, settings

NOW = datetime.now(UTC)
AUTHORITIES = Authorities(
    ca=new_ca("kubernetes", now=NOW),
    etcd=new_ca("etcd-ca", now=NOW),
    proxy=new_ca("front-proxy-ca", now=NOW),
    service_account=new_service_account_keys(),
)
AGENTS = AgentsEndpoint("192.0.2.8", 30132)
ENDPOINT = Endpoint(NAMES.api_server_host, "192.0.2.7", 30443, AGENTS)


def tunnelled(type_: str = "NodePort", host: str | None = None) -> ControlPlane:
    pods = settings(exposure={"type": type_}, konnectivity={"enabled": True})
    return replace(on_pods(), host=host, pods=pods)


def objects(certificate: bytes = b"shoal") -> DesiredObjects:
    desired = tunnelled()
    return desired_objects(desired, NAMES, api_server_service(desired, NAMES), certificate)


def pod_of(found: DesiredObjects) -> dict[str, Any]:
    return found.api_server.manifest["spec"]["template"]["spec"]


def containers(pod: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The server of konnectivity, and the API server."""
    (server,), (api_server,) = pod["initContainers"], pod["containers"]
    return server, api_server


def files(pod: dict[str, Any], volume: str) -> set[str]:
    (found,) = (each for each in pod["volumes"] if each["name"] == volume)
    return {f"/etc/kubernetes/pki/{item['path']}" for item in found["secret"]["items"]}


def flags(container: dict[str, Any], of: str = "args") -> dict[str, str]:
    return dict(flag.split("=", 1) for flag in container[of] if flag.startswith("--"))


def data(desired: ControlPlane, present: dict[str, bytes] | None = None) -> dict[str, bytes]:
    return pki_data(desired, AUTHORITIES, NAMES, ENDPOINT, present or {})[0]


def test_no_object_mentions_konnectivity_if_it_is_disabled() -> None:
    desired = on_pods()
    endpoint = replace(ENDPOINT, agents=None)
    secret, _ = pki_data(desired, AUTHORITIES, NAMES, endpoint, {})
    made = (objects_of(desired), workload_objects(desired, endpoint, b""), sorted(secret))
    assert "konnectivity" not in str(made)
    assert "egress-selector" not in str(made)
    assert "8132" not in str(made)


def test_an_api_server_connects_to_the_konnectivity_server_in_its_pod() -> None:
    pod = pod_of(objects())
    server, api_server = containers(pod)
    assert list(pod_problems(pod)) == []
    selector = flags(api_server)["--egress-selector-config-file"]
    assert selector in files(pod, "pki")
    (selection,) = json.loads(data(tunnelled())["egress-selector.json"])["egressSelections"]
    socket = selection["connection"]["transport"]["uds"]["udsName"]
    assert socket == flags(server)["--uds-name"]
    for container in (server, api_server):
        folders = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert socket.rpartition("/")[0] in folders


def test_a_server_mounts_only_the_files_it_needs() -> None:
    pod = pod_of(objects())
    server, _ = containers(pod)
    own = files(pod, "konnectivity-pki")
    named = {value for value in flags(server).values() if value.startswith("/etc/")}
    # The kubeconfig names the rest.
    kubeconfig = data(tunnelled())["konnectivity-server.kubeconfig"].decode()
    assert named | {path for path in own if path in kubeconfig} == own
    assert own.isdisjoint(files(pod, "pki") - {"/etc/kubernetes/pki/ca-ca.crt"})


def test_a_server_outlives_its_api_server() -> None:
    server, _ = containers(pod_of(objects()))
    assert server["restartPolicy"] == "Always"
    # An API server with no node yet has no agent, and must become ready.
    assert "readinessProbe" not in server


def test_another_certificate_changes_the_pods() -> None:
    assert objects(b"one").api_server.digest == objects(b"one").api_server.digest
    assert objects(b"one").api_server.digest != objects(b"another").api_server.digest


def test_another_number_of_api_servers_does_not_change_the_pods() -> None:
    more = replace(tunnelled(), replicas=3)
    found = desired_objects(more, NAMES, api_server_service(more, NAMES), b"shoal")
    assert found.api_server.digest == objects().api_server.digest


def test_agents_reach_servers_of_api_servers_that_are_not_ready() -> None:
    found = {
        (manifest["kind"], manifest["metadata"]["name"]): manifest["spec"]
        for manifest in objects().supporting
    }
    service = found["Service", "one-konnectivity-server"]
    assert service["publishNotReadyAddresses"]
    assert service["selector"] == found["Service", "one-kube-apiserver"]["selector"]
    (rule,) = found["NetworkPolicy", "one-kube-apiserver"]["ingress"]
    assert service["ports"][0]["targetPort"] in [port["port"] for port in rule["ports"]]


def exposed(desired: ControlPlane, **service: Any) -> Unstructured:
    made = agents_service(desired, NAMES)
    return {**made, "spec": {**made["spec"], **service.pop("spec", {})}, **service}


def test_agents_use_the_address_of_their_own_service() -> None:
    desired = tunnelled("LoadBalancer", host="192.0.2.7")
    balancer = exposed(desired, status={"loadBalancer": {"ingress": [{"ip": "192.0.2.8"}]}})
    assert agents_endpoint_of(desired, balancer) == AgentsEndpoint("192.0.2.8", 8132)
    desired = tunnelled("ClusterIP", host="192.0.2.7")
    assert agents_endpoint_of(
        desired, exposed(desired, spec={"clusterIP": "10.96.0.8"})
    ) == AgentsEndpoint("10.96.0.8", 8132)


def test_agents_use_the_host_of_the_api_servers_on_a_node_port() -> None:
    desired = tunnelled("NodePort", host="192.0.2.7")
    service = exposed(desired, spec={"ports": [{"port": 8132, "nodePort": 30132}]})
    assert agents_endpoint_of(desired, service) == AgentsEndpoint("192.0.2.7", 30132)


def test_the_konnectivity_certificate_is_for_agents_and_renewed_with_the_others() -> None:
    before = data(tunnelled())
    certificate = x509.load_pem_x509_certificate(before["konnectivity-server.pem"])
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == [AGENTS.host]
    later = replace(tunnelled(), now=NOW + timedelta(days=300))
    assert data(tunnelled(), before) == before
    after = data(later, before)
    renewed = {name for name, content in after.items() if content != before[name]}
    assert {"konnectivity-server.pem", "apiserver.pem"} <= renewed


def test_agents_have_the_identity_that_the_server_expects() -> None:
    server = flags(containers(pod_of(objects()))[0])
    found = {
        (manifest["kind"], manifest["metadata"]["name"]): manifest
        for manifest in workload_objects(tunnelled(), ENDPOINT, b"")
    }
    account = found["ServiceAccount", server["--agent-service-account"]]
    assert account["metadata"]["namespace"] == server["--agent-namespace"]
    pod = found["DaemonSet", "konnectivity-agent"]["spec"]["template"]["spec"]
    (agent,), (volume,) = pod["containers"], pod["volumes"]
    (source,) = volume["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == server["--authentication-audience"]
    assert pod["serviceAccountName"] == server["--agent-service-account"]
    own = flags(agent, "command")
    for flag in ("--lease-label", "--lease-namespace"):
        assert own[flag] == server[flag]
    assert (own["--proxy-server-host"], own["--proxy-server-port"]) == (AGENTS.host, "30132")
    variables = {each["name"]: each.get("value") for each in agent["env"]}
    assert variables["KUBERNETES_SERVICE_HOST"] == ENDPOINT.host
    assert variables["KUBERNETES_SERVICE_PORT"] == "30443"


def test_the_server_may_review_the_tokens_of_agents() -> None:
    certificate = x509.load_pem_x509_certificate(data(tunnelled())["konnectivity-server.pem"])
    (name,) = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    bindings = [
        manifest
        for manifest in workload_objects(tunnelled(), ENDPOINT, b"")
        if {"kind": "User", "name": name.value}.items() <= manifest.get("subjects", [{}])[0].items()
    ]
    assert {binding["roleRef"]["name"] for binding in bindings} == {
        "system:auth-delegator",
        "system:konnectivity-server",
    }
