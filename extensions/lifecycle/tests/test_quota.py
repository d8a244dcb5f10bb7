"""Quotas: what is counted, and that two Clusters at once do not both pass."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.client import Client
from capelin.testing.fake_client import FakeClient
from capelin_lifecycle.actions.quota import counted, counted_copies, node_count
from capelin_lifecycle.actions.reservations import Reservations
from capelin_lifecycle.api.actions import Quota
from capelin_lifecycle.api.policies import LifecyclePolicy
from capelin_lifecycle.api.results import LifecycleReservation
from capelin_lifecycle.decision import Facts
from capelin_lifecycle.judge import Judge
from capelin_lifecycle.policies.clusters import KnownCluster, WholeCluster, cluster_occurrence
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.store import Store
from capelin_lifecycle.policies.verdict import Verdict
from capelin_lifecycle.reconcilers.policies import expressions_problem

from .factories import World, policy


def topology(control_plane: int, *workers: int | None) -> Unstructured:
    deployments = [
        {"class": "w", "name": f"md-{n}", **({} if count is None else {"replicas": count})}
        for n, count in enumerate(workers)
    ]
    return {
        "classRef": {"name": "small"},
        "version": "v1.34.4",
        "controlPlane": {"replicas": control_plane},
        "workers": {"machineDeployments": deployments},
        "variables": [{"name": "memoryGi", "value": 4}],
    }


def manifest(name: str, *, created: bool = False) -> Unstructured:
    spec: Unstructured = {"topology": topology(1, 2)}
    if created:
        spec["infrastructureRef"] = {"kind": "K", "name": name, "apiGroup": "g"}
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}"}
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": metadata,
        "spec": spec,
    }


class QuotaWorld(World):
    """A quota of one Cluster, or what the fields say, and the replicas that keep it."""

    def __init__(self, **quota: Any) -> None:
        super().__init__()
        limits = {"limits": [{"resource": "clusters", "limit": 1}]}
        made = policy(hook="BeforeClusterCreate", action={"quota": {**limits, **quota}})
        assert isinstance(made, LifecyclePolicy)
        self.policy = self.client.add(made)
        self.reservations = self.replica()

    def add_cluster(self, name: str, **labels: str) -> Cluster:
        made = manifest(name)
        made["metadata"]["labels"] = labels
        return self.client.add(Cluster.read(made))

    def replica(self, client: Client | None = None) -> Reservations:
        """The copies of another replica: none yet."""
        return Reservations(client or self.client, "system")

    @property
    def quota(self) -> Quota:
        quota = self.policy.spec.action.quota
        assert quota is not None
        return quota

    async def phase_of(
        self,
        name: str,
        replica: Reservations | None = None,
        copies: Sequence[Unstructured] | None = None,
        gone: Sequence[Unstructured] = (),
    ) -> tuple[str, str]:
        """The verdict of a replica with these copies. Without any, it lists the other Clusters."""
        found = await self.client.get(Cluster, name, "team")
        store = Store(lambda _: None)
        for copy in (*gone, *(copies or ())):
            store.note(WholeCluster.read(copy))
        for copy in gone:
            store.note(WholeCluster.read(copy), gone=True)
        if copies is not None:
            store.synced.add("Cluster")
        self.client.requests.clear()
        verdict = await self.verdict_of(found, Judge(store, replica or self.reservations))
        assert verdict is not None
        return verdict.phase, verdict.message

    async def verdict_of(self, found: Cluster, judge: Judge) -> Verdict | None:
        return await judge.verdict(
            KnownPolicy.of(self.policy),
            KnownCluster.of(found.dump()),
            cluster_occurrence("BeforeClusterCreate", found.dump()),
            facts=Facts(called=self.clock.now),
            now=self.clock.now,
            client=self.client,
        )

    async def create_topology(self, name: str) -> None:
        ref = {"spec": {"infrastructureRef": {"kind": "K", "name": name, "apiGroup": "g"}}}
        await self.client.patch(Cluster, name, "team", ref)

    async def reserved(self) -> list[str]:
        found = await self.client.get(LifecycleReservation, f"quota-{self.policy.uid}", "team")
        return found.clusters

    @property
    def methods(self) -> list[str]:
        """The methods of the requests of the last reconcile."""
        return [request.method for request in self.client.requests]


async def test_a_cluster_over_the_quota_waits_until_another_is_deleted() -> None:
    world = QuotaWorld()
    world.add_cluster("a")
    world.add_cluster("b")
    assert await world.phase_of("a") == ("Done", "within the quota")
    assert await world.reserved() == ["uid-a"]
    refused = "the quota of namespace team is exhausted: 1 clusters requested, 1 of 1 in use"
    assert await world.phase_of("b") == ("Waiting", refused)
    await world.create_topology("a")
    assert await world.phase_of("b") == ("Waiting", refused)
    await world.client.delete(Cluster, "a", "team")
    assert await world.phase_of("b") == ("Done", "within the quota")
    # A Cluster that has its topology or was deleted needs no reservation.
    assert await world.reserved() == ["uid-b"]


async def test_a_judge_without_reservations_admits_no_cluster() -> None:
    world = QuotaWorld()
    assert await world.verdict_of(world.add_cluster("a"), Judge(Store(lambda _: None))) is None


async def test_the_clusters_of_a_suspended_quota_are_not_counted() -> None:
    world = QuotaWorld()
    world.add_cluster("a")
    world.policy.spec.suspend = True
    assert await world.phase_of("a") == ("Waiting", "the policy is suspended")
    assert world.methods == []


async def test_an_action_without_a_quota_reads_no_reservations() -> None:
    world = QuotaWorld()
    world.policy.spec = policy(action={"job": {"template": {}}}).spec
    found = world.add_cluster("a")
    judge = Judge(Store(lambda _: None), world.reservations)
    world.client.requests.clear()
    assert await world.verdict_of(found, judge) is None
    assert world.methods == []


async def test_a_closed_judge_ends_its_decisions() -> None:
    world = QuotaWorld()
    judge = Judge(Store(lambda _: None), world.reservations)
    async with world.reservations.turn(KnownPolicy.of(world.policy)):
        waiting = asyncio.create_task(world.verdict_of(world.add_cluster("a"), judge))
        # The first turn of the loop starts the decision, which waits in the second one.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await judge.close()
        assert waiting.done()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_an_admitted_cluster_stays_admitted() -> None:
    world = QuotaWorld()
    world.add_cluster("a")
    for _ in range(3):
        assert (await world.phase_of("a"))[0] == "Done"
    assert await world.reserved() == ["uid-a"]
    await world.create_topology("a")
    assert (await world.phase_of("a"))[0] == "Done"


async def test_a_replica_with_copies_does_not_list_clusters() -> None:
    world = QuotaWorld()
    world.add_cluster("a")
    copies = [manifest("a")]
    assert await world.phase_of("a", copies=copies) == ("Done", "within the quota")
    # The API server does not have this Cluster: only the copies do.
    copies = [
        *copies,
        manifest("b", created=True),
    ]
    world.add_cluster("c")
    copies = [*copies, manifest("c")]
    phase, message = await world.phase_of("c", copies=copies)
    assert (phase, message.endswith("2 of 1 in use")) == ("Waiting", True)


async def test_a_replica_lists_clusters_if_a_reservation_is_missing_from_its_copies() -> None:
    world = QuotaWorld()
    world.add_cluster("a")
    assert (await world.phase_of("a"))[0] == "Done"
    world.add_cluster("b")
    phase, message = await world.phase_of("b", copies=[manifest("b")])
    assert (phase, message.endswith("1 of 1 in use")) == ("Waiting", True)


class Interrupted(FakeClient):
    """A client for which something happens once, between reading and writing."""

    def __init__(self, world: QuotaWorld) -> None:
        super().__init__(server=world.client.server)
        self._world, self._times = world, 1

    async def create(self, *arguments: Any, **options: Any) -> Any:
        await self._interrupt()
        return await super().create(*arguments, **options)

    async def request(self, *arguments: Any, **options: Any) -> Any:
        await self._interrupt()
        return await super().request(*arguments, **options)

    async def _interrupt(self) -> None:
        if self._times:
            self._times -= 1
            assert (await self._world.phase_of("b"))[0] == "Done"


@pytest.mark.parametrize("is_first", [True, False])
async def test_of_two_clusters_at_once_only_one_passes(*, is_first: bool) -> None:
    world = QuotaWorld(limits=[{"resource": "clusters", "limit": 1 if is_first else 2}])
    if not is_first:
        world.add_cluster("o")
        assert (await world.phase_of("o"))[0] == "Done"
    world.add_cluster("a")
    world.add_cluster("b")
    phase, _ = await world.phase_of("a", world.replica(Interrupted(world)))
    assert phase == "Waiting"
    assert await world.reserved() == ["uid-b", *([] if is_first else ["uid-o"])]


async def test_a_replica_with_an_old_reservation_reads_it_again() -> None:
    world = QuotaWorld(limits=[{"resource": "clusters", "limit": 2}])
    other = world.replica()
    for name in "abc":
        world.add_cluster(name)
    assert (await world.phase_of("a"))[0] == "Done"
    assert (await world.phase_of("b", other))[0] == "Done"
    assert (await world.phase_of("c"))[0] == "Waiting"
    assert await world.reserved() == ["uid-a", "uid-b"]


async def test_a_replica_with_current_reservations_only_writes() -> None:
    world = QuotaWorld(limits=[{"resource": "clusters", "limit": 3}])
    copies: list[Unstructured] = []
    for name, methods in (("a", ["GET", "POST"]), ("b", ["PUT"]), ("c", ["PUT"])):
        world.add_cluster(name)
        copies.append(manifest(name))
        assert (await world.phase_of(name, copies=copies))[0] == "Done"
        assert world.methods == methods
        # A repeated or rejected call writes nothing.
        assert (await world.phase_of(name, copies=copies))[0] == "Done"
        assert world.methods == []
    world.add_cluster("d")
    copies.append(manifest("d"))
    assert (await world.phase_of("d", copies=copies))[0] == "Waiting"
    assert world.methods == []


async def test_a_deleted_cluster_frees_its_reservation() -> None:
    world = QuotaWorld()
    world.add_cluster("a")
    assert (await world.phase_of("a"))[0] == "Done"
    await world.client.delete(Cluster, "a", "team")
    world.add_cluster("b")
    copies = [manifest("b")]
    assert (await world.phase_of("b", copies=copies, gone=[manifest("a")]))[0] == "Done"
    assert world.methods == ["PUT"]
    assert await world.reserved() == ["uid-b"]


async def test_a_replica_reads_again_after_a_write_without_an_answer() -> None:
    world = QuotaWorld(limits=[{"resource": "clusters", "limit": 2}])
    for name in "ab":
        world.add_cluster(name)

    class Silent(FakeClient):
        async def create(self, *arguments: Any, **options: Any) -> Any:
            await world.client.create(*arguments, **options)
            raise TimeoutError

    replica = world.replica(Silent(server=world.client.server))
    with suppress(TimeoutError):
        await world.phase_of("a", replica)
    assert (await world.phase_of("b", replica))[0] == "Done"
    assert await world.reserved() == ["uid-a", "uid-b"]


@pytest.mark.parametrize(
    ("group_by", "phase"),
    [
        ({"groupBy": "Label", "label": "team"}, "Done"),
        ({"groupBy": "Class"}, "Waiting"),
        ({"groupBy": "All"}, "Waiting"),
    ],
)
async def test_clusters_of_a_group_share_a_quota(group_by: dict[str, str], phase: str) -> None:
    world = QuotaWorld(**group_by)
    world.add_cluster("a", team="red")
    world.add_cluster("b", team="blue")
    assert (await world.phase_of("a"))[0] == "Done"
    assert (await world.phase_of("b"))[0] == phase


async def test_counting_does_not_block_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("capelin_lifecycle.actions.quota._TURN_SECONDS", 0)
    limits = [{"resource": "clusters", "limit": 1}]
    made = policy(hook="BeforeClusterCreate", action={"quota": {"limits": limits}})
    quota = made.spec.action.quota
    assert quota is not None
    clusters = [KnownCluster.of(manifest(f"c-{number}")) for number in range(100)]
    copies = {cluster.occurrence.uid: cluster for cluster in clusters}
    counting = asyncio.create_task(
        counted_copies(copies, clusters[0], KnownPolicy.of(made), quota, {})
    )
    turns = 0
    while not counting.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(await counting or ()) == 100
    assert turns > 50


async def test_nodes_cpu_and_memory_are_counted() -> None:
    world = QuotaWorld(
        limits=[
            {"resource": "clusters", "limit": 1},
            {"resource": "nodes", "limit": 1},
            {
                "resource": "memory",
                "limit": "1Gi",
                "expression": "quantity(string(object.spec.topology.variables"
                ".filter(v, v.name == 'memoryGi')[0].value) + 'Gi')",
            },
            {"resource": "cpu", "limit": 1, "expression": "2 * 3"},
        ]
    )
    found = await counted(KnownPolicy.of(world.policy), world.quota, manifest("a", created=True))
    assert found.amounts == {"clusters": 1, "nodes": 3, "memory": 4 * 2**30, "cpu": 6}


async def test_every_exceeded_limit_is_in_the_message() -> None:
    broken = "object.spec.topology.workers.absent.size()"
    world = QuotaWorld(
        limits=[
            {"resource": "clusters", "limit": 0},
            {"resource": "nodes", "limit": 2},
            {"resource": "memory", "limit": "1Gi", "expression": broken},
        ]
    )
    world.add_cluster("a")
    assert await world.phase_of("a") == (
        "Waiting",
        (
            "the quota of namespace team is exhausted: 1 clusters requested, 0 of 0 in use,"
            " 3 nodes requested, 0 of 2 in use; the expression of memory has no value for team/a:"
            ' Key not found in map : "absent"'
        ),
    )


async def test_a_cluster_of_another_group_may_lack_a_value() -> None:
    memory = "object.metadata.labels.team == 'red' ? object.absent : '1Gi'"
    limits = [{"resource": "memory", "limit": "1Gi", "expression": memory}]
    world = QuotaWorld(groupBy="Label", label="team", limits=limits)
    world.add_cluster("a", team="red")
    await world.create_topology("a")
    world.add_cluster("b", team="blue")
    assert await world.phase_of("b") == ("Done", "within the quota")
    world.add_cluster("c", team="red")
    phase, message = await world.phase_of("c")
    assert phase == "Waiting"
    assert message.startswith("the expression of memory has no value for team/c: ")


async def test_a_cluster_without_the_label_is_rejected_with_the_label_that_it_needs() -> None:
    world = QuotaWorld(groupBy="Label", label="team")
    world.add_cluster("a")
    assert await world.phase_of("a") == (
        "Waiting",
        (
            "the quota counts by the label team, which the Cluster lacks: set the label, or leave"
            " out Clusters without it by the policy's clusterSelector"
        ),
    )


def test_parts_without_replicas_count_as_one() -> None:
    cluster = Cluster.read({**manifest("a"), "spec": {"topology": topology(3, None, 2)}})
    assert node_count(cluster) == 6
    assert node_count(Cluster.read({**manifest("a"), "spec": {}})) == 0


async def test_an_expression_that_cannot_be_compiled_is_a_problem() -> None:
    limit = {"resource": "cpu", "limit": 1, "expression": "object."}
    made = policy(hook="BeforeClusterCreate", action={"quota": {"limits": [limit]}})
    problem = await expressions_problem(KnownPolicy.of(made))
    assert problem is not None
    assert problem.startswith("expression of cpu: Syntax error")
