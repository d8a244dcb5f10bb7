"""The command `capelin plan`: reads the change, computes its effect, prints it."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass
from capelin.client import Client, Config, Destinations
from capelin.embedded.management import CORE, workload_destinations
from capelin.errors import InvalidInputError
from capelin.runtime.client import ClientCertificate

from capelin_infra.clusters.topology import ScaleOptions, topology_version
from capelin_infra.environments.connection import client_of, find_environment
from capelin_infra.environments.kubeconfigs import missing_cluster
from capelin_infra.environments.kubernetes_versions import parse_version
from capelin_infra.plan.changes import changed_cluster, read_file
from capelin_infra.plan.model import Plan
from capelin_infra.plan.planning import Planner
from capelin_infra.plan.rendering import markdown_lines, text_lines
from capelin_infra.plan.sandbox import running_sandbox
from capelin_infra.terminal.tables import print_data

PlanFormat = Literal["text", "markdown", "json", "yaml"]


@dataclass(frozen=True, slots=True)
class PlanTarget:
    """The management cluster, and the namespace of objects without one."""

    namespace: str = "default"
    environment: str = ""
    kubeconfig: Path | None = None

    def client(self) -> AbstractAsyncContextManager[Client]:
        """A client that only this command uses."""
        if self.kubeconfig is not None:
            return Client(Config.from_kubeconfig(self.kubeconfig), manager="capelin-cli")
        return client_of(find_environment(self.environment))

    @property
    def destinations(self) -> Destinations:
        """The addresses of workload clusters. Those of an environment are on this machine."""
        if self.kubeconfig is not None:
            return Destinations.from_environ()
        return workload_destinations(os.environ)

    @property
    def certificate(self) -> ClientCertificate | None:
        """The certificate of an environment's core, the only client of its extensions."""
        if self.kubeconfig is not None:
            return None
        folder = find_environment(self.environment).credentials / CORE.label
        own = ClientCertificate(folder / "tls.crt", folder / "tls.key")
        return own if own.certificate.exists() else None


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """A change of one Cluster from options."""

    name: str
    version: str | None = None
    scale: ScaleOptions | None = None
    variables: dict[str, Any] | None = None


async def plan_files(
    target: PlanTarget, files: Sequence[Path], output: PlanFormat, within: float
) -> Plan:
    """Print the effect of applying the objects in files."""
    texts = await asyncio.gather(
        *(asyncio.to_thread(read_file, file, target.namespace) for file in files)
    )
    manifests = [manifest for manifests in texts for manifest in manifests]
    async with target.client() as client:
        return await _plan(target, client, manifests, output, within)


async def plan_cluster(
    target: PlanTarget, change: ClusterChange, output: PlanFormat, within: float
) -> Plan:
    """Print the effect of changing one Cluster."""
    async with target.client() as client:
        live = await client.find(Cluster.resource, change.name, target.namespace)
        if live is None:
            raise await missing_cluster(client, change.name, target.namespace)
        live = {**live, "apiVersion": Cluster.resource.api_version, "kind": "Cluster"}
        topology_version(Cluster.read(live))
        version = parse_version(change.version, ()) if change.version else None
        manifest = changed_cluster(
            live, version=version, scale=change.scale, variables=change.variables
        )
        return await _plan(target, client, [manifest], output, within)


async def _plan(
    target: PlanTarget,
    client: Client,
    manifests: Sequence[Unstructured],
    output: PlanFormat,
    within: float,
) -> Plan:
    if not manifests:
        raise InvalidInputError(
            "The change is empty.", reason="No file has an object.", hint="Name one with -f."
        )
    # An error of the management cluster comes before the start of the sandbox.
    await client.list(ClusterClass.resource)
    async with running_sandbox() as sandbox:
        planner = Planner(client, sandbox, target.certificate, target.destinations, within)
        plan = await planner.plan(manifests)
    show(plan, output)
    return plan


def show(plan: Plan, output: PlanFormat) -> None:
    """Print a plan."""
    if output == "json" or output == "yaml":  # noqa: PLR1714 - a set does not narrow the type
        print_data(plan.model_dump(mode="json", exclude_none=True), output)
    else:
        lines = text_lines(plan) if output == "text" else markdown_lines(plan)
        print("\n".join(lines))  # noqa: T201 - the output of the command
