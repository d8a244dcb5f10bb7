"""Jobs and manifests: started once, observed from objects, cleaned up."""

from typing import Any

import pytest
from capelin.api import Resource, Unstructured
from capelin.api.core import ConfigMap, Namespace, Secret
from capelin.yaml import read_all_yaml
from capelin_lifecycle.actions import CHECKS, RUNNERS
from capelin_lifecycle.actions.action import Cleanup, Run
from capelin_lifecycle.actions.apply import unreadiness
from capelin_lifecycle.actions.job import EVENTS, JOBS, PODS
from capelin_lifecycle.actions.sources import SourceError, objects_of, read_source
from capelin_lifecycle.api.actions import Source
from capelin_lifecycle.policies.verdict import Verdict
from capelin_lifecycle.reconcilers.policies import expressions_problem
from capelin_lifecycle.sandbox.pool import Owner

from .factories import World, known

POD = {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}
DEPLOYMENTS = Resource("apps", "v1", "Deployment", "deployments")
BACKUPS = Resource("velero.io", "v1", "Backup", "backups")


async def reconcile(run: Run) -> Verdict:
    return await RUNNERS[run.policy.spec.action.name].reconcile(run)


async def clean_up(run: Run) -> None:
    cleanup = Cleanup(run.client, run.workloads, run.result)
    await RUNNERS[run.policy.spec.action.name].cleanup(cleanup)


async def set_status(world: World, kind: Resource, obj: Unstructured, **status: Any) -> None:
    metadata = obj["metadata"]
    await world.workload.patch(
        kind, metadata["name"], metadata["namespace"], {"status": status}, subresource="status"
    )


async def only(world: World, kind: Resource) -> Unstructured:
    (found,) = (await world.workload.list(kind)).items
    return found


# Jobs


@pytest.mark.parametrize(
    ("condition", "phase", "message"),
    [
        ({"type": "Complete", "status": "True"}, "Done", "is complete"),
        (
            {"type": "Failed", "status": "True", "message": "BackoffLimitExceeded"},
            "Failed",
            "failed: BackoffLimitExceeded",
        ),
        ({"type": "Failed", "status": "False"}, "Running", "runs"),
    ],
)
async def test_result_of_a_job(condition: dict[str, str], phase: str, message: str) -> None:
    world = World(JOBS, PODS)
    run = world.run(
        known("tests", hook="AfterClusterUpgrade", action={"job": {"template": POD}}, timeout="5m")
    )
    outcome = await reconcile(run)
    assert (outcome.phase, outcome.retry_seconds) == ("Running", 15)
    job = await only(world, JOBS)
    assert job["spec"]["activeDeadlineSeconds"] == 300
    assert (await reconcile(run)).phase == "Running"
    await set_status(world, JOBS, await only(world, JOBS), conditions=[condition])
    outcome = await reconcile(run)
    assert (outcome.phase, message in outcome.message) == (phase, True)
    await clean_up(world.again(run, outcome))
    assert not (await world.workload.list(JOBS)).items


async def test_a_job_without_pods_has_a_reason() -> None:
    world = World(JOBS, PODS, EVENTS)
    run = world.run(known("tests", hook="AfterClusterUpgrade", action={"job": {"template": POD}}))
    assert (await reconcile(run)).message.endswith(" runs")
    job = await only(world, JOBS)
    uid = job["metadata"]["uid"]
    for number, (about, type_, message) in enumerate(
        [
            (uid, "Warning", "an earlier reason"),
            (uid, "Warning", 'serviceaccount "conformance" not found'),
            (uid, "Normal", "a later event that is not a warning"),
            ("another", "Warning", "a later warning about another Job"),
        ]
    ):
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"e{number}", "namespace": job["metadata"]["namespace"]},
            "involvedObject": {"uid": about},
            "type": type_,
            "message": message,
            "lastTimestamp": f"2026-01-01T00:00:0{number}Z",
        }
        await world.workload.create(event, resource=EVENTS)
    outcome = await reconcile(run)
    assert outcome.phase == "Running"
    assert outcome.message.endswith(' has no pods: serviceaccount "conformance" not found')
    await set_status(world, JOBS, job, active=1)
    assert (await reconcile(run)).message.endswith(" runs")


async def test_a_job_in_the_management_cluster_runs_in_the_namespace_of_its_cluster() -> None:
    world = World()
    world.client.install(JOBS)
    job = {"template": POD, "target": "Management", "namespace": "ignored"}
    run = world.run(known(hook="BeforeClusterCreate", action={"job": job}))
    outcome = await reconcile(run)
    (made,) = (await world.client.list(JOBS)).items
    assert made["metadata"]["namespace"] == "team"
    await clean_up(world.again(run, outcome))
    assert not (await world.client.list(JOBS)).items


async def test_a_job_does_not_delete_itself() -> None:
    world = World(JOBS, PODS)
    template = {**POD, "ttlSecondsAfterFinished": 1}
    run = world.run(known(hook="AfterClusterUpgrade", action={"job": {"template": template}}))
    await reconcile(run)
    assert "ttlSecondsAfterFinished" not in (await only(world, JOBS))["spec"]


async def test_a_new_attempt_ends_the_job_of_the_last_one() -> None:
    world = World(JOBS, PODS)
    run = world.run(known(hook="AfterClusterUpgrade", action={"job": {"template": POD}}))
    again = world.again(run, await reconcile(run))
    first = await only(world, JOBS)
    assert again.result.record is not None
    again.result.record.attempt = 2
    outcome = await reconcile(again)
    second = await only(world, JOBS)
    assert second["metadata"]["name"] != first["metadata"]["name"]
    # Both are deleted with the result, if the first has ended meanwhile.
    assert len(outcome.created or ()) == 2


async def test_cleanup_of_a_deleted_cluster_ends_jobs_of_the_management_cluster() -> None:
    world = World()
    world.client.install(JOBS)
    job = {"template": POD, "target": "Management"}
    run = world.run(known(hook="BeforeClusterDelete", action={"job": job}))
    again = world.again(run, await reconcile(run))
    cleanup = Cleanup(run.client, run.workloads, again.result, has_workload=False)
    await RUNNERS["job"].cleanup(cleanup)
    assert not (await world.client.list(JOBS)).items


def test_a_job_without_containers_is_a_problem() -> None:
    templates: list[dict[str, Any]] = [{}, {"template": {"spec": {}}}, {"template": "x"}]
    for template in templates:
        policy = known(hook="AfterClusterUpgrade", action={"job": {"template": template}})
        assert CHECKS["job"](policy)
    assert not CHECKS["job"](known(hook="AfterClusterUpgrade", action={"job": {"template": POD}}))


# Manifests

CPI = """
apiVersion: v1
kind: ConfigMap
metadata: {name: cpi, namespace: kube-system}
data: {version: "1"}
---
apiVersion: v1
kind: List
items:
  - apiVersion: v1
    kind: Namespace
    metadata: {name: cpi}
"""


def sources(*names: str, **source: Any) -> dict[str, Any]:
    return {"apply": {"sources": [{"configMap": name, **source} for name in names]}}


async def applied(world: World, run: Run) -> Verdict:
    """The outcome when what is to be applied has been noted first."""
    noted = await reconcile(run)
    assert (noted.phase, noted.message) == ("Running", "manifests are being applied")
    return await reconcile(world.again(run, noted))


async def test_manifests_are_applied_and_pruned() -> None:
    world = World()
    world.client.add(ConfigMap.of("one", "team", data={"cpi.yaml": CPI}))
    run = world.run(known("cpi", action=sources("one")))
    outcome = await applied(world, run)
    assert (outcome.phase, outcome.message) == ("Done", "2 objects are applied and ready")
    assert {entry.kind for entry in outcome.created or ()} == {"ConfigMap", "Namespace"}
    made = await world.workload.get(ConfigMap, "cpi", "kube-system")
    assert made.metadata.labels["runtime.capelin.cluster.x-k8s.io/policy"] == run.policy.key.label

    # The source no longer has the namespace.
    await world.client.patch(
        ConfigMap, "one", "team", {"data": {"cpi.yaml": CPI.partition("---")[0]}}
    )
    again = world.again(run, outcome)
    world.client.add(again.result)
    outcome = await reconcile(again)
    assert outcome.phase == "Done"
    assert await world.workload.find(Namespace, "cpi") is None
    assert await world.workload.find(ConfigMap, "cpi", "kube-system") is not None

    await clean_up(world.again(run, outcome))
    assert await world.workload.find(ConfigMap, "cpi", "kube-system") is None


async def test_another_version_of_a_manifest_is_the_same_object() -> None:
    old, new = (Resource("db.example", version, "Db", "dbs") for version in ("v1beta1", "v1"))
    world = World(old, new)

    def manifests(version: str) -> dict[str, str]:
        text = f"apiVersion: db.example/{version}\nkind: Db\nmetadata: {{name: a, namespace: b}}\n"
        return {"m.yaml": text}

    world.client.add(ConfigMap.of("one", "team", data=manifests("v1beta1")))
    run = world.run(known(action=sources("one")))
    outcome = await applied(world, run)
    assert outcome.phase == "Done"
    await world.client.patch(ConfigMap, "one", "team", {"data": manifests("v1")})
    world.workload.requests.clear()
    again = world.again(run, outcome)
    world.client.add(again.result)
    assert (await applied(world, again)).phase == "Done"
    assert [request.method for request in world.workload.requests if request.method != "GET"] == [
        "PATCH"
    ]


async def test_objects_that_another_policy_manages_stay() -> None:
    world = World()
    world.client.add(ConfigMap.of("one", "team", data={"cpi.yaml": CPI}))
    old = world.run(known("cpi", action=sources("one")))
    outcome = await applied(world, old)
    new = world.run(known("cpi-v2", action=sources("one")))
    assert (await applied(world, new)).phase == "Done"
    await clean_up(world.again(old, outcome))
    assert await world.workload.find(ConfigMap, "cpi", "kube-system") is not None
    # Neither does pruning, after the manifest has moved to the other policy.
    other = CPI.partition("---")[0].replace("name: cpi", "name: other")
    await world.client.patch(ConfigMap, "one", "team", {"data": {"cpi.yaml": other}})
    again = world.again(old, outcome)
    world.client.add(again.result)
    assert (await applied(world, again)).message == "1 objects are applied and ready"
    assert await world.workload.find(ConfigMap, "cpi", "kube-system") is not None


async def test_sources_are_chosen_by_version() -> None:
    world = World()
    for name in ("old", "new"):
        text = CPI.partition("---")[0].replace("name: cpi", f"name: {name}")
        world.client.add(ConfigMap.of(name, "team", data={"m.yaml": text}))
    old = sources("old", versions="<1.34")["apply"]["sources"]
    new = sources("new", versions=">=1.34")["apply"]["sources"]
    run = world.run(known(action={"apply": {"sources": [*old, *new]}}))
    await applied(world, run)
    assert await world.workload.find(ConfigMap, "new", "kube-system") is not None
    assert await world.workload.find(ConfigMap, "old", "kube-system") is None


async def test_an_apply_action_runs_until_its_objects_are_ready() -> None:
    world = World(DEPLOYMENTS)
    metadata = "metadata: {name: d, namespace: a}\nspec: {replicas: 2}\n"
    text = f"apiVersion: apps/v1\nkind: Deployment\n{metadata}"
    world.client.add(Secret.of("one", "team", data={"m.yaml": text.encode()}))
    action = {"apply": {"sources": [{"secret": "one"}]}}
    run = world.run(known(action=action))
    outcome = await applied(world, run)
    assert outcome.phase == "Running"
    assert outcome.message == "Deployment d has not been rolled out"
    status = {"observedGeneration": 1, "readyReplicas": 2, "updatedReplicas": 2}
    await set_status(world, DEPLOYMENTS, await only(world, DEPLOYMENTS), **status)
    assert (await reconcile(world.again(run, outcome))).phase == "Done"


BACKUP = """
apiVersion: velero.io/v1
kind: Backup
metadata: {generateName: demo-, namespace: velero}
spec: {includedNamespaces: ["*"]}
"""
FAILURE = "object.status.phase == 'Failed' ? object.status.?failureReason.orValue('Failed') : ''"


def a_backup(world: World) -> Run:
    world.client.add(ConfigMap.of("one", "team", data={"backup.yaml": BACKUP}))
    source = {"until": "object.status.phase == 'Completed'", "failure": FAILURE}
    return world.run(known("backup", hook="BeforeClusterDelete", action=sources("one", **source)))


async def test_a_generated_object_is_created_once_awaited_and_kept() -> None:
    world = World(BACKUPS)
    run = a_backup(world)
    outcome = await applied(world, run)
    backup = await only(world, BACKUPS)
    name = backup["metadata"]["name"]
    assert name.startswith("demo-")
    assert backup["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"] == "demo"
    message = f"Backup {name} waits until object.status.phase == 'Completed'"
    missing = ' (Key not found in map : "status")'
    assert (outcome.phase, outcome.message) == ("Running", message + missing)
    await set_status(world, BACKUPS, backup, phase="InProgress")
    again = world.again(run, outcome)
    outcome = await reconcile(again)
    assert outcome.message == message
    await set_status(world, BACKUPS, backup, phase="Completed")
    outcome = await reconcile(again)
    assert (outcome.phase, outcome.message) == (
        "Done",
        f"1 objects are applied and ready: Backup {name}",
    )
    # Neither pruning nor the cleanup of the policy deletes it.
    await world.client.patch(ConfigMap, "one", "team", {"data": {"backup.yaml": ""}})
    world.client.add(world.again(run, outcome).result)
    assert (await applied(world, run)).phase == "Done"
    await clean_up(world.again(run, outcome))
    assert (await only(world, BACKUPS))["metadata"]["name"] == name


async def test_expressions_of_sources_are_compiled() -> None:
    wrong = known(action=sources("one", until="1 + 1", failure="object."))
    problem = await expressions_problem(wrong)
    assert problem is not None
    assert problem.startswith("sources[0].until: it gives INT instead of true or false;")
    assert "sources[0].failure: " in problem


async def test_a_failure_of_an_object_ends_the_attempt_and_the_next_one_creates_another() -> None:
    world = World(BACKUPS)
    run = a_backup(world)
    again = world.again(run, await applied(world, run))
    status = {"phase": "Failed", "failureReason": "no space"}
    await set_status(world, BACKUPS, await only(world, BACKUPS), **status)
    outcome = await reconcile(again)
    name = (await only(world, BACKUPS))["metadata"]["name"]
    assert (outcome.phase, outcome.message) == ("Failed", f"Backup {name} has failed: no space")
    assert again.result.record is not None
    again.result.record.attempt = 2
    assert (await applied(world, again)).phase == "Running"
    assert len((await world.workload.list(BACKUPS)).items) == 2


async def test_manifests_that_do_not_apply_are_named() -> None:
    world = World()
    text = "apiVersion: example.com/v1\nkind: Unheard\nmetadata: {name: x}\n"
    world.client.add(ConfigMap.of("one", "team", data={"m.yaml": text}))
    outcome = await applied(world, world.run(known(action=sources("one"))))
    assert (outcome.phase, outcome.message) == (
        "Running",
        "Unheard x has a kind that is not installed",
    )


_NO_YAML = (
    "it is not YAML, or has anchors, aliases, tags, duplicate keys or values that JSON"
    " does not have"
)
_NO_OBJECT = "each needs apiVersion, kind, and a name or generateName in metadata"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", _NO_YAML),
        ("a: &a 1\nb: *a\n", _NO_YAML),
        ("a: 1\na: 2\n", _NO_YAML),
        ("a: !!python/none 1\n", _NO_YAML),
        ("[" * 5000, _NO_YAML),
        ("just text", _NO_OBJECT),
        ("kind: Pod", _NO_OBJECT),
        ("apiVersion: v1\nkind: Pod\n", _NO_OBJECT),
    ],
)
async def test_a_source_without_manifests_is_named_without_its_text(text: str, reason: str) -> None:
    world = World()
    run = world.run(known(action=sources("one")))
    assert (await reconcile(run)).message == "there is no ConfigMap team/one"
    world.client.add(ConfigMap.of("one", "team", data={"m.yaml": text}))
    outcome = await reconcile(run)
    assert outcome.phase == "Waiting"
    assert outcome.message == f"m.yaml of ConfigMap team/one contains no valid manifests: {reason}"


def test_objects_of_lists_are_flattened() -> None:
    assert [each["kind"] for each in objects_of(list(read_all_yaml(CPI)))] == [
        "ConfigMap",
        "Namespace",
    ]


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        ("DaemonSet", {"desiredNumberScheduled": 3}, "is ready on 0 of 3 nodes"),
        (
            "CustomResourceDefinition",
            {"conditions": [{"type": "Established", "status": "False"}]},
            "is not established",
        ),
        ("Job", {}, "is not complete"),
        ("ConfigMap", {}, None),
    ],
)
def test_readiness_of_each_kind(kind: str, status: dict[str, Any], reason: str | None) -> None:
    assert unreadiness({"kind": kind, "metadata": {}, "status": status}) == reason


async def test_a_secret_that_is_not_text_holds_no_manifests() -> None:
    world = World()
    world.client.add(Secret.of("binary", "team", data={"m.p12": b"\xff\xfe"}))
    source = Source(secret="binary")
    with pytest.raises(SourceError) as refused:
        await read_source(world.client, Owner("policy", 1, "team"), "team", source)
    assert (
        str(refused.value)
        == "m.p12 of Secret team/binary contains no valid manifests: it is not text"
    )
