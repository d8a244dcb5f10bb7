"""Clusters of a ClusterClass and the policies that block them, in one namespace."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass, ExtensionConfig
from capelin.api.core import Namespace
from capelin.client import ApiError, Client
from capelin.contract import is_condition_true
from capelin.testing.waiting import until
from capelin_cli.clusters.demo import demo_manifests
from capelin_cli.clusters.topology import DEMO_CLASS, ClusterOptions, new_cluster
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_lifecycle.api import LifecyclePolicy, LifecycleResult
from capelin_lifecycle.reconcilers.registration import handler_name

BEFORE, AFTER = TESTED_KUBERNETES[0], TESTED_KUBERNETES[-1]
APPROVALS = "approval.runtime.capelin.cluster.x-k8s.io/"
PATIENCE = 300.0
"""Seconds for each step, since Cluster API retries with growing delays."""


@dataclass
class Stories:
    """The namespace, with steps and checks of the tests."""

    client: Client
    namespace: str
    extension_config: str = "lifecycle"

    async def create(self, name: str, **labels: str) -> None:
        cluster_class = await self.client.get(ClusterClass, DEMO_CLASS, self.namespace)
        options = ClusterOptions(DEMO_CLASS, BEFORE, 1, 1)
        manifest = new_cluster(name, self.namespace, BEFORE, options, cluster_class)
        manifest["metadata"]["labels"] = labels
        await self.create_from(manifest)

    async def create_from(self, manifest: Unstructured) -> None:
        """Create a Cluster when core has reconciled its ClusterClass."""

        async def is_created() -> bool:
            try:
                await self.client.create(manifest, resource=Cluster.resource)
            except ApiError:
                # Core must reconcile the ClusterClass first.
                return False
            return True

        await until(is_created, within=PATIENCE)

    async def cluster(self, name: str) -> Cluster:
        return await self.client.get(Cluster, name, self.namespace)

    async def is_gone(self, name: str) -> bool:
        return await self.client.find(Cluster, name, self.namespace) is None

    async def delete(self, name: str) -> None:
        await self.client.delete(Cluster, name, self.namespace)
        await until(lambda: self.is_gone(name), within=PATIENCE)

    async def admitted(self) -> list[str]:
        clusters = (await self.client.list(Cluster, self.namespace)).items
        return sorted(cluster.name for cluster in clusters if cluster.spec.infrastructure_ref)

    async def is_admitted(self, name: str) -> None:
        """Wait until the topology of a Cluster is created."""
        await until(self.admitted, lambda clusters: name in clusters, within=PATIENCE)

    async def messages(self, name: str) -> str:
        conditions = (await self.cluster(name)).status.conditions
        return " ".join(condition.message for condition in conditions)

    async def wait_for_message(self, name: str, text: str) -> None:
        """Wait until a condition of a Cluster contains the text."""
        await until(lambda: self.messages(name), lambda messages: text in messages, within=PATIENCE)

    async def apply(self, name: str, hook: str, action: dict[str, Any], **spec: Any) -> None:
        await self.client.apply(
            {
                "apiVersion": LifecyclePolicy.resource.api_version,
                "kind": LifecyclePolicy.resource.kind,
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"hook": hook, "action": action, **spec},
            }
        )

    async def are_called(self, *hooks: str, blocks: bool = True) -> None:
        """Wait until Cluster API calls the gates of these hooks, or else their notices."""
        names = {f"{handler_name(hook, blocks=blocks)}.{self.extension_config}" for hook in hooks}

        async def are_discovered() -> bool:
            config = await self.client.get(ExtensionConfig, self.extension_config)
            return names <= {handler.name for handler in config.status.handlers}

        await until(are_discovered, within=PATIENCE)

    async def phase(self, policy: str, cluster: str) -> str:
        """The phase of the result of a policy for a Cluster. Empty without a result."""
        for result in (await self.client.list(LifecycleResult, self.namespace)).items:
            if (result.spec.policy.name, result.spec.cluster.name) == (policy, cluster):
                return result.status.phase if result.status else ""
        return ""

    async def wait_for_phase(self, policy: str, cluster: str, phase: str) -> None:
        """Wait until the result has a phase, or is gone if the phase is empty."""
        await until(
            lambda: self.phase(policy, cluster), lambda found: found == phase, within=PATIENCE
        )

    async def approve(self, policy: str, cluster: str) -> None:
        """Approve the result of a policy for a Cluster as the client's user."""
        value = f"{await self.approval_code(policy, cluster)}:{await user_name(self.client)}"
        metadata = {"annotations": {f"{APPROVALS}{policy}": value}}
        await self.client.patch(Cluster, cluster, self.namespace, {"metadata": metadata})

    async def is_available(self, name: str) -> bool:
        return is_condition_true((await self.cluster(name)).status.conditions, "Available")

    async def approval_code(self, policy: str, cluster: str) -> str:
        """The code that approves the result of a policy for a Cluster, from its message."""

        async def message() -> str:
            for result in (await self.client.list(LifecycleResult, self.namespace)).items:
                if (result.spec.policy.name, result.spec.cluster.name) == (policy, cluster):
                    return result.status.message if result.status else ""
            return ""

        text = await until(message, lambda text: "kubectl annotate" in text, within=PATIENCE)
        return text.rpartition("=")[2].strip("'").partition(":")[0]

    async def create_class(self, *patches: Unstructured, variables: Iterable[str] = ()) -> None:
        """Create the demo's ClusterClass with more patches and their variables."""
        for manifest in demo_manifests():
            manifest["metadata"]["namespace"] = self.namespace
            if manifest["kind"] == "ClusterClass":
                manifest["spec"]["patches"].extend(patches)
            await self.client.apply(manifest)

        async def is_described() -> bool:
            found = await self.client.get(ClusterClass, DEMO_CLASS, self.namespace)
            return {*variables} <= {variable.name for variable in found.status.variables}

        await until(is_described, within=PATIENCE)


async def user_name(client: Client) -> str:
    """The name of a client's user for the API server."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    answer = await client.request("POST", path, body=review)
    return str(answer["status"]["userInfo"]["username"])


@asynccontextmanager
async def stories_in(client: Client, namespace: str) -> AsyncGenerator[Stories]:
    """A namespace for stories, which is removed afterwards."""
    stories = Stories(client, namespace)
    await client.apply(Namespace.of(namespace))
    try:
        yield stories
    finally:
        # Policies that block a deletion are removed first.
        policies = (await client.list(LifecyclePolicy, namespace)).items
        await asyncio.gather(
            *(client.delete(LifecyclePolicy, policy.name, namespace) for policy in policies)
        )
        clusters = (await client.list(Cluster, namespace)).items
        await asyncio.gather(*(stories.delete(cluster.name) for cluster in clusters))
        await client.delete(Namespace, namespace)
