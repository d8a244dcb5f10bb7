"""The verbs of workload clusters: sent to Cluster API, and followed until they are done."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import yaml
from capelin.api.capi import Cluster, ClusterClass
from capelin.api.core import Namespace
from capelin.client import AlreadyExists, Client
from capelin.embedded.management import Environment, UpRequest
from capelin.errors import InvalidInputError
from rich.console import Console

from capelin_infra.connection import client_of, find_environment
from capelin_infra.demo import apply_cluster_class, demo_class, find_class
from capelin_infra.invocation import as_invoked
from capelin_infra.kubeconfigs import find_cluster
from capelin_infra.progress import Checklist
from capelin_infra.readiness import deletion_progress
from capelin_infra.topology import (
    DEMO_CLASS,
    ClusterOptions,
    Operation,
    ScaleOptions,
    check_cluster_name,
    known_versions,
    new_cluster,
    patch_text,
    scale_patch,
    topology_version,
    upgrade_patch,
)
from capelin_infra.up import UP_SECONDS, bring_up_environment, fetch_workload_programs
from capelin_infra.versions import check_upgrade, next_version, parse_version
from capelin_infra.waiting import Deadline, wait_for, wait_until_ready

BOOTSTRAP_PROVIDER = "kubeadm-bootstrap"
"""Machines of our ClusterClass join with its data."""


@dataclass(frozen=True, slots=True)
class ClusterName:
    """Which cluster is meant."""

    name: str
    namespace: str = "default"
    environment: str = "default"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a verb is carried out."""

    dry_run: bool = False
    within: float | None = None
    """How many seconds to wait for it; None does not wait."""


async def create_cluster(which: ClusterName, options: ClusterOptions, run: RunOptions) -> None:
    """Create a Cluster and wait until it is ready."""
    check_cluster_name(which.name)
    environment = find_environment(which.environment)
    settings = environment.settings()
    wanted = options.version or (settings.kubernetes_version if settings else "latest")
    async with client_of(environment) as client:
        cluster_class = await _cluster_class(client, which, options)
        template = cluster_class.spec.control_plane
        reference = template.template_ref if template else None
        known = known_versions(reference.kind if reference else None)
        version = parse_version(wanted, known)
        manifest = new_cluster(which.name, which.namespace, version, options, cluster_class)
        if run.dry_run:
            if cluster_class.uid:
                await client.create(manifest, dry_run=True)
            _print(yaml.safe_dump(manifest, sort_keys=False))
            return
        if known:
            with Checklist(Console()).shown() as checklist:
                await fetch_workload_programs(checklist, version)
        if not cluster_class.uid:
            await _bring_class(environment, client, which.namespace)
        try:
            await client.create(manifest)
        except AlreadyExists:
            raise InvalidInputError(
                f"There is a cluster {which.name} in namespace {which.namespace} already.",
                reason="Its name can be had only once.",
                hint="Choose another name, or change it with capelin scale and capelin upgrade.",
            ) from None
        await _until_ready(client, which, run, f"cluster {which.name} created")


async def delete_cluster(which: ClusterName, run: RunOptions) -> None:
    """Delete a Cluster and wait until it is gone."""
    async with client_of(find_environment(which.environment)) as client:
        cluster = await find_cluster(client, which.name, which.namespace)
        if run.dry_run:
            _print(f"delete: Cluster {cluster.namespace}/{cluster.name}\n")
            return
        await client.delete(Cluster, which.name, which.namespace, uid=cluster.uid)
        progress = partial(deletion_progress, client, cluster)
        await _followed(f"cluster {which.name} deleted", progress, run.within)


async def upgrade_cluster(which: ClusterName, version: str | None, run: RunOptions) -> None:
    """Upgrade a Cluster, to the next version if none is named; wait until all of it runs that."""
    async with client_of(find_environment(which.environment)) as client:
        cluster = await find_cluster(client, which.name, which.namespace)
        reference = cluster.spec.control_plane_ref
        known = known_versions(reference.kind if reference else None)
        current = topology_version(cluster)
        version = next_version(current, known) if version is None else parse_version(version, known)
        check_upgrade(current, version, known)
        if known and not run.dry_run:
            with Checklist(Console()).shown() as checklist:
                await fetch_workload_programs(checklist, version)
        await _patch(client, cluster, upgrade_patch(version), dry_run=run.dry_run)
        if not run.dry_run:
            title = f"cluster {which.name} upgraded to {version}"
            await _until_ready(client, which, run, title)


async def scale_cluster(which: ClusterName, options: ScaleOptions, run: RunOptions) -> None:
    """Change a Cluster's numbers and wait until it has them."""
    async with client_of(find_environment(which.environment)) as client:
        cluster = await find_cluster(client, which.name, which.namespace)
        topology_version(cluster)
        await _patch(client, cluster, scale_patch(cluster, options), dry_run=run.dry_run)
        if not run.dry_run:
            await _until_ready(client, which, run, f"cluster {which.name} scaled")


async def _cluster_class(
    client: Client, which: ClusterName, options: ClusterOptions
) -> ClusterClass:
    """The class of a new cluster. Our own may still have to be applied: it has no uid then."""
    if options.cluster_class == DEMO_CLASS and await client.find(Namespace, which.namespace):
        found = await client.find(ClusterClass, options.cluster_class, which.namespace)
        return found or demo_class()
    return await find_class(client, options.cluster_class, which.namespace)


async def _bring_class(environment: Environment, client: Client, namespace: str) -> None:
    """Apply our ClusterClass, and start first the provider that its machines join with."""
    settings = environment.settings()
    providers = settings.providers if settings else []
    with environment.locked("create"), Checklist(Console()).shown() as checklist:
        if not {BOOTSTRAP_PROVIDER, "kubeadm"} & {*providers}:
            request = UpRequest(providers=(BOOTSTRAP_PROVIDER,))
            await bring_up_environment(environment, request, checklist, Deadline(UP_SECONDS))
        with checklist.step(f"ClusterClass {DEMO_CLASS} created"):
            await apply_cluster_class(client, namespace)


async def _patch(
    client: Client, cluster: Cluster, operations: list[Operation], *, dry_run: bool
) -> None:
    # In a dry run the API server says whether it would take the patch.
    await client.patch(
        Cluster, cluster.name, cluster.namespace, operations, type="json", dry_run=dry_run
    )
    if dry_run:
        _print(patch_text(cluster, operations))


async def _until_ready(client: Client, which: ClusterName, run: RunOptions, title: str) -> None:
    if run.within is None:
        text = as_invoked(f"{title}: Cluster API works on it; see capelin status.")
        Console().print(text, highlight=False)
        return
    with Checklist(Console()).shown() as checklist, checklist.step(title) as line:
        await wait_until_ready(
            client,
            which.name,
            which.namespace,
            run.within,
            lambda reason: checklist.update(line, reason),
        )
        line.detail = ""


async def _followed(
    title: str, left: Callable[[], Awaitable[str | None]], within: float | None
) -> None:
    if within is None:
        text = as_invoked(f"{title}: Cluster API works on it; see capelin status.")
        Console().print(text, highlight=False)
        return
    with Checklist(Console()).shown() as checklist, checklist.step(title) as line:
        await wait_for(title, left, within, lambda reason: checklist.update(line, reason))
        line.detail = ""


def _print(text: str) -> None:
    print(text, end="")  # noqa: T201 - asked for
