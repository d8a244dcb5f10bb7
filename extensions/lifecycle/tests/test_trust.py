"""Calls of hooks by clients other than Cluster API, and by other versions of Cluster API."""

from types import SimpleNamespace
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.client import Client, ClientError, Unreachable
from capelin.runtime import Failure
from capelin.runtime.fixtures import sample_cluster
from capelin.runtime.v1alpha1 import GeneratePatches, ValidateTopology
from capelin.testing.extensions import fake_request, response_of
from capelin.testing.fake_client import FakeClient
from capelin_lifecycle.api.names import HookName
from capelin_lifecycle.api.policies import Policy
from capelin_lifecycle.decision import Answer
from capelin_lifecycle.hooks import answer_for, build
from capelin_lifecycle.policies.clusters import (
    KnownCluster,
    WholeCluster,
    contradiction,
    occurrence_of,
)

from .factories import policy
from .test_answers import HAS_TEAM, HOOK, Replica, manifest, request


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give decisions enough time on a busy machine."""
    monkeypatch.setattr("capelin_lifecycle.hooks._SECONDS_AT_ONCE", 30.0)


def changed(manifest: Unstructured, **parts: Any) -> Unstructured:
    metadata = {**manifest["metadata"], **parts.pop("metadata", {})}
    return {"metadata": metadata, "spec": {**manifest["spec"], **parts}}


async def answer(replica: Replica, hook: HookName, cluster: Unstructured, **fields: Any) -> Answer:
    return await answer_for(replica.engine, hook, request(cluster, **fields), blocks=True)


class Connected(Replica):
    """A replica with a connection to an API server, and no copies of Clusters yet."""

    def __init__(self, *policies: Policy) -> None:
        super().__init__(*policies)
        self.client = FakeClient()
        self.engine.connect(self.client, "system")

    def add(self, manifest: Unstructured) -> WholeCluster:
        return self.client.add(WholeCluster.read(manifest))


async def test_labels_and_annotations_of_a_request_decide_nothing() -> None:
    key = "approval.runtime.capelin.cluster.x-k8s.io/p"
    replica = Replica(policy(), policy("rules", action=HAS_TEAM))
    replica.add_cluster(manifest())
    forged = changed(manifest(team="red"), metadata={"annotations": {key: "0123abcd:alice"}})
    answered = await answer(replica, HOOK, forged)
    assert answered.message == "policy p: waits for approval by alice; policy rules: a team"
    assert replica.queued == {"p": None, "rules": None}


async def test_a_policy_is_selected_by_the_live_labels() -> None:
    selector = {"matchLabels": {"tier": "prod"}}
    replica = Replica(policy(action=HAS_TEAM, clusterSelector=selector))
    replica.add_cluster(manifest(tier="prod"))
    assert (await answer(replica, HOOK, manifest())).message == "policy p: a team"


@pytest.mark.parametrize(
    "identity",
    [{"uid": "made-up"}, {"name": "other"}, {"namespace": "other"}, {"name": ""}, {"name": ".."}],
)
async def test_an_unknown_cluster_is_rejected(identity: dict[str, str]) -> None:
    replica = Connected(policy(action=HAS_TEAM), policy("all", namespace=None, action=HAS_TEAM))
    replica.add(manifest())
    forged = changed(manifest(team="red"), metadata=identity)
    with pytest.raises(Failure, match="there is no Cluster"):
        await answer(replica, HOOK, forged)
    assert replica.queued == {}
    assert replica.client.writes == []


async def test_one_request_to_the_api_server_reads_missing_clusters() -> None:
    replica = Connected(policy(action=HAS_TEAM))
    live = replica.add(manifest(team="red"))
    requested = changed(live.dump())
    assert await answer(replica, HOOK, requested) == Answer()
    assert [sent.path for sent in replica.client.requests] == [
        "/apis/cluster.x-k8s.io/v1beta2/namespaces/team/clusters/demo"
    ]


async def test_a_copy_that_is_older_than_the_request_is_not_enough() -> None:
    """The label came together with the version: Cluster API calls the hook before the watch."""
    selector = {"matchLabels": {"tier": "prod"}}
    replica = Connected(policy(action=HAS_TEAM, clusterSelector=selector))
    live = replica.add(manifest(tier="prod"))
    stale: Unstructured = {**live.dump()["metadata"], "labels": {}, "resourceVersion": "0"}
    replica.add_cluster(changed(live.dump(), metadata=stale))
    assert (await answer(replica, HOOK, live.dump())).message == "policy p: a team"
    # A copy that is as new is enough.
    replica.add_cluster(live.dump())
    replica.client.requests.clear()
    assert (await answer(replica, HOOK, live.dump())).message == "policy p: a team"
    assert replica.client.requests == []


async def test_a_cluster_that_cannot_be_read_waits() -> None:
    class Silent(Client):
        async def find(self, *_: Any, **__: Any) -> Any:
            raise Unreachable("no answer")

    replica = Connected(policy(action=HAS_TEAM))
    replica.engine.connect(Silent(replica.client.config), "system")
    answered = await answer(replica, HOOK, manifest())
    assert answered.message == "Cluster team/demo cannot be read: no answer"
    assert answered.retry_seconds == 10
    lenient = await answer_for(replica.engine, HOOK, request(), blocks=False)
    assert lenient == Answer()


POD = {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}


async def test_nothing_starts_for_a_paused_cluster() -> None:
    replica = Replica(policy(), policy("work", action={"job": {"template": POD}}))
    for pause in (
        {"paused": True},
        {"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}},
    ):
        replica.add_cluster(changed(manifest(), **pause))
        answered = await answer(replica, HOOK, manifest())
        assert answered.message == "Cluster team/demo is paused"
        assert answered.retry_seconds > 0
    assert replica.queued == {}


async def test_work_for_a_deletion_does_not_start_while_the_cluster_lives() -> None:
    replica = Replica(policy(hook="BeforeClusterDelete", action={"job": {"template": POD}}))
    replica.add_cluster(manifest())
    with pytest.raises(Failure, match="not for Cluster team/demo now: it is not being deleted"):
        await answer(replica, "BeforeClusterDelete", manifest())
    assert replica.queued == {}


@pytest.mark.parametrize(
    ("hook", "versions", "problem"),
    [
        ("BeforeClusterUpgrade", ("v1.33.13", "v1.34.4"), None),
        ("BeforeClusterUpgrade", ("v1.33.13", "v1.35.0"), "has version v1.34.4, not v1.35.0"),
        ("BeforeClusterUpgrade", ("v1.32.0", "v1.33.13"), "has version v1.34.4, not v1.33.13"),
        ("BeforeClusterUpgrade", ("v1.34.5", "v1.34.4"), "no upgrade leads from v1.34.5"),
        ("BeforeClusterUpgrade", ("nonsense", "v1.34.4"), "no upgrade leads from nonsense"),
        ("BeforeControlPlaneUpgrade", ("v1.32.0", "v1.33.13"), None),
        ("BeforeControlPlaneUpgrade", ("v1.34.4", "v1.35.0"), "not v1.35.0"),
        ("BeforeWorkersUpgrade", ("v1.34.4", "v1.35.0"), "not v1.35.0"),
        ("AfterControlPlaneUpgrade", (None, "v1.33.13"), None),
        ("AfterControlPlaneUpgrade", (None, "v1.35.0"), "not v1.35.0"),
        ("AfterWorkersUpgrade", (None, "nonsense"), "not nonsense"),
        ("AfterClusterUpgrade", (None, "v1.34.4"), None),
        ("AfterClusterUpgrade", (None, "v1.33.13"), "not v1.33.13"),
        ("AfterControlPlaneInitialized", (None, None), None),
        ("BeforeClusterCreate", (None, None), None),
        ("BeforeClusterDelete", (None, None), "it is not being deleted"),
    ],
)
def test_versions_have_to_fit_the_live_topology(
    hook: HookName, versions: tuple[str | None, str | None], problem: str | None
) -> None:
    start, end = versions
    asked = SimpleNamespace(
        cluster_json=manifest(), from_kubernetes_version=start, to_kubernetes_version=end
    )
    found = contradiction(occurrence_of(hook, asked), KnownCluster.of(manifest()))
    assert (found is None) if problem is None else (problem in (found or ""))


def test_an_upgrade_is_of_a_cluster_that_exists() -> None:
    new = changed(manifest())
    del new["spec"]["controlPlaneRef"]
    occurrence = occurrence_of("BeforeClusterUpgrade", request())
    assert contradiction(occurrence, KnownCluster.of(new)) == "it has not been created"


async def test_a_late_call_before_creation_starts_nothing() -> None:
    hook = "BeforeClusterCreate"
    replica = Replica(policy(hook=hook, action={"job": {"template": POD, "target": "Management"}}))
    replica.add_cluster(manifest())
    late = {"from_kubernetes_version": None, "to_kubernetes_version": None}
    assert await answer(replica, hook, manifest(), **late) == Answer()
    assert replica.queued == {}


async def test_work_needs_a_connection() -> None:
    replica = Replica(policy(action={"job": {"template": POD}}))
    replica.add_cluster(manifest())
    with pytest.raises(ClientError, match="not connected"):
        await answer(replica, HOOK, manifest())


# Patches


REMOVE = {"op": "Remove", "path": "/spec/template/spec/files"}
TEMPLATE = {"kind": "KubeadmConfigTemplate", "operations": [REMOVE]}
PATCHES = {"patches": {"versions": [{"name": "v1", "templates": [TEMPLATE]}]}}
RULES = {"validate": {"rules": [{"expression": "true", "message": "m"}]}}


def topology(**spec: Any) -> Unstructured:
    """The sample Cluster of requests, in its namespace."""
    sample = sample_cluster().cluster
    metadata = {**sample["metadata"], "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {**sample["spec"], **spec}}


NAMESPACE = topology()["metadata"]["namespace"]


@pytest.mark.parametrize(
    ("handler", "hook", "action"),
    [
        ("generate-patches-v1", "GeneratePatches", PATCHES),
        ("validate-topology-v1", "ValidateTopology", RULES),
    ],
)
async def test_a_policy_of_a_namespace_is_for_its_own_clusters_and_classes(
    handler: str, hook: HookName, action: Unstructured
) -> None:
    replica = Connected(
        *(
            policy("proxy", namespace=namespace, hook=hook, action=action)
            for namespace in (NAMESPACE, "team-a", None)
        )
    )
    extension = build(replica.engine)

    async def asked(reference: str) -> Any:
        settings = {"policy": reference, "version": "v1"}
        asked = GeneratePatches if hook == "GeneratePatches" else ValidateTopology
        return await response_of(
            extension, handler, fake_request(asked, sample_cluster(), settings)
        )

    # The Cluster is not known, and a caller may name any.
    refused = await asked(f"{NAMESPACE}/proxy")
    assert refused.status == "Failure"
    assert "there is no Cluster" in refused.message

    replica.add_cluster(topology())
    assert (await asked(f"{NAMESPACE}/proxy")).status == "Success"
    assert (await asked("proxy")).status == "Success"
    refused = await asked("team-a/proxy")
    assert refused.status == "Failure"
    assert "is for Clusters and ClusterClasses of its own namespace" in refused.message
    # The same text, whether there is such a policy or not.
    missing = await asked("team-a/missing")
    assert missing.message == refused.message.replace("team-a/proxy", "team-a/missing")

    # A ClusterClass of another namespace is not the policy's either.
    class_ref = {"name": "small", "namespace": "team-a"}
    elsewhere = topology()["spec"]["topology"] | {"classRef": class_ref}
    replica.add_cluster(topology(topology=elsewhere))
    for reference in (f"{NAMESPACE}/proxy", "team-a/proxy"):
        assert "of its own namespace" in (await asked(reference)).message


async def test_variables_of_unknown_patches_reveal_nothing() -> None:
    replica = Replica(policy("proxy", namespace="team-a", hook="GeneratePatches", action=PATCHES))
    extension = build(replica.engine)

    async def message(reference: str) -> str:
        settings = {"policy": reference, "version": "v2"}
        found = await response_of(extension, "discover-variables-v1", settings=settings)
        assert found.status == "Failure"
        return found.message.replace(reference, "X")

    assert await message("team-a/proxy") == await message("team-a/missing")
