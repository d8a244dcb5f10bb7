"""Users cannot go around the hooks of a Cluster through its fields and labels."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from capelin.api import Resource
from capelin.api.core import Namespace
from capelin.client import Client, Config, Forbidden
from capelin.testing.users import client_of
from capelin.testing.waiting import until
from capelin_lifecycle.admission import quota_labels_policy, references_policy
from capelin_lifecycle.api.names import GROUP
from capelin_lifecycle.api.policies import ClusterLifecyclePolicy

pytestmark = pytest.mark.usefixtures("provider_crds")

CLUSTERS = Resource("cluster.x-k8s.io", "v1beta2", "Cluster", "clusters")
WRITES = {
    "apiGroups": ["cluster.x-k8s.io"],
    "resources": ["clusters"],
    "verbs": ["get", "create", "patch", "update", "delete"],
}
STATUS = {
    "apiGroups": ["cluster.x-k8s.io"],
    "resources": ["clusters/status"],
    "verbs": ["patch"],
}
POLICIES = {"apiGroups": [GROUP], "resources": ["clusterlifecyclepolicies"], "verbs": ["update"]}
TOPOLOGY: dict[str, Any] = {"classRef": {"name": "small"}, "version": "v1.34.4"}
REFERENCE = {
    "apiGroup": "infrastructure.cluster.x-k8s.io",
    "kind": "CapelinCluster",
    "name": "mine",
}


def cluster(namespace: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": {"name": "one", "namespace": namespace},
        "spec": {"topology": TOPOLOGY, **spec},
    }


def labelled(namespace: str, value: str) -> dict[str, Any]:
    made = cluster(namespace)
    made["metadata"]["labels"] = {f"team-of-{namespace}": value}
    return made


@pytest.fixture
async def users(
    client: Client, namespace: str, kubeconfig: Path
) -> AsyncGenerator[dict[str, Client]]:
    config = Config.from_kubeconfig(kubeconfig)
    rules: dict[str, dict[str, list[Any]]] = {
        "tenant": {namespace: [WRITES]},
        "controller": {namespace: [WRITES, STATUS]},
        "head": {namespace: [WRITES], "": [POLICIES]},
    }
    made = {
        name: await client_of(client, config, f"{name}-{namespace}", granted)
        for name, granted in rules.items()
    }
    yield made
    for user in made.values():
        await user.close()


async def is_forbidden(client: Client, manifest: dict[str, Any], message: str) -> bool:
    try:
        await client.create(manifest, dry_run=True)
    except Forbidden as error:
        return message in str(error)
    return False


@pytest.mark.parametrize("field", ["infrastructureRef", "controlPlaneRef"])
async def test_a_user_cannot_set_references_of_a_cluster_with_a_topology(
    client: Client, namespace: str, users: dict[str, Client], field: str
) -> None:
    for manifest in references_policy("capelin-test-references"):
        await client.apply(manifest)
    tenant, message = users["tenant"], "sets infrastructureRef and controlPlaneRef"
    sneaky = cluster(namespace, **{field: REFERENCE})
    # An admission policy becomes effective soon after it is stored.
    await until(lambda: is_forbidden(tenant, sneaky, message))
    await tenant.create(cluster(namespace))
    reference = {"spec": {field: REFERENCE}}
    with pytest.raises(Forbidden, match=message):
        await tenant.patch(CLUSTERS, "one", namespace, reference)
    await users["controller"].patch(CLUSTERS, "one", namespace, reference)
    # With references that core has set, the tenant's other changes are the tenant's.
    await tenant.patch(CLUSTERS, "one", namespace, {"metadata": {"labels": {"a": "b"}}})
    without = cluster(namespace, **{field: REFERENCE})
    del without["spec"]["topology"]
    await tenant.create({**without, "metadata": {"name": "two", "namespace": namespace}})


FINALIZER = "cluster.cluster.x-k8s.io"
DONE = "runtime.cluster.x-k8s.io/ok-to-delete"
PENDING = "runtime.cluster.x-k8s.io/pending-hooks"


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"annotations": {DONE: ""}}},
        {"metadata": {"annotations": {PENDING: "AfterClusterUpgrade,AfterWorkersUpgrade"}}},
        {"metadata": {"annotations": {PENDING: None}}},
        {"metadata": {"finalizers": ["example.com/other"]}},
        {"metadata": {"finalizers": None}},
    ],
)
async def test_a_user_cannot_have_cluster_api_skip_hooks(
    client: Client, namespace: str, users: dict[str, Client], change: dict[str, Any]
) -> None:
    for manifest in references_policy("capelin-test-references"):
        await client.apply(manifest)
    tenant, message = users["tenant"], "whether it calls hooks"
    forged = cluster(namespace)
    forged["metadata"]["annotations"] = {DONE: ""}
    # An admission policy becomes effective soon after it is stored.
    await until(lambda: is_forbidden(tenant, forged, message))
    await tenant.create(cluster(namespace))
    started = {"annotations": {PENDING: "AfterClusterUpgrade"}, "finalizers": [FINALIZER]}
    await users["controller"].patch(CLUSTERS, "one", namespace, {"metadata": started})
    with pytest.raises(Forbidden, match=message):
        await tenant.patch(CLUSTERS, "one", namespace, change)
    own = {"annotations": {"note": "mine"}, "finalizers": [FINALIZER, "example.com/mine"]}
    await tenant.patch(CLUSTERS, "one", namespace, {"metadata": own})
    for user in (users["controller"], client):
        await user.patch(CLUSTERS, "one", namespace, change, dry_run=True)
    await client.patch(CLUSTERS, "one", namespace, {"metadata": {"finalizers": None}})


@pytest.mark.parametrize("who", ["controller", "administrator"])
async def test_clusterctl_move_creates_clusters_with_references(
    client: Client, namespace: str, users: dict[str, Client], who: str
) -> None:
    for manifest in references_policy("capelin-test-references"):
        await client.apply(manifest)
    sneaky = cluster(namespace, infrastructureRef=REFERENCE)
    await until(lambda: is_forbidden(users["tenant"], sneaky, "sets infrastructureRef"))
    mover = {**users, "administrator": client}[who]
    await mover.create(cluster(namespace, infrastructureRef=REFERENCE, controlPlaneRef=REFERENCE))


async def test_a_user_cannot_choose_the_group_of_a_quota(
    client: Client, namespace: str, users: dict[str, Client]
) -> None:
    """The test of other labels than its own: policies of other tests are parameters, too."""
    key = f"team-of-{namespace}"
    limits = [{"resource": "clusters", "limit": 1}]
    await client.apply(
        {
            "apiVersion": ClusterLifecyclePolicy.resource.api_version,
            "kind": "ClusterLifecyclePolicy",
            "metadata": {"name": namespace},
            "spec": {
                "hook": "BeforeClusterCreate",
                "action": {"quota": {"groupBy": "Label", "label": key, "limits": limits}},
            },
        }
    )
    for manifest in quota_labels_policy("capelin-test-quota-labels"):
        await client.apply(manifest)
    tenant, message = users["tenant"], "decides about a quota"
    await until(lambda: is_forbidden(tenant, labelled(namespace, "other"), message))
    await client.patch(Namespace, namespace, None, {"metadata": {"labels": {key: "a"}}})

    async def may_be_created() -> bool:
        try:
            await tenant.create(labelled(namespace, "a"), dry_run=True)
        except Forbidden:
            return False
        return True

    await until(may_be_created)
    assert await is_forbidden(tenant, labelled(namespace, "b"), message)
    assert await is_forbidden(tenant, cluster(namespace), message)
    await tenant.create(labelled(namespace, "a"))
    change = {"metadata": {"labels": {key: "b"}}}
    with pytest.raises(Forbidden, match=message):
        await tenant.patch(CLUSTERS, "one", namespace, change)
    with pytest.raises(Forbidden, match=message):
        await tenant.patch(CLUSTERS, "one", namespace, {"metadata": {"labels": {key: None}}})
    await users["head"].patch(CLUSTERS, "one", namespace, change)
    # Another label, or none of the quota's, is the tenant's own.
    await tenant.patch(CLUSTERS, "one", namespace, {"metadata": {"labels": {"tier": "x"}}})
    await client.delete(ClusterLifecyclePolicy, namespace)
