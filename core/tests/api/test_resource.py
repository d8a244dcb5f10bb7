"""Where kinds live."""

import pytest
from capelin.api import Resource, plural_of

POD = Resource("", "v1", "Pod", "pods")
CLUSTER = Resource("cluster.x-k8s.io", "v1beta2", "Cluster", "clusters")
NODE = Resource("", "v1", "Node", "nodes", namespaced=False)


def test_a_path_leads_to_a_collection_an_object_or_its_subresource() -> None:
    assert POD.path() == "/api/v1/pods"
    assert POD.path("a") == "/api/v1/namespaces/a/pods"
    assert CLUSTER.path("a", "b") == "/apis/cluster.x-k8s.io/v1beta2/namespaces/a/clusters/b"
    assert CLUSTER.path("a", "b", "status").endswith("/clusters/b/status")


def test_what_belongs_to_the_whole_cluster_has_no_namespace_in_its_path() -> None:
    assert NODE.path("a", "b") == "/api/v1/nodes/b"


# Names as `CalculateCRDName` of Cluster API v1.14 gives them.
PLURALS = """
capelincontrolplanes:CapelinControlPlane capelinmachinepooltemplates:CapelinMachinePoolTemplate
capelinhosts:CapelinHost upgradepolicies:UpgradePolicy gateways:Gateway proxies:Proxy keys:Key
clusterclasses:ClusterClass statuses:Status canvas:Canvas boxes:Box switches:Switch meshes:Mesh
heroes:Hero photos:Photo scenarios:Scenario quizzes:Quiz shelves:Shelf knives:Knife quotas:Quota
clusterinformation:ClusterInformation endpoints:Endpoints
"""


@pytest.mark.parametrize("pair", PLURALS.split())
def test_plurals_are_those_that_cluster_api_looks_for(pair: str) -> None:
    plural, kind = pair.split(":")
    assert plural_of(kind) == plural
