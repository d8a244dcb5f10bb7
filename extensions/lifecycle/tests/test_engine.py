"""The engine on a real API server, asked as Cluster API asks."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, CoreEvent, CustomResourceDefinition
from capelin.client import ApiError, Client, Config, ConfigError, Server, User, new_kubeconfig
from capelin.contract import find_condition, kubeconfig_secret
from capelin.runtime import Extension, RetryResponse
from capelin.runtime.v1alpha1 import API_VERSION, GeneratePatches, ValidateTopology
from capelin.testing.extensions import fake_request, response_of
from capelin.testing.fake_client import Clock
from capelin.testing.waiting import until
from capelin_embedded.apiserver import ApiServer
from capelin_embedded.testing.administrator import Administrator
from capelin_embedded.testing.run import own_api_server
from capelin_lifecycle.api.actions import REMOVED
from capelin_lifecycle.api.names import GROUP, LIFECYCLE_HOOKS
from capelin_lifecycle.api.policies import LifecyclePolicy
from capelin_lifecycle.api.results import LifecycleResult
from capelin_lifecycle.decision import Facts
from capelin_lifecycle.engine import Engine
from capelin_lifecycle.hooks import build
from capelin_lifecycle.policies.clusters import KnownCluster, cluster_occurrence
from capelin_lifecycle.provider import provider
from capelin_lifecycle.reconcilers.registration import TOPOLOGY_HANDLERS, handler_name

pytestmark = [pytest.mark.integration, pytest.mark.needs_programs("kube-apiserver", "etcd")]

SATURDAY = datetime(2026, 11, 28, 20, 30, tzinfo=UTC)
APPROVAL = "approval.runtime.capelin.cluster.x-k8s.io"


@dataclass
class Life:
    """A namespace with Clusters, and the extension whose hooks it calls."""

    client: Client
    namespace: str
    engine: Engine
    extension: Extension
    clock: Clock

    async def cluster(self, name: str = "demo", *, is_created: bool = True) -> Unstructured:
        topology = {"classRef": {"name": "small"}, "version": "v1.34.4"}
        spec: Unstructured = {"topology": topology}
        if is_created:
            spec["controlPlaneRef"] = {"apiGroup": "g.example", "kind": "K", "name": name}
        return await self.client.create(
            {
                "apiVersion": Cluster.resource.api_version,
                "kind": "Cluster",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": spec,
            },
            resource=Cluster.resource,
        )

    async def policy(self, name: str, hook: str = "BeforeClusterUpgrade", **spec: Any) -> None:
        action = spec.pop("action", {"approval": {"approvers": ["alice"]}})
        await self.client.create(
            {
                "apiVersion": LifecyclePolicy.resource.api_version,
                "kind": "LifecyclePolicy",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"hook": hook, "action": action, **spec},
            },
            resource=LifecyclePolicy.resource,
        )
        await until(
            lambda: self.engine.store.policy("LifecyclePolicy", self.namespace, name) is not None
        )

    async def ask(self, cluster: Unstructured, hook: str, handler: str = "gate") -> RetryResponse:
        step = "".join(f"-{c.lower()}" if c.isupper() else c for c in hook).removeprefix("-")
        request: Unstructured = {
            "apiVersion": API_VERSION,
            "kind": f"{hook}Request",
            "cluster": await self.client.get(
                Cluster.resource, cluster["metadata"]["name"], self.namespace
            ),
        }
        if "Upgrade" in hook:
            request["fromKubernetesVersion"] = "v1.33.13"
            request["toKubernetesVersion"] = "v1.34.4"
        return await response_of(self.extension, f"{step}-{handler}", request)

    async def upgrade(self, cluster: Unstructured, handler: str = "gate") -> RetryResponse:
        return await self.ask(cluster, "BeforeClusterUpgrade", handler)

    async def approve(self, policy: str, cluster: str = "demo", by: str = "alice") -> None:
        async def codes_of() -> list[str]:
            results = await self.results()
            return [result.id[:8] for result in results if result.spec.policy.name == policy]

        codes = await until(codes_of)
        patch = {"metadata": {"annotations": {f"{APPROVAL}/{policy}": f"{codes[-1]}:{by}"}}}
        await self.client.patch(Cluster, cluster, self.namespace, patch)

    async def results(self) -> list[LifecycleResult]:
        return (await self.client.list(LifecycleResult, self.namespace)).items

    async def settled(self, cluster: Unstructured, message: str) -> RetryResponse:
        """The answer when it has this message."""
        return await until(lambda: self.upgrade(cluster), lambda answer: message in answer.message)


@asynccontextmanager
async def running(client: Client, config: Config, namespace: str) -> AsyncGenerator[Life]:
    clock = Clock(SATURDAY)
    engine = Engine(lambda: config, clock=clock)
    async with engine.running():
        yield Life(client, namespace, engine, build(engine), clock)


@pytest.fixture(scope="module")
def server(capelin_test_run: Path) -> Generator[ApiServer]:
    """An API server for this module: an engine works for all policies of its cluster."""
    with own_api_server(capelin_test_run) as server:
        yield server


@pytest.fixture(scope="module")
def administrator(server: ApiServer) -> Generator[Administrator]:
    administrator = Administrator(server)
    administrator.install(provider())
    yield administrator
    administrator.close()


@pytest.fixture
def config(server: ApiServer) -> Config:
    return Config.from_kubeconfig(server.kubeconfig)


@pytest.fixture
async def client(config: Config) -> AsyncGenerator[Client]:
    async with Client(config) as client:
        yield client


@pytest.fixture
def namespace(administrator: Administrator) -> str:
    return administrator.new_namespace()


@pytest.fixture
async def life(client: Client, config: Config, namespace: str) -> AsyncGenerator[Life]:
    async with running(client, config, namespace) as life:
        yield life
        await client.request(
            "DELETE", LifecyclePolicy.resource.path(namespace), content_type="application/json"
        )
        await until(lambda: _is_empty(client, namespace))


async def _is_empty(client: Client, namespace: str) -> bool:
    return not (await client.list(LifecyclePolicy, namespace)).items


def discovered(life: Life) -> set[str]:
    names = {handler.name for handler in life.extension.discovery().handlers}
    return names - set(TOPOLOGY_HANDLERS.values())


async def test_an_upgrade_waits_for_its_approval_and_names_the_approver(life: Life) -> None:
    cluster = await life.cluster()
    assert (await life.upgrade(cluster)).retry_after_seconds == 0
    assert discovered(life) == set()
    await life.policy("freeze")
    assert discovered(life) == {"before-cluster-upgrade-gate"}

    blocked = await life.settled(cluster, "waits for approval by alice. To approve: kubectl")
    assert blocked.retry_after_seconds == 5
    # Repeated calls return the same answer and create one result.
    for _ in range(20):
        assert await life.upgrade(cluster) == blocked
    (result,) = await life.results()
    assert result.spec.to_version == "v1.34.4"
    assert result.metadata.owner_references[0].name == "demo"

    async def events() -> list[str]:
        found = (await life.client.list(CoreEvent, life.namespace)).items
        return [event.message or "" for event in found]

    await until(events, lambda messages: any("policy freeze: waits" in m for m in messages))
    await life.approve("freeze")
    await until(lambda: life.upgrade(cluster), lambda answer: answer.retry_after_seconds == 0)
    assert (await life.upgrade(cluster, "notice")).retry_after_seconds == 0


async def test_a_recreated_cluster_starts_over(life: Life) -> None:
    cluster = await life.cluster()
    await life.policy("freeze")
    await life.settled(cluster, "waits for approval")
    await life.approve("freeze")
    await until(lambda: life.upgrade(cluster), lambda answer: answer.retry_after_seconds == 0)
    await life.client.delete(Cluster, "demo", life.namespace)
    cluster = await life.cluster()
    await life.settled(cluster, "waits for approval")
    # The result of the deleted Cluster is deleted too.
    await until(life.results, lambda results: len(results) == 1)


async def test_a_reverted_upgrade_deletes_its_result(life: Life) -> None:
    cluster = await life.cluster()
    await life.policy("freeze")
    await life.settled(cluster, "waits for approval")
    patch = {"spec": {"topology": {"version": "v1.33.13"}}}
    await life.client.patch(Cluster, "demo", life.namespace, patch)
    await until(life.results, lambda results: not results)


async def test_policies_of_a_greater_order_wait_for_the_others(life: Life) -> None:
    cluster = await life.cluster()
    await life.policy("second", order=2)
    await life.policy("first", order=1, onFailure="Continue")
    blocked = await life.settled(cluster, "waits for policy first")
    assert blocked.message == "policy second: waits for policy first"
    notice = await life.upgrade(cluster, "notice")
    assert "policy first: waits for approval" in notice.message
    assert discovered(life) == {"before-cluster-upgrade-gate", "before-cluster-upgrade-notice"}
    await life.approve("first")
    await life.settled(cluster, "policy second: waits for approval")
    assert (await life.upgrade(cluster, "notice")).retry_after_seconds == 0


async def test_a_deleted_policy_deletes_its_results(life: Life) -> None:
    cluster = await life.cluster()
    await life.policy("freeze")
    await life.settled(cluster, "waits for approval")
    await life.client.delete(LifecyclePolicy, "freeze", life.namespace)
    await until(life.results, lambda results: not results)
    await until(lambda: _is_empty(life.client, life.namespace))
    assert (await life.upgrade(cluster)).retry_after_seconds == 0
    await until(lambda: discovered(life), lambda names: not names)


async def test_a_suspended_policy_blocks_no_upgrade(life: Life) -> None:
    cluster = await life.cluster()
    await life.policy("freeze", suspend=True)
    assert (await life.upgrade(cluster)).retry_after_seconds == 0
    assert discovered(life) == set()


async def test_an_endless_job_fails_at_its_timeout(life: Life) -> None:
    cluster = await life.cluster()
    pods = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    job = {"target": "Management", "template": {"template": {"spec": pods}}}
    await life.policy("tests", action={"job": job}, timeout="10m")
    await life.settled(cluster, "runs")
    life.clock.now += timedelta(minutes=11)
    # A result looks again when its Cluster changes, and not only after a while.
    patch = {"metadata": {"labels": {"changed": "yes"}}}
    await life.client.patch(Cluster, "demo", life.namespace, patch)
    answer = await life.settled(cluster, "policy tests has failed: not done within 10m")
    assert answer.retry_after_seconds == 30


async def test_a_hanging_workload_cluster_does_not_delay_other_policies(life: Life) -> None:
    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hanging.append(writer)

    hanging: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    kubeconfig = new_kubeconfig(Server(url), User(token="t"), cluster="c", username="u")
    hook = "BeforeWorkersUpgrade"
    pods = {"containers": [{"name": "c", "image": "i"}]}
    await life.policy("slow", hook, action={"job": {"template": {"template": {"spec": pods}}}})
    await life.policy("freeze")
    clusters = [await life.cluster(f"slow-{number}") for number in range(40)]
    for cluster in clusters:
        owner = Cluster.read(cluster)
        secret = kubeconfig_secret(kubeconfig, cluster=owner.name, owner=owner)
        await life.client.create(secret)
    await asyncio.gather(*(life.ask(cluster, hook) for cluster in clusters))
    await until(lambda: len(hanging) == 3)
    cluster = await life.cluster()
    # All turns together would hang for ten seconds.
    await until(
        lambda: life.upgrade(cluster), lambda answer: "approval by" in answer.message, within=8
    )
    server.close()
    for writer in hanging:
        writer.close()


async def test_a_stored_policy_with_a_removed_action_names_its_replacement(life: Life) -> None:
    name = f"lifecyclepolicies.{GROUP}"
    backup: Unstructured = {"backup": {"velero": {}}}
    former = await life.client.get(CustomResourceDefinition.resource, name)
    (version,) = former["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["action"]
    rules = schema.pop("x-kubernetes-validations")
    path = CustomResourceDefinition.resource.path(None, name)
    former = await life.client.request("PUT", path, body=former)

    async def is_accepted(policy: str) -> bool:
        try:
            await life.policy(policy, "BeforeClusterDelete", action=backup)
        except ApiError as error:
            if REMOVED["backup"] not in str(error):
                raise
            return False
        return True

    names = (f"stored-{number}" for number in count())
    await until(lambda: is_accepted(next(names)))
    (stored,) = (await life.client.list(LifecyclePolicy, life.namespace)).items
    (version,) = former["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["action"]
    schema["x-kubernetes-validations"] = rules
    await life.client.request("PUT", path, body=former)
    await until(lambda: is_accepted(next(names)), lambda accepted: not accepted)
    change = {"spec": {"timeout": "2h"}}
    changed = await life.client.patch(LifecyclePolicy, stored.name, life.namespace, change)

    async def message() -> str:
        policy = await life.client.get(LifecyclePolicy, stored.name, life.namespace)
        valid = find_condition(policy.status.conditions if policy.status else [], "Valid")
        is_current = valid and valid.observed_generation == changed.metadata.generation
        return valid.message if valid and is_current and valid.status == "False" else ""

    assert await until(message) == REMOVED["backup"]


async def test_the_ready_condition_names_missing_manifests(life: Life) -> None:
    await life.policy("cpi", action={"apply": {"sources": [{"configMap": "cpi"}]}})

    async def condition() -> str:
        policy = await life.client.get(LifecyclePolicy, "cpi", life.namespace)
        found = policy.status.conditions if policy.status else []
        return "".join(f"{c.status} {c.message}" for c in found if c.type == "Ready")

    missing = f"False there is no ConfigMap {life.namespace}/cpi"
    await until(condition, lambda text: text == missing)
    await life.client.apply(ConfigMap.of("cpi", life.namespace, data={"a.yaml": "just text"}))
    wrong = f"False a.yaml of ConfigMap {life.namespace}/cpi contains no valid manifests: each"
    await until(condition, lambda text: text.startswith(wrong))


QUOTA = {"quota": {"limits": [{"resource": "clusters", "limit": 1}]}}


@pytest.mark.representative
async def test_the_hook_itself_admits_one_of_two_clusters_to_a_quota_of_one(life: Life) -> None:
    hook = "BeforeClusterCreate"
    await life.policy("quota", hook, action=QUOTA)
    policy = life.engine.store.policy("LifecyclePolicy", life.namespace, "quota")
    assert policy is not None
    clusters = [await life.cluster(name, is_created=False) for name in ("left", "right")]
    await until(lambda: len(life.engine.store.clusters or ()) >= len(clusters))
    outcomes = await asyncio.gather(
        *(
            life.engine.judge.verdict(
                policy,
                KnownCluster.of(cluster),
                cluster_occurrence(hook, cluster),
                facts=Facts(called=SATURDAY),
                now=SATURDAY,
            )
            for cluster in clusters
        )
    )
    phases = [outcome.phase for outcome in outcomes if outcome is not None]
    assert sorted(phases) == ["Done", "Waiting"]
    admitted = phases.index("Done")

    async def answers() -> list[int]:
        found = [await life.ask(cluster, hook) for cluster in clusters]
        return [answer.retry_after_seconds for answer in found]

    # A replica that has no time leaves it to the reconciler, which comes to the same.
    seconds = await until(answers, lambda found: 0 in found)
    assert seconds[admitted] == 0
    refused = await life.ask(clusters[1 - admitted], hook)
    assert refused.retry_after_seconds == 5


async def test_topology_hooks_find_the_policies_that_classes_name(life: Life) -> None:
    operation = {"op": "Append", "path": "/spec/template/spec/files", "value": {"path": "/a"}}
    template = {"kind": "KubeadmConfigTemplate", "operations": [operation]}
    versions = [{"name": "v1", "variables": [], "templates": [template]}]
    rules = [{"expression": "templates.size() < 1", "message": "too many templates"}]
    await life.policy("patch", "GeneratePatches", action={"patches": {"versions": versions}})
    await life.policy("sizes", "ValidateTopology", action={"validate": {"rules": rules}})

    cluster = await life.cluster()

    async def call(handler: str, policy: str, version: str = "v1") -> Any:
        named = {"policy": f"{life.namespace}/{policy}", "version": version}
        hook = {"generate": GeneratePatches, "validate": ValidateTopology}.get(
            handler.partition("-")[0]
        )
        if hook is None:
            return await response_of(life.extension, handler, settings=named)
        request = fake_request(hook, settings=named)
        for variable in request["variables"]:
            if variable["name"] == "builtin":
                metadata = cluster["metadata"]
                variable["value"]["cluster"] |= {
                    key: metadata[key] for key in ("name", "namespace", "uid")
                }
        return await response_of(life.extension, handler, request)

    patched = await call("generate-patches-v1", "patch")
    assert (patched.status, len(patched.items)) == ("Success", 2)
    assert (await call("discover-variables-v1", "patch")).status == "Success"
    missing = await call("generate-patches-v1", "patch", "v2")
    assert "has no version 'v2' of patches (known: v1)" in missing.message
    wrong = await call("generate-patches-v1", "sizes")
    assert "there is no LifecyclePolicy" in wrong.message
    # Cluster API calls it for each external patch.
    nothing = await call("generate-patches-v1", "sizes", "")
    assert (nothing.status, nothing.items) == ("Success", [])
    refused = await call("validate-topology-v1", "sizes")
    assert (refused.status, refused.message) == ("Failure", "policy sizes: too many templates")


async def test_an_upgrade_plan_comes_from_the_policy_for_the_cluster(life: Life) -> None:
    cluster = await life.cluster()
    plan = {
        "apiVersion": API_VERSION,
        "kind": "GenerateUpgradePlanRequest",
        "cluster": cluster,
        "fromControlPlaneKubernetesVersion": "v1.33.13",
        "toKubernetesVersion": "v1.34.4",
    }
    none = await response_of(life.extension, "generate-upgrade-plan-v1", plan)
    assert "no policy with an upgradePlan is for this Cluster" in none.message
    action = {"upgradePlan": {"versions": ["v1.34.4"]}}
    await life.policy("versions", "GenerateUpgradePlan", action=action)
    made = await response_of(life.extension, "generate-upgrade-plan-v1", plan)
    assert [step.version for step in made.control_plane_upgrades] == ["v1.34.4"]


async def test_unknown_policies_block_every_cluster(client: Client, namespace: str) -> None:
    """Any Cluster may have policies, so discovery returns every gate."""

    def unreadable() -> Config:
        raise ConfigError("no credentials")

    engine = Engine(unreadable, first_seconds=0)
    async with engine.running():
        blind = Life(client, namespace, engine, build(engine), Clock())
        gates = {handler_name(hook, blocks=True) for hook in LIFECYCLE_HOOKS}
        assert discovered(blind) == gates
        cluster = await blind.cluster()
        answer = await blind.upgrade(cluster)
        assert answer.retry_after_seconds == 10
        assert answer.message == ("the policies are unknown: the policies have not been read yet")
        # Core repeats a call of a hook that cannot block only if it fails.
        request = {"apiVersion": API_VERSION, "cluster": cluster}
        request["kind"] = "AfterControlPlaneInitializedRequest"
        gate = "after-control-plane-initialized-gate"
        initialized = await response_of(blind.extension, gate, request)
        assert initialized.status == "Failure"
