"""Every manifest of the guide is accepted by a real API server, and does what its page promises.

Each policy is evaluated as it comes back from the API server, for Clusters of Capelin's own
ClusterClass with MachinePools, with MachineDeployments, with both, and with neither.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from capelin.api import Resource, Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Secret
from capelin.client import Client
from capelin.runtime import Failure
from capelin.runtime.fixtures import ClusterFixture, cluster_from, request_for
from capelin.runtime.messages import read
from capelin.runtime.v1alpha1 import (
    GeneratePatches,
    GenerateUpgradePlan,
    ValidateTopology,
)
from capelin.yaml import read_all_yaml
from capelin_control_plane.provider import provider as control_plane_provider
from capelin_lifecycle.actions import RUNNERS
from capelin_lifecycle.actions.action import Run
from capelin_lifecycle.actions.approval import approval_annotation
from capelin_lifecycle.actions.approved_plan import (
    PLAN_ANNOTATION,
    check_approved,
    topology_digests,
)
from capelin_lifecycle.actions.job import JOBS, PODS
from capelin_lifecycle.actions.quota import CountedCluster, counted, refusal
from capelin_lifecycle.actions.topology import check_topology, generated_patches, upgrade_plan
from capelin_lifecycle.api.actions import Quota
from capelin_lifecycle.api.names import GROUP
from capelin_lifecycle.api.policies import ClusterLifecyclePolicy, LifecyclePolicy
from capelin_lifecycle.decision import Facts
from capelin_lifecycle.judge import Judge
from capelin_lifecycle.policies.clusters import KnownCluster, Occurrence, cluster_occurrence
from capelin_lifecycle.policies.selection import KnownPolicy, matches
from capelin_lifecycle.policies.store import Store
from capelin_lifecycle.policies.verdict import Verdict
from capelin_lifecycle.reconcilers.policies import expressions_problem, policy_problem
from capelin_machine_pool.provider import provider as machine_pool_provider

from .factories import World, occurrence

ROOT = Path(__file__).parents[3]
BACKUPS = Resource("velero.io", "v1", "Backup", "backups")
PAGES = [
    *sorted((ROOT / "docs" / "lifecycle").glob("*.md")),
    Path(__file__).parents[1] / "README.md",
]
_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_KINDS = {"LifecyclePolicy": LifecyclePolicy, "ClusterLifecyclePolicy": ClusterLifecyclePolicy}
MONDAY = datetime(2026, 11, 23, 12, tzinfo=UTC)
SATURDAY_NIGHT = datetime(2026, 11, 28, 22, 30, tzinfo=UTC)
HOLIDAYS = datetime(2026, 12, 24, tzinfo=UTC)


def manifests(page: Path) -> list[Unstructured]:
    """All manifests of a page. A block that holds none is a mistake."""
    found: list[Unstructured] = []
    for block in _BLOCK.findall(page.read_text()):
        for manifest in read_all_yaml(block):
            assert isinstance(manifest, dict), block
            assert {"apiVersion", "kind", "metadata"} <= manifest.keys(), block
            found.append(cast("Unstructured", manifest))
    return found


# The world of the guide: a namespace with Capelin's own ClusterClass, and Clusters


def topology(cluster_class: str, **workers: Any) -> Unstructured:
    return {
        "topology": {
            "classRef": {"name": cluster_class},
            "version": "v1.36.3",
            "controlPlane": {"replicas": 1},
            **({"workers": workers} if workers else {}),
        }
    }


def workers(prefix: str, *replicas: int | None) -> list[Unstructured]:
    return [
        {
            "class": "default-worker",
            "name": f"{prefix}-{number}",
            **({} if count is None else {"replicas": count}),
        }
        for number, count in enumerate(replicas)
    ]


SHAPES: dict[str, tuple[Unstructured, int]] = {
    "pools": (topology("capelin", machinePools=workers("mp", 3)), 3),
    "deployments": (topology("capelin", machineDeployments=workers("md", 2, None)), 3),
    "both": (
        topology(
            "capelin",
            machineDeployments=workers("md", 2),
            machinePools=workers("mp", 4),
        ),
        6,
    ),
    "none": (topology("capelin"), 0),
}
"""Clusters of the guide's readers, and how many workers each has."""


class Policies(dict[str, KnownPolicy]):
    """The policies of a page by name, and which of them a test has used."""

    def __init__(self) -> None:
        super().__init__()
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> KnownPolicy:
        self.used.add(name)
        return super().__getitem__(name)


@dataclass
class Guide:
    """Everything that the pages' commands and manifests have created."""

    client: Client
    namespace: str
    policies: Policies

    async def cluster(self, shape: str, **labels: str) -> Unstructured:
        """A Cluster as the API server has it."""
        metadata: dict[str, Any] = {
            "name": f"{shape}-{len(labels)}",
            "namespace": self.namespace,
            "labels": labels,
        }
        made: Unstructured = await self.client.apply(
            {
                "apiVersion": Cluster.resource.api_version,
                "kind": "Cluster",
                "metadata": metadata,
                "spec": SHAPES[shape][0],
            }
        )
        made["metadata"].pop("managedFields", None)
        return made

    async def scene(self, name: str) -> ClusterFixture:
        return await cluster_from(self.client, name, self.namespace)

    def selects(self, name: str, cluster: Unstructured, **namespace_labels: str) -> bool:
        policy = self.policies[name]
        about = cluster_occurrence(policy.spec.hook, cluster)
        return matches(policy, about, namespace_labels)

    def run(self, name: str, world: World, **fields: Any) -> Run:
        """The action of a policy for the Cluster `team/demo` in memory."""
        policy = replace(self.policies[name], namespace="team")
        return replace(world.run(policy), **fields)


@pytest.fixture(scope="session")
def guide_crds(install_crds: Callable[..., None]) -> None:
    install_crds(
        control_plane_provider(),
        machine_pool_provider(),
        "clusterclasses.cluster.x-k8s.io",
        "kubeadmconfigtemplates.bootstrap.cluster.x-k8s.io",
    )


@asynccontextmanager
async def guide_of(client: Client, namespace: str, page: Path) -> AsyncGenerator[Guide]:
    """The world of a page, with all of its manifests applied."""
    created: list[Unstructured] = []
    policies = Policies()
    own_class = (ROOT / "clusterctl" / "clusterclass-capelin.yaml").read_text()
    for manifest in [*read_all_yaml(own_class), *manifests(page)]:
        metadata: dict[str, Any] = {**manifest["metadata"], "namespace": namespace}
        if manifest["kind"] == "ClusterLifecyclePolicy":
            del metadata["namespace"]
        applied: Unstructured = await client.apply({**manifest, "metadata": metadata})
        created.append(applied)
        if str(applied["apiVersion"]).startswith(GROUP):
            policy = _KINDS[str(applied["kind"])].read(applied)
            assert policy_problem(policy) is None
            policies[policy.name] = known = KnownPolicy.of(policy)
            assert await expressions_problem(known) is None
    try:
        yield Guide(client, namespace, policies)
    finally:
        for manifest in created:
            if manifest["kind"] == "ClusterLifecyclePolicy":
                await client.delete(ClusterLifecyclePolicy, manifest["metadata"]["name"])


async def verdict(
    policy: KnownPolicy, cluster: Unstructured, facts: Facts, now: datetime
) -> Verdict:
    """How far a policy is before an upgrade of a Cluster to v1.36.3."""
    known = KnownCluster.of(cluster)
    hook: Occurrence = replace(
        known.occurrence,
        hook=policy.spec.hook,
        from_version="v1.35.4",
        to_version="v1.36.3",
    )
    judge = Judge(Store(policy_problem))
    decided = await judge.verdict(policy, known, hook, facts=facts, now=now)
    assert decided is not None
    return decided


# Promises of the pages


async def approvals(guide: Guide) -> None:
    production = await guide.cluster("pools", tier="production")
    assert guide.selects("production-upgrades", production)
    assert not guide.selects("production-upgrades", await guide.cluster("pools"))

    async def outcome(approver: str | None, now: datetime, days: int = 0) -> Verdict:
        world = World()
        run = guide.run("production-upgrades", world)
        value = f"{run.result.id[:8]}:{approver}"
        cluster = run.cluster.model_copy(deep=True)
        cluster.metadata.annotations = (
            {approval_annotation("production-upgrades"): value} if approver else {}
        )
        facts = Facts(called=now - timedelta(days=days), result_id=run.result.id)
        return await verdict(run.policy, cluster.dump(), facts, now)

    assert (await outcome("alice@example.com", SATURDAY_NIGHT)).phase == "Done"
    assert "approval by alice@example.com or bob@" in (await outcome(None, SATURDAY_NIGHT)).message
    assert "mallory may not approve" in (await outcome("mallory", SATURDAY_NIGHT)).message
    early = await outcome("bob@example.com", MONDAY)
    assert early.message == "waits for the maintenance window (0 22 * * SAT, Europe/Berlin)"
    assert (await outcome(None, MONDAY, days=10)).phase == "Failed"
    assert guide.selects("protect-production", production, environment="production")
    assert not guide.selects("protect-production", production, environment="test")


async def add_ons(guide: Guide) -> None:
    for from_version, to_version, release in (
        ("v1.32.4", "v1.33.13", "1.33"),
        ("v1.33.13", "v1.34.4", "1.34"),
    ):
        world = await world_with(guide, "cpi-")
        run = guide.run("cpi", world)
        run.result.spec.from_version, run.result.spec.to_version = from_version, to_version
        outcome = await RUNNERS["apply"].reconcile(run)
        outcome = await RUNNERS["apply"].reconcile(world.again(run, outcome))
        assert (outcome.phase, outcome.message) == ("Done", "2 objects are applied and ready")
        applied = await world.workload.get(ConfigMap, "cpi", "kube-system")
        assert applied.data == {"release": release}
    # An administrator has to allow the others. `test_real_artifacts.py` uses a real registry.
    world = World()
    login = {".dockerconfigjson": b'{"auths": {}}'}
    world.client.add(Secret.of("ghcr", "team", data=login))
    for name in ("storage", "metrics"):
        outcome = await RUNNERS["apply"].reconcile(guide.run(name, world))
        assert "--registries of the extension does not allow ghcr.io" in outcome.message


async def jobs(guide: Guide) -> None:
    world = World(JOBS, PODS)
    run = guide.run("conformance", world)
    outcome = await RUNNERS["job"].reconcile(run)
    assert outcome.phase == "Running"
    (job,) = (await world.workload.list(JOBS)).items
    assert job["metadata"]["namespace"] == "kube-system"
    assert job["spec"]["activeDeadlineSeconds"] == 3 * 60 * 60
    assert job["spec"]["backoffLimit"] == 0
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "conformance"
    # A real API server takes the Job with all of its fields.
    metadata = {**job["metadata"], "namespace": guide.namespace}
    fresh = {k: v for k, v in metadata.items() if k in {"name", "namespace", "labels"}}
    await guide.client.create({**job, "metadata": fresh}, dry_run=True)


async def world_with(guide: Guide, prefix: str, *kinds: Resource) -> World:
    """A world with the sources of a page whose names begin like this."""
    world = World(*kinds)
    for kind in (ConfigMap, Secret):
        for source in (await guide.client.list(kind, guide.namespace)).items:
            if source.name.startswith(prefix):
                source.metadata.namespace = "team"
                source.metadata.resource_version = ""
                world.client.add(source)
    return world


async def backups(guide: Guide) -> None:
    group = "snapshot.storage.k8s.io"
    snapshots = Resource(group, "v1", "VolumeSnapshot", "volumesnapshots")
    for name, kind, unfinished, finished in (
        ("backup", BACKUPS, {"phase": "InProgress"}, {"phase": "Completed"}),
        ("snapshots", snapshots, {"error": {"message": "full"}}, {"readyToUse": True}),
    ):
        world = await world_with(guide, name, kind)
        run = guide.run(name, world)
        again = world.again(run, await RUNNERS["apply"].reconcile(run))
        for status, phase in ((unfinished, "Running"), (finished, "Done")):
            await RUNNERS["apply"].reconcile(again)
            (made,) = (await world.workload.list(kind)).items
            await world.workload.apply_status({**made, "status": status})
            assert (await RUNNERS["apply"].reconcile(again)).phase == phase
    world = await world_with(guide, "backup", BACKUPS)
    run = guide.run("backup", world)
    again = world.again(run, await RUNNERS["apply"].reconcile(run))
    await RUNNERS["apply"].reconcile(again)
    (made,) = (await world.workload.list(BACKUPS)).items
    await world.workload.apply_status({**made, "status": {"phase": "PartiallyFailed"}})
    outcome = await RUNNERS["apply"].reconcile(again)
    assert (outcome.phase, outcome.message.partition(" has ")[2]) == (
        "Failed",
        "failed: PartiallyFailed",
    )
    missing = await RUNNERS["apply"].reconcile(
        replace(again, workloads=(await world_with(guide, "backup")).run(run.policy).workloads)
    )
    page = " ".join((ROOT / "docs" / "lifecycle" / "backups.md").read_text().split())
    assert f"`has {missing.message.partition(' has ')[2]}`" in page


async def quotas(guide: Guide) -> None:
    policy = guide.policies["team-quota"]
    quota = policy.spec.action.quota
    assert isinstance(quota, Quota)

    async def count(cluster: Unstructured) -> CountedCluster:
        return await counted(policy, quota, cluster)

    gib = 2**30
    for shape, (_, number) in SHAPES.items():
        found = await count(await guide.cluster(shape, team="a"))
        assert found.amounts == {
            "clusters": 1,
            "nodes": number + 1,
            "memory": 8 * gib * number,
        }, shape
        assert refusal(quota, found, [], set()) is None
    without = refusal(quota, await count(await guide.cluster("pools")), [], set())
    assert without is not None
    assert without.startswith("the quota counts by the label team, which the Cluster lacks")
    (own,) = (
        manifest
        for manifest in manifests(ROOT / "docs" / "lifecycle" / "quotas.md")
        if manifest["kind"] == "Cluster"
    )
    shop = await guide.client.get(Cluster.resource, own["metadata"]["name"], guide.namespace)
    candidate = await count(shop)
    assert candidate.group == "team=a"
    others = [
        replace(candidate, uid=f"{number}", is_created=True, amounts=amounts)
        for number, amounts in enumerate([{**candidate.amounts, "memory": Decimal(64 * gib)}] * 5)
    ]
    refused = refusal(quota, candidate, [candidate, *others], set())
    assert refused == (
        "the quota of team=a is exhausted: 1 clusters requested, 5 of 5 in use,"
        f" {24 * gib} memory requested, {320 * gib} of 256Gi in use"
    )


async def rules(guide: Guide) -> None:
    for shape in SHAPES:
        owned, other = await guide.cluster(shape, owner="alice"), await guide.cluster(shape)
        policy = guide.policies["rules"]
        outcomes = {
            "Done": (owned, MONDAY),
            "the label owner is missing": (other, MONDAY),
            "nothing is upgraded over the holidays": (owned, HOLIDAYS),
        }
        for expected, (cluster, now) in outcomes.items():
            outcome = await verdict(policy, cluster, Facts(called=now), now)
            assert (outcome.message or outcome.phase) == expected
    sizes, planned = guide.policies["sizes"], guide.policies["planned"].spec.action.approved_plan
    assert planned is not None
    for shape, message in (
        ("pools", "a MachinePool has at most 20 machines"),
        ("deployments", "a MachineDeployment has at most 20 machines"),
    ):
        cluster = await guide.cluster(shape)
        name = cluster["metadata"]["name"]
        request = await topology_request(guide, name)
        await check_topology(sizes, request)
        approved = {PLAN_ANNOTATION: ",".join(topology_digests(request))}
        check_approved(planned, "planned", request, approved)
        for entries in cluster["spec"]["topology"]["workers"].values():
            entries[0]["replicas"] = 21
        await guide.client.apply(
            {key: cluster[key] for key in ("apiVersion", "kind", "spec")}
            | {"metadata": {"name": name, "namespace": guide.namespace}}
        )
        request = await topology_request(guide, name)
        with pytest.raises(Failure, match=message):
            await check_topology(sizes, request)
        with pytest.raises(Failure, match="the approved plan does not contain"):
            check_approved(planned, "planned", request, approved)
    versions = guide.policies["versions"].spec.action.upgrade_plan
    assert versions is not None
    plan = read(
        GenerateUpgradePlan.request_type(),
        {
            **request_for(GenerateUpgradePlan, await guide.scene(name), None),
            "fromControlPlaneKubernetesVersion": "v1.34.4",
            "fromWorkersKubernetesVersion": "v1.34.4",
            "toKubernetesVersion": "v1.36.3",
        },
    )
    steps = upgrade_plan(versions, plan, MONDAY).control_plane_upgrades
    assert [step.version for step in steps] == ["v1.35.4", "v1.36.3"]
    with pytest.raises(Failure, match="holidays"):
        upgrade_plan(versions, plan, HOLIDAYS)


async def topology_request(guide: Guide, name: str) -> Any:
    scene = await guide.scene(name)
    return read(ValidateTopology.request_type(), request_for(ValidateTopology, scene, None))


async def patches(guide: Guide) -> None:
    policy = guide.policies["proxy"]
    (version,) = policy.spec.action.patches.versions if policy.spec.action.patches else []

    async def changed(name: str) -> dict[str, Any]:
        scene = await guide.scene(name)
        request = read(GeneratePatches.request_type(), request_for(GeneratePatches, scene, None))
        response = await generated_patches(policy, version, request)
        items = {item.uid: item for item in request.items}
        return {
            f"{items[item.uid].object['kind']} of {items[item.uid].holder_reference.kind}": (
                orjson.loads(item.patch)
            )
            for item in response.items
        }

    path = "/spec/template/spec/preKubeadmCommands"
    added = [{"op": "add", "path": path, "value": ["export HTTPS_PROXY=http://proxy:3128"]}]
    for cluster_class, kinds, expected in (
        ("behind-a-proxy", {"machinePools": workers("mp", 1)}, ["MachinePool"]),
        (
            "capelin",
            {"machineDeployments": workers("md", 1), "machinePools": workers("mp", 1)},
            ["MachineDeployment", "MachinePool"],
        ),
    ):
        for variables in ([], [{"name": "proxy", "value": "http://proxy:3128"}]):
            spec = topology(cluster_class, **kinds)
            if variables:
                spec["topology"]["variables"] = variables
            name = f"{cluster_class}-{len(variables)}"
            await guide.client.apply(
                {
                    "apiVersion": Cluster.resource.api_version,
                    "kind": "Cluster",
                    "metadata": {"name": name, "namespace": guide.namespace},
                    "spec": spec,
                }
            )
            patches = {f"KubeadmConfigTemplate of {kind}": added for kind in expected}
            assert await changed(name) == (patches if variables else {})


async def first_policy(guide: Guide) -> None:
    cluster = await guide.cluster("pools", tier="production")
    policy = guide.policies["production-upgrades"]
    about = replace(
        occurrence("BeforeClusterUpgrade", namespace=guide.namespace),
        labels=cluster["metadata"]["labels"],
        to_version="v1.36.3",
    )
    assert matches(policy, about, {})
    assert not matches(policy, replace(about, to_version="v1.35.4"), {})


PROMISES: Mapping[str, Callable[[Guide], Awaitable[None]]] = {
    "lifecycle/add-ons.md": add_ons,
    "lifecycle/approvals.md": approvals,
    "lifecycle/backups.md": backups,
    "lifecycle/jobs.md": jobs,
    "lifecycle/patches.md": patches,
    "lifecycle/quotas.md": quotas,
    "lifecycle/rules.md": rules,
    "lifecycle/README.md": first_policy,
}


@pytest.mark.usefixtures("provider_crds", "guide_crds")
@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.name) for page in PAGES if manifests(page)]
)
async def test_a_page_keeps_its_promises(client: Client, namespace: str, page: Path) -> None:
    async with guide_of(client, namespace, page) as guide:
        await PROMISES[f"lifecycle/{page.name}"](guide)
        assert guide.policies.used == {*guide.policies}


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if manifests(page) and page.parents[1].name == "docs"],
    ids=lambda page: page.name,
)
def test_a_page_creates_its_namespace_before_it_uses_it(page: Path) -> None:
    text = page.read_text()
    first = text.index("```sh")
    assert first < text.index("```yaml")
    assert text[first:].startswith("```sh\nkubectl create namespace team-a\n")


def test_each_action_has_a_page() -> None:
    actions = {
        action
        for page in PAGES
        for action in re.findall(r"^    (\w+):$", page.read_text(), re.MULTILINE)
    }
    assert {"approval", "quota", "apply", "job", "patches", "validate"} <= actions
    assert "upgradePlan" in actions
