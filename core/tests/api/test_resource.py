"""Paths and plurals of kinds."""

import pytest
from capelin.api import Resource, plural_of

POD = Resource("", "v1", "Pod", "pods")
CLUSTER = Resource("cluster.x-k8s.io", "v1beta2", "Cluster", "clusters")
NODE = Resource("", "v1", "Node", "nodes", namespaced=False)


def test_path_returns_a_collection_an_object_or_its_subresource() -> None:
    assert POD.path() == "/api/v1/pods"
    assert POD.path("a") == "/api/v1/namespaces/a/pods"
    assert CLUSTER.path("a", "b") == "/apis/cluster.x-k8s.io/v1beta2/namespaces/a/clusters/b"
    assert CLUSTER.path("a", "b", "status").endswith("/clusters/b/status")


def test_the_path_of_a_cluster_scoped_object_has_no_namespace() -> None:
    assert NODE.path("a", "b") == "/api/v1/nodes/b"


# Names that `CalculateCRDName` of Cluster API v1.14 returns.
PLURALS = """
capelincontrolplanes:CapelinControlPlane capelinmachinepooltemplates:CapelinMachinePoolTemplate
capelinhosts:CapelinHost upgradepolicies:UpgradePolicy gateways:Gateway proxies:Proxy keys:Key
clusterclasses:ClusterClass statuses:Status canvas:Canvas boxes:Box switches:Switch meshes:Mesh
heroes:Hero photos:Photo scenarios:Scenario quizzes:Quiz shelves:Shelf knives:Knife quotas:Quota
clusterinformation:ClusterInformation endpoints:Endpoints
"""


@pytest.mark.parametrize("pair", PLURALS.split())
def test_plurals_match_those_of_cluster_api(pair: str) -> None:
    plural, kind = pair.split(":")
    assert plural_of(kind) == plural
