"""The real core with a lifecycle extension whose clock and permissions the tests change.

The extension is a process of the tests with the service account of an installation.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from capelin.api import Resource, Unstructured
from capelin.api.capi import Cluster, ExtensionConfig
from capelin.api.core import ClusterRole, ConfigMap, Namespace
from capelin.client import ApiError, Client, Config, Impersonation, WorkloadClients
from capelin.testing.waiting import until
from capelin_cli.clusters.topology import upgrade_patch
from capelin_embedded.addresses import free_port
from capelin_embedded.management import (
    CORE,
    Environment,
    apply_manifests,
    required_programs,
    restart_process,
    workload_programs,
)
from capelin_lifecycle.actions.job import JOBS
from capelin_lifecycle.api import GROUP, LifecyclePolicy
from capelin_lifecycle.policies.memory import CONFIG_MAP, stored_text
from capelin_lifecycle.provider import provider

from tests.extensions import CLOCK, HOST, Running, certificates, lifecycle
from tests.support.definitions import definition

from .homes import management_environment
from .lifecycle_stories import AFTER, BEFORE, PATIENCE, Stories, user_name

PROVIDERS = ("kubeadm-bootstrap",)
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.needs_programs(
        *required_programs(AFTER, PROVIDERS),
        *workload_programs(BEFORE),
        *workload_programs(AFTER),
    ),
]

HOOK, UPGRADE = "BeforeClusterCreate", "BeforeClusterUpgrade"
PODS = {"restartPolicy": "Never", "containers": [{"name": "job", "image": "job"}]}
JOB = {"job": {"target": "Management", "template": {"template": {"spec": PODS}}}}
DEFINITION = definition("databases.example.com", "v1", "v1beta1")
INSTALLED = provider()
ROLE = f"{INSTALLED.namespace}-manager"


@dataclass
class Lives:
    """The extension, which restarts at the same port."""

    folder: Path
    kubeconfig: Path
    port: int

    def set_clock(self, moment: datetime) -> None:
        """Set the clock of the extension."""
        new = self.folder / "new-clock"
        new.write_text(moment.isoformat())
        new.replace(self.folder / CLOCK)

    def life(self) -> AbstractAsyncContextManager[Running]:
        return lifecycle(self.folder, self.kubeconfig, "lifecycle", port=self.port)


@pytest.fixture(scope="module")
async def environment(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Environment]:
    """A management cluster whose core may be restarted."""
    folder = tmp_path_factory.mktemp("lifecycle")
    async with management_environment(folder, AFTER, PROVIDERS) as environment:
        yield environment


@pytest.fixture(scope="module")
async def client(environment: Environment) -> AsyncGenerator[Client]:
    """An administrator of the management cluster."""
    async with Client(Config.from_kubeconfig(environment.kubeconfig)) as client:
        yield client


@pytest.fixture(scope="module")
async def lives(
    client: Client, environment: Environment, tmp_path_factory: pytest.TempPathFactory
) -> Lives:
    """The extension, installed and registered."""
    folder = tmp_path_factory.mktemp("extension")
    ca = certificates(folder)
    lives = Lives(folder, folder / "kubeconfig", free_port(HOST))
    config = Config.from_kubeconfig(environment.kubeconfig)
    account = f"system:serviceaccount:{INSTALLED.namespace}:{INSTALLED.label}"
    user = replace(config.user, impersonate=Impersonation(user=account))
    as_account = replace(config, user=user, namespace=INSTALLED.namespace)
    lives.kubeconfig.write_bytes(as_account.flattened())
    for manifest in [*INSTALLED.components(), *INSTALLED.objects]:
        if manifest["kind"] == ExtensionConfig.resource.kind:
            url = f"https://{HOST}:{lives.port}"
            connection = {"url": url, "caBundle": base64.b64encode(ca).decode()}
            manifest["spec"] = {"clientConfig": connection}
        await client.apply(manifest)
    return lives


@pytest.fixture(scope="module")
async def stories(client: Client, lives: Lives) -> Stories:
    """A namespace with a ClusterClass, which is removed with the environment."""
    del lives
    stories = Stories(client, "core")
    await client.apply(Namespace.of(stories.namespace))
    await stories.create_class()
    return stories


def selecting(tier: str) -> Unstructured:
    """The selector of the Clusters of a tier."""
    return {"matchLabels": {"tier": tier}}


async def test_a_cluster_is_admitted_in_its_window_and_another_one_expires(
    stories: Stories, lives: Lives
) -> None:
    now = datetime.now(UTC)

    lives.set_clock(now)
    night = {"window": window_at(now + timedelta(hours=3))}
    late = {"window": window_at(now + timedelta(hours=8)), "expiry": "4h"}
    async with lives.life():
        await stories.apply("night", HOOK, {"approval": night}, clusterSelector=selecting("night"))
        await stories.apply("late", HOOK, {"approval": late}, clusterSelector=selecting("late"))
        await stories.are_called(HOOK)
        await asyncio.gather(
            stories.create("opened", tier="night"), stories.create("missed", tier="late")
        )
        await stories.wait_for_message("opened", "policy night: waits for the maintenance window")
        await stories.wait_for_message("missed", "policy late: waits for the maintenance window")
        assert await stories.admitted() == []
        lives.set_clock(now + timedelta(hours=3, minutes=5))
        await stories.is_admitted("opened")
        lives.set_clock(now + timedelta(hours=5))
        await stories.wait_for_message(
            "missed", "policy late has failed: expired without the maintenance window"
        )
        assert await stories.admitted() == ["opened"]
        await asyncio.gather(stories.delete("opened"), stories.delete("missed"))


def window_at(opening: datetime) -> Unstructured:
    """A window of an hour on every day."""
    return {"schedule": f"{opening.minute} {opening.hour} * * *", "duration": "1h"}


async def test_a_window_and_an_approval_hold_at_the_same_moment(
    stories: Stories, lives: Lives
) -> None:
    now, user = datetime.now(UTC), await user_name(stories.client)
    lives.set_clock(now + timedelta(hours=3, minutes=5))
    window = {"approval": {"window": window_at(now + timedelta(hours=3))}}
    both = selecting("both")
    async with lives.life():
        await stories.apply("platform", HOOK, window, clusterSelector=both)
        await stories.apply(
            "team", HOOK, {"approval": {"approvers": [user]}}, clusterSelector=both, order=1
        )
        await stories.are_called(HOOK)
        await stories.create("both", tier="both")
        await stories.wait_for_message("both", f"policy team: waits for approval by {user}")
        # The window held, and is over when the approver wakes.
        lives.set_clock(now + timedelta(hours=9))
        await stories.approve("team", "both")
        await stories.wait_for_message("both", "policy platform: waits for the maintenance window")
        assert "both" not in await stories.admitted()
        lives.set_clock(now + timedelta(hours=27, minutes=5))
        await stories.is_admitted("both")
        await stories.delete("both")


async def test_a_policy_that_selects_a_cluster_no_longer_does_nothing_for_it(
    stories: Stories, lives: Lives
) -> None:
    client, user = stories.client, await user_name(stories.client)
    lives.set_clock(datetime.now(UTC))
    narrowed = selecting("narrowed")
    async with lives.life():
        await stories.apply(
            "first", HOOK, {"approval": {"approvers": [user]}}, clusterSelector=narrowed
        )
        await stories.apply("wipe", HOOK, JOB, clusterSelector=narrowed, order=1)
        await stories.are_called(HOOK)
        await stories.create("narrowed", tier="narrowed")
        await stories.wait_for_message("narrowed", f"policy first: waits for approval by {user}")
        await until(lambda: stories.phase("wipe", "narrowed"), within=PATIENCE)
        with pytest.raises(ApiError, match="action"):
            await stories.apply("first", HOOK, JOB, clusterSelector=narrowed)
        await stories.apply("wipe", HOOK, JOB, clusterSelector=selecting("another"), order=1)
        await stories.wait_for_phase("wipe", "narrowed", "")
        await stories.approve("first", "narrowed")
        await stories.is_admitted("narrowed")
        assert (await client.list(JOBS, stories.namespace)).items == []
        await stories.delete("narrowed")


async def test_a_job_that_ended_while_no_manager_ran_is_done_after_its_time(
    stories: Stories, lives: Lives
) -> None:
    client, now = stories.client, datetime.now(UTC)
    lives.set_clock(now)

    async def jobs() -> list[tuple[str, str]]:
        found = (await client.list(JOBS, stories.namespace)).items
        return [(job["metadata"]["name"], job["metadata"]["uid"]) for job in found]

    async with lives.life():
        await stories.apply("hour", HOOK, JOB, clusterSelector=selecting("hour"), timeout="1h")
        await stories.are_called(HOOK)
        await stories.create("hour", tier="hour")
        begun: list[tuple[str, str]] = await until(jobs, within=PATIENCE)
    # No controller for Jobs runs here.
    ended = {
        "startTime": now.isoformat(),
        "completionTime": (now + timedelta(minutes=10)).isoformat(),
        "succeeded": 1,
        "conditions": [
            {"type": type_, "status": "True"} for type_ in ("SuccessCriteriaMet", "Complete")
        ],
    }
    ((name, _),) = begun
    await client.patch(JOBS, name, stories.namespace, {"status": ended}, subresource="status")
    lives.set_clock(now + timedelta(hours=2))
    async with lives.life():
        await stories.is_admitted("hour")
        assert await stories.phase("hour", "hour") == "Done"
        assert await jobs() == begun
        await stories.delete("hour")


async def test_objects_outlive_another_version_and_a_renamed_policy(
    stories: Stories, lives: Lives
) -> None:
    client, user = stories.client, await user_name(stories.client)
    lives.set_clock(datetime.now(UTC))
    selector = selecting("renamed")
    databases = Resource("example.com", "v1", "Database", "databases")

    async def orders_in(version: str, size: int) -> Unstructured:
        """The action that applies the object in a version."""
        text = f"apiVersion: example.com/{version}\nkind: Database\nspec: {{size: {size}}}\n"
        text += "metadata: {name: orders, namespace: default}\n"
        name, data = f"orders-{version}", {"orders.yaml": text}
        await client.apply(ConfigMap.of(name, stories.namespace, data=data))
        return {"apply": {"sources": [{"configMap": name}]}}

    former, present = await orders_in("v1beta1", 1), await orders_in("v1", 2)
    clients = WorkloadClients(client)

    async def order() -> Unstructured | None:
        async with clients.client("renamed", stories.namespace) as workload:
            return await workload.find(databases, "orders", "default")

    async with lives.life():
        await stories.apply("old-name", UPGRADE, former, clusterSelector=selector)
        hold = {"approval": {"approvers": [user]}}
        await stories.apply("hold", UPGRADE, hold, clusterSelector=selector, order=1)
        await stories.are_called(UPGRADE)
        await stories.create("renamed", tier="renamed")

        await until(lambda: stories.is_available("renamed"), within=PATIENCE)
        async with clients.client("renamed", stories.namespace) as workload:
            await apply_manifests(workload, [DEFINITION])
        upgrade = upgrade_patch(AFTER)
        await client.patch(Cluster, "renamed", stories.namespace, upgrade, type="json")
        await stories.wait_for_message("renamed", f"policy hold: waits for approval by {user}")
        first = await until(order, within=PATIENCE)
        assert first["spec"] == {"size": 1}

        await stories.apply("old-name", UPGRADE, present, clusterSelector=selector)
        await until(order, lambda it: it and it["spec"] == {"size": 2}, within=PATIENCE)
        assert (await order() or {})["metadata"]["uid"] == first["metadata"]["uid"]

        await stories.apply("new-name", UPGRADE, present, clusterSelector=selector)
        await stories.wait_for_phase("new-name", "renamed", "Done")
        await client.delete(LifecyclePolicy, "old-name", stories.namespace)
        await stories.wait_for_phase("old-name", "renamed", "")
        kept = await order()
        assert kept is not None
        assert kept["metadata"]["uid"] == first["metadata"]["uid"]
        # It belongs to the new policy.
        assert kept["metadata"]["labels"] != first["metadata"]["labels"]
        await client.delete(LifecyclePolicy, "hold", stories.namespace)
        await clients.close()
        await stories.delete("renamed")


async def test_invalid_policies(stories: Stories, lives: Lives, environment: Environment) -> None:
    client = stories.client
    rights = (await client.get(ClusterRole.resource, ROLE))["rules"]
    blind = [rule for rule in rights if rule["apiGroups"] != [GROUP]]
    rules = {"rules": [{"expression": "object.", "message": "m"}]}
    approval = {"approvers": ["kubernetes-admin"]}
    async with lives.life():
        await stories.apply("freeze", HOOK, {"approval": approval}, clusterSelector=selecting("a"))
        await stories.apply("odd", HOOK, {"validate": rules}, clusterSelector=selecting("odd"))
        await stories.are_called(HOOK)
        assert await restart_process(environment.processes, CORE.label)
        await asyncio.gather(stories.create("free"), stories.create("odd", tier="odd"))
        await stories.is_admitted("free")
        await stories.wait_for_message(
            "odd", "policy odd cannot be used: rules[0].expression: Syntax error"
        )

        async def is_stored() -> bool:
            found = await client.find(ConfigMap, CONFIG_MAP, INSTALLED.namespace)
            return "freeze" in stored_text(found)

        await until(is_stored, within=PATIENCE)
    await client.patch(ClusterRole, ROLE, None, {"rules": blind})
    async with lives.life():
        assert await restart_process(environment.processes, CORE.label)
        await asyncio.gather(stories.create("unconcerned"), stories.create("frozen", tier="a"))
        await stories.is_admitted("unconcerned")
        await stories.wait_for_message("frozen", "policy freeze: the policies cannot be read")
    await client.patch(ClusterRole, ROLE, None, {"rules": rights})
    async with lives.life():
        await stories.wait_for_message("frozen", "policy freeze: waits for approval")
        assert await stories.admitted() == ["free", "unconcerned"]
