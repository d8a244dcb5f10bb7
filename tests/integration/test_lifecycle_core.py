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
from capelin.api import Unstructured
from capelin.api.capi import ExtensionConfig
from capelin.api.core import ClusterRole, ConfigMap, Namespace
from capelin.client import Client, Config, Impersonation
from capelin.testing.waiting import until
from capelin_embedded.addresses import free_port
from capelin_embedded.management import (
    CORE,
    Environment,
    required_programs,
    restart_process,
    workload_programs,
)
from capelin_lifecycle.api import GROUP
from capelin_lifecycle.policies.memory import CONFIG_MAP, stored_text
from capelin_lifecycle.provider import provider

from tests.extensions import CLOCK, HOST, Running, certificates, lifecycle

from .homes import management_environment
from .lifecycle_stories import AFTER, BEFORE, PATIENCE, Stories

PROVIDERS = ("kubeadm-bootstrap",)
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.needs_programs(*required_programs(AFTER, PROVIDERS), *workload_programs(BEFORE)),
]

HOOK = "BeforeClusterCreate"
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

    def window(hours: int) -> Unstructured:
        opening = now + timedelta(hours=hours)
        return {"schedule": f"{opening.minute} {opening.hour} * * *", "duration": "1h"}

    lives.set_clock(now)
    night, late = {"window": window(3)}, {"window": window(8), "expiry": "4h"}
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
