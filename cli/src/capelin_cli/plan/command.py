"""The command `capelin plan`: reads the change, computes its effect, prints it."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass
from capelin.client import Client, Destinations
from capelin.errors import UserError
from capelin.runtime.client import ClientCertificate
from capelin_embedded.management import CORE, Environment, workload_destinations

from capelin_cli.clusters.topology import ScaleOptions, topology_version
from capelin_cli.environments.connection import find_environment, management_client
from capelin_cli.environments.kubeconfigs import missing_cluster
from capelin_cli.environments.kubernetes_versions import parse_version
from capelin_cli.plan.changes import changed_cluster, read_file
from capelin_cli.plan.guard import approve
from capelin_cli.plan.model import Plan
from capelin_cli.plan.planning import Planner
from capelin_cli.plan.rendering import markdown_lines, text_lines
from capelin_cli.plan.sandbox import running_sandbox
from capelin_cli.plan.watching import stamps_of, until_changed
from capelin_cli.terminal.tables import print_data

PlanFormat = Literal["text", "markdown", "json", "yaml"]


@dataclass(frozen=True, slots=True)
class PlanTarget:
    """The management cluster, and the namespace of objects without one."""

    namespace: str = "default"
    environment: str = ""
    kubeconfig: Path | None = None

    def client(self) -> Client:
        """A client that only this command uses."""
        return management_client(self.environment, self.kubeconfig)

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
        return core_certificate(find_environment(self.environment))


def core_certificate(environment: Environment) -> ClientCertificate | None:
    """The certificate with which core calls the extensions of an environment."""
    folder = environment.credentials / CORE.label
    own = ClientCertificate(folder / "tls.crt", folder / "tls.key")
    return own if own.certificate.exists() else None


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """A change of one Cluster from options."""

    name: str
    version: str | None = None
    scale: ScaleOptions | None = None
    variables: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How a plan is computed and printed."""

    output: PlanFormat = "text"
    within: float = 300.0
    """How long Cluster API may work on the change, in seconds."""
    watch: bool = False
    """Whether to plan again after each change, until the user ends it."""
    guard: bool = False
    """Whether to approve the plan, so that the lifecycle extension holds changes with another."""


async def plan_files(target: PlanTarget, files: Sequence[Path], options: PlanOptions) -> Plan:
    """Print the effect of applying the objects in files."""

    async def read() -> list[Unstructured]:
        texts = (asyncio.to_thread(read_file, file, target.namespace) for file in files)
        return [manifest for manifests in await asyncio.gather(*texts) for manifest in manifests]

    await read()
    async with target.client() as client:
        return await _plan(target, client, read, options, files)


async def plan_cluster(target: PlanTarget, change: ClusterChange, options: PlanOptions) -> Plan:
    """Print the effect of changing one Cluster."""
    async with target.client() as client:

        async def read() -> list[Unstructured]:
            return [await _changed(client, target, change)]

        return await _plan(target, client, read, options)


async def _changed(client: Client, target: PlanTarget, change: ClusterChange) -> Unstructured:
    """The Cluster with the change."""
    live = await client.find(Cluster.resource, change.name, target.namespace)
    if live is None:
        raise await missing_cluster(client, change.name, target.namespace)
    live = {**live, "apiVersion": Cluster.resource.api_version, "kind": "Cluster"}
    topology_version(Cluster.read(live))
    version = parse_version(change.version, ()) if change.version else None
    return changed_cluster(live, version=version, scale=change.scale, variables=change.variables)


async def _plan(
    target: PlanTarget,
    client: Client,
    read: Callable[[], Awaitable[list[Unstructured]]],
    options: PlanOptions,
    files: Sequence[Path] = (),
) -> Plan:
    stamps = stamps_of(files)
    # An error of the user or of the management cluster comes before the start of the sandbox.
    manifests = await read()
    await client.list(ClusterClass.resource)
    async with running_sandbox() as sandbox:
        planner = Planner(client, sandbox, target.certificate, target.destinations, options.within)
        plan = await planner.plan(manifests)
        show(plan, options.output)
        if options.guard:
            for name in await approve(client, plan):
                text = f"the lifecycle extension holds changes of {name} with another effect."
                print(f"Approved: {text}", file=sys.stderr)  # noqa: T201 - the output
        problem = ""
        while options.watch:
            await planner.clear()
            known, resources = planner.known, planner.resources
            await until_changed(client, resources, known, files, stamps, has_failed=bool(problem))
            stamps, last, last_problem = stamps_of(files), plan, problem
            try:
                plan, problem = await planner.plan(await read()), ""
            except UserError as error:
                problem = str(error)
                if problem != last_problem:
                    print(f"{_now()}: {problem}", file=sys.stderr)  # noqa: T201 - the output
            else:
                _show_again(plan, last, options.output)
    return plan


def _show_again(plan: Plan, last: Plan, output: PlanFormat) -> None:
    if plan == last:
        print(f"{_now()}: the same effect", flush=True)  # noqa: T201 - the output
    else:
        print(f"\n{_now()}:", flush=True)  # noqa: T201 - the output
        show(plan, output)


def _now() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")


def show(plan: Plan, output: PlanFormat) -> None:
    """Print a plan."""
    if output == "json" or output == "yaml":  # noqa: PLR1714 - a set does not narrow the type
        print_data(plan.model_dump(mode="json", exclude_none=True), output)
    else:
        lines = text_lines(plan) if output == "text" else markdown_lines(plan)
        print("\n".join(lines), flush=True)  # noqa: T201 - the output of the command
