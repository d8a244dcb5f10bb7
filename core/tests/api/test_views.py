"""Views of the kinds of Kubernetes and Cluster API."""

import base64
import inspect
from datetime import UTC, datetime

import pytest
from capelin.api import BaseObject, Unstructured, capi, core
from pydantic import ValidationError

KINDS: list[type[BaseObject]] = [
    member
    for module in (core, capi)
    for _, member in inspect.getmembers(module, inspect.isclass)
    if issubclass(member, BaseObject) and member is not BaseObject
]
AT = datetime(2025, 1, 31, 10, 30, 15, 250000, tzinfo=UTC)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_view_has_no_required_fields_and_dumps_no_defaults(kind: type[BaseObject]) -> None:
    assert kind.of("a").dump() == {
        "apiVersion": kind.resource.api_version,
        "kind": kind.resource.kind,
        "metadata": {"name": "a"},
    }


def test_secret_data_is_base64_only_on_the_wire() -> None:
    raw = bytes(range(256))
    secret = core.Secret.of("a", "b", data={"value": raw})
    encoded = base64.b64encode(raw).decode()
    assert secret.dump()["data"] == {"value": encoded}
    assert core.Secret.read(secret.dump()).data == {"value": raw}
    assert core.Secret.read_json(f'{{"data": {{"value": "{encoded}"}}}}').data == {"value": raw}


def test_repr_and_errors_contain_no_secret_data() -> None:
    assert "hush" not in repr(core.Secret.of("a", data={"key": b"hush"}))
    for wrong in ({"data": {"key": "hush!"}}, {"data": "hush"}, {"type": 1, "data": {"a": "hush"}}):
        with pytest.raises(ValidationError) as refused:
            core.Secret.read(wrong)
        assert "hush" not in str(refused.value)


def test_a_lease_has_micro_times() -> None:
    lease = core.Lease.of("a", "b", spec=core.LeaseSpec(holder_identity="me", renew_time=AT))
    assert lease.dump()["spec"] == {
        "holderIdentity": "me",
        "renewTime": "2025-01-31T10:30:15.250000Z",
    }


def test_a_null_list_reads_as_empty() -> None:
    assert core.ClusterRole.read({"rules": None}).rules_ == []
    status = {"conditions": None, "storedVersions": None}
    definition = core.CustomResourceDefinition.read({"status": status})
    assert definition.status.conditions == definition.status.stored_versions == []


def test_the_rules_of_a_role_keep_their_wire_name() -> None:
    rule = core.PolicyRule(verbs=["get"], non_resource_urls=["/metrics"])
    assert core.ClusterRole.of("a", rules_=[rule]).dump()["rules"] == [
        {"verbs": ["get"], "nonResourceURLs": ["/metrics"]}
    ]


CLUSTER: Unstructured = {
    "apiVersion": "cluster.x-k8s.io/v1beta2",
    "kind": "Cluster",
    "metadata": {"name": "demo", "namespace": "default", "uid": "1", "generation": 2},
    "spec": {
        "clusterNetwork": {"services": {"cidrBlocks": ["10.0.0.0/12"]}, "apiServerPort": 6443},
        "controlPlaneEndpoint": {"host": "127.64.0.1", "port": 6443},
        "controlPlaneRef": {
            "apiGroup": "controlplane.cluster.x-k8s.io",
            "kind": "CapelinControlPlane",
            "name": "demo",
        },
        "topology": {
            "classRef": {"name": "capelin"},
            "version": "v1.34.4",
            "workers": {"machinePools": [{"class": "default", "name": "a", "replicas": 3}]},
            "variables": [{"name": "size", "value": {"any": ["thing"]}}],
        },
    },
    "status": {
        "initialization": {"infrastructureProvisioned": True},
        "failureDomains": [{"name": "a", "controlPlane": True}],
        "conditions": [
            {
                "type": "Available",
                "status": "False",
                "reason": "NotAvailable",
                "message": "* RemoteConnectionProbe: Remote connection not established yet",
                "lastTransitionTime": "2025-01-31T10:30:15Z",
                "observedGeneration": 2,
            }
        ],
    },
}


def test_a_cluster_survives_a_round_trip() -> None:
    cluster = capi.Cluster.read(CLUSTER)
    assert cluster.dump() == CLUSTER
    assert cluster.spec.topology is not None
    assert cluster.spec.topology.workers.machine_pools[0].class_ == "default"
    assert cluster.status.initialization.control_plane_initialized is None


def test_absent_fields_read_as_empty() -> None:
    cluster = capi.Cluster.read({})
    assert (cluster.spec.control_plane_endpoint.host, cluster.status.conditions) == ("", [])
    assert capi.Machine.read({}).spec.bootstrap.data_secret_name is None


def test_events_of_the_two_groups_have_different_paths() -> None:
    assert core.Event.resource.path("a") == "/apis/events.k8s.io/v1/namespaces/a/events"
    assert core.CoreEvent.resource.path("a") == "/api/v1/namespaces/a/events"


def test_the_ca_bundle_of_an_extension_is_base64_on_the_wire() -> None:
    client_config = capi.ExtensionClientConfig(url="https://a", ca_bundle=b"pem")
    spec = capi.ExtensionConfigSpec(client_config=client_config)
    config = capi.ExtensionConfig.of("a", spec=spec)
    assert config.dump()["spec"]["clientConfig"]["caBundle"] == "cGVt"
