"""The verbs of workload clusters: sent to Cluster API, and followed until they are done."""

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import yaml
from capelin.api.capi import Cluster, ClusterClass
from capelin.api.core import Namespace
from capelin.client import AlreadyExists, ApiError, Client, Unavailable, Unreachable
from capelin.errors import InvalidInputError, MissingError, NotReadyError, WaitTimeoutError
from capelin_embedded.management import Environment, UpRequest, workload_programs
from rich.console import Console

from capelin_cli.clusters import topology
from capelin_cli.clusters.demo import apply_cluster_class, demo_class, find_class
from capelin_cli.environments.bring_up import UP_SECONDS, bring_up_environment
from capelin_cli.environments.connection import ClusterName, find_environment
from capelin_cli.environments.kubeconfigs import find_cluster
from capelin_cli.environments.kubernetes_versions import parse_version
from capelin_cli.environments.program_cache import fetch_workload_programs, is_cached
from capelin_cli.status.readiness import (
    deletion_progress,
    not_ready_reason,
    observe,
    observe_cluster,
)
from capelin_cli.terminal.checklist import Checklist
from capelin_cli.terminal.text import as_invoked, printable
from capelin_cli.terminal.waiting import Deadline, wait_for

BOOTSTRAP_PROVIDER = "kubeadm-bootstrap"
"""Machines of our ClusterClass join with its data."""


@dataclass(slots=True)
class RunOptions:
    """How a verb is carried out."""

    dry_run: bool = False
    within: float | None = None
    """Seconds to wait for it. None does not wait."""
    state: str = "Nothing was changed."
    """The text for a user who interrupts the verb now."""

    def interrupted(self) -> str:
        """The present state."""
        return self.state

    @contextmanager
    def sending(self, then: str) -> Generator[None]:
        """Send a request in the block. `then` is the state when the API server has accepted it."""
        self.state = "The request may have reached Cluster API: see capelin status."
        yield
        self.state = then


async def create_cluster(
    which: ClusterName, options: topology.ClusterOptions, run: RunOptions
) -> None:
    """Create a Cluster and wait until it is ready."""
    topology.check_cluster_name(which.name)
    environment = find_environment(which.environment)
    settings = environment.settings()
    wanted = options.version or (settings.kubernetes_version if settings else "latest")
    async with which.client() as client:
        cluster_class = await _cluster_class(client, which, options)
        template = cluster_class.spec.control_plane
        reference = template.template_ref if template else None
        known = topology.known_versions(reference.kind if reference else None)
        version = parse_version(wanted, known)
        manifest = topology.new_cluster(
            which.name, which.namespace, version, options, cluster_class
        )

        async def create(*, dry_run: bool) -> None:
            try:
                await client.create(manifest, dry_run=dry_run)
            except AlreadyExists:
                raise InvalidInputError(
                    f"There is a cluster {which.name} in namespace {which.namespace} already.",
                    reason="A name is unique in its namespace.",
                    hint="Choose another, or change it with capelin scale and capelin upgrade.",
                ) from None
            except ApiError as error:
                raise topology.rejected_cluster(error, which.name, cluster_class) from None

        if run.dry_run:
            if cluster_class.uid:
                await create(dry_run=True)
            _print(yaml.safe_dump(manifest, sort_keys=False))
            return
        if run.within is not None:
            await _fetch_programs(version, known)
        if not cluster_class.uid:
            run.state = "The cluster was not created. Its ClusterClass may have been."
            await _bring_class(environment, client, which.namespace)
        with run.sending(_continues(which)):
            await create(dry_run=False)
        started = f"Cluster API creates cluster {which.name} with Kubernetes {version}."
        started += _download_note(version, known)
        await _follow_readiness(client, which, run, "created", started)


async def delete_cluster(which: ClusterName, run: RunOptions) -> None:
    """Delete a Cluster and wait until it is gone."""
    async with which.client() as client:
        cluster = await find_cluster(client, which.name, which.namespace)
        if run.dry_run:
            _print(f"delete: Cluster {cluster.namespace}/{cluster.name}\n")
            return
        with run.sending(_continues(which, "--deleted")):
            await client.delete(Cluster, which.name, which.namespace, uid=cluster.uid)
        await _follow_deletion(client, which, cluster, run)


async def upgrade_cluster(which: ClusterName, version: str | None, run: RunOptions) -> None:
    """Upgrade a Cluster, to the next version if none is named, and wait until all of it runs that.

    If Cluster API already works on this upgrade, only wait for it.
    """
    async with which.client() as client:
        cluster = await find_cluster(client, which.name, which.namespace)
        reference = cluster.spec.control_plane_ref
        known = topology.known_versions(reference.kind if reference else None)
        observed = await observe(client, cluster)
        plan = topology.plan_upgrade(version, topology.topology_version(cluster), observed, known)
        if plan.action == "Nothing" or (run.dry_run and plan.action == "Wait"):
            problem = not_ready_reason(observed)
            text = f"Cluster {which.name} is being upgraded to {plan.version}: {problem}."
            if plan.action == "Nothing":
                ready = f" It is not ready: {problem}." if problem is not None else ""
                text = f"Cluster {which.name} runs {plan.version} already.{ready}"
            _print(f"{printable(text)}\n")
            return
        if plan.action == "Send":
            if run.within is not None and not run.dry_run:
                await _fetch_programs(plan.version, known)
            await _patch(client, which, cluster, topology.upgrade_patch(plan.version), run)
        if run.dry_run:
            return
        run.state = _continues(which)
        started = f"Cluster API upgrades cluster {which.name} to {plan.version}."
        started += _download_note(plan.version, known)
        await _follow_readiness(client, which, run, f"upgraded to {plan.version}", started)


async def scale_cluster(
    which: ClusterName, options: topology.ScaleOptions, run: RunOptions
) -> None:
    """Change a Cluster's numbers and wait until it has them."""
    async with which.client() as client:
        cluster = await find_cluster(client, which.name, which.namespace)
        topology.topology_version(cluster)
        await _patch(client, which, cluster, topology.scale_patch(cluster, options), run)
        if not run.dry_run:
            started = f"Cluster API scales cluster {which.name}."
            await _follow_readiness(client, which, run, "scaled", started)


async def wait_for_cluster(which: ClusterName, run: RunOptions, *, deleted: bool) -> None:
    """Wait until a Cluster is as its spec desires, or until it is deleted."""
    run.state = _continues(which, *(["--deleted"] if deleted else []))
    async with which.client() as client:
        if not deleted:
            await find_cluster(client, which.name, which.namespace)
            await _follow_readiness(client, which, run, "ready")
            return
        cluster = await client.find(Cluster, which.name, which.namespace)
        if cluster is None:
            _print(f"Cluster {which.name} does not exist in namespace {which.namespace}.\n")
            return
        await _follow_deletion(client, which, cluster, run)


def _continues(which: ClusterName, *options: str) -> str:
    return f"Cluster API continues: wait for it with {which.command('wait', *options)}."


async def _fetch_programs(version: str, known: Sequence[str]) -> None:
    """Fetch the programs of a version with progress. Otherwise the provider fetches them."""
    if known and not is_cached(workload_programs(version)):
        # An empty list would leave an empty line.
        with Checklist(Console()).shown() as checklist:
            await fetch_workload_programs(checklist, version)


def _download_note(version: str, known: Sequence[str]) -> str:
    """The work of the control plane's provider before it starts, if that can take minutes."""
    if not known or is_cached(workload_programs(version)):
        return ""
    return f" Its provider downloads or builds Kubernetes {version} first, which can take minutes."


async def _cluster_class(
    client: Client, which: ClusterName, options: topology.ClusterOptions
) -> ClusterClass:
    """The class of a new cluster. Our own may still have to be applied: it has no uid then."""
    if options.cluster_class == topology.DEMO_CLASS and await client.find(
        Namespace, which.namespace
    ):
        found = await client.find(ClusterClass, options.cluster_class, which.namespace)
        return found or demo_class()
    return await find_class(client, options.cluster_class, which.namespace)


async def _bring_class(environment: Environment, client: Client, namespace: str) -> None:
    """Apply our ClusterClass, and start first the provider that its machines join with."""
    with environment.locked("create"), Checklist(Console()).shown() as checklist:
        await start_bootstrap_provider(environment, checklist)
        with checklist.step(f"ClusterClass {topology.DEMO_CLASS} created"):
            await apply_cluster_class(client, namespace)


async def start_bootstrap_provider(environment: Environment, checklist: Checklist) -> None:
    """Start the provider that machines of our ClusterClass join with, unless it runs."""
    settings = environment.settings()
    providers = settings.providers if settings else []
    if not {BOOTSTRAP_PROVIDER, "kubeadm"} & {*providers}:
        request = UpRequest(providers=(BOOTSTRAP_PROVIDER,))
        await bring_up_environment(environment, request, checklist, Deadline(UP_SECONDS))


async def _patch(
    client: Client,
    which: ClusterName,
    cluster: Cluster,
    operations: list[topology.Operation],
    run: RunOptions,
) -> None:
    patch = partial(client.patch, Cluster, cluster.name, cluster.namespace, operations, type="json")
    try:
        if run.dry_run:
            # In a dry run, the API server checks the patch.
            await patch(dry_run=True)
            _print(topology.patch_text(cluster, operations))
        else:
            with run.sending(_continues(which)):
                await patch()
    except ApiError as error:
        raise topology.rejected_cluster(error, which.name) from None


async def _follow_readiness(
    client: Client, which: ClusterName, run: RunOptions, done: str, started: str = ""
) -> None:
    async def reason() -> str | None:
        observed = await observe_cluster(client, which.name, which.namespace)
        if observed is None:
            raise MissingError(
                f"Cluster {which.name} was deleted.", reason="It will not become ready any more."
            )
        if observed.cluster.metadata.deletion_timestamp is not None:
            raise NotReadyError(
                f"Cluster {which.name} is being deleted.",
                reason="It will not become ready any more.",
                hint=f"Wait for the end with {which.command('wait', '--deleted')}.",
            )
        return not_ready_reason(observed)

    await _follow(which, done, started, reason, run.within)


async def _follow_deletion(
    client: Client, which: ClusterName, cluster: Cluster, run: RunOptions
) -> None:
    started = f"Cluster API deletes cluster {which.name}."
    progress = partial(deletion_progress, client, cluster)
    await _follow(which, "deleted", started, progress, run.within)


async def _follow(
    which: ClusterName,
    done: str,
    started: str,
    reason: Callable[[], Awaitable[str | None]],
    within: float | None,
) -> None:
    """Wait until Cluster API has done its work, or print the command that waits for it.

    Args:
        which: The cluster.
        done: The change when it is done.
        started: The change when it has begun, for those who do not wait.
        reason: Why it is not done yet.
        within: Seconds to wait. None does not wait.
    """
    again = which.command("wait", *(["--deleted"] if done == "deleted" else []))
    if within is None:
        text = f"{started} Wait for it with {again}."
        Console().print(as_invoked(text), highlight=False, markup=False, soft_wrap=True)
        return
    why = which.command("explain")
    hint = f"Cluster API continues. See why it waits with {why}, and wait again with {again}."

    async def present_reason() -> str | None:
        try:
            return await reason()
        except (Unreachable, Unavailable) as error:
            # The restart of an API server is a reason, too.
            return str(error)

    with (
        Checklist(Console()).shown() as checklist,
        checklist.step(f"cluster {which.name} {done}") as line,
    ):
        name, show = f"cluster {which.name}", checklist.showing(line)
        try:
            await wait_for(name, present_reason, within, show, hint)
        except WaitTimeoutError:
            # The error has the last reason.
            line.detail = ""
            raise
        line.detail = ""


def _print(text: str) -> None:
    print(text, end="")  # noqa: T201 - asked for
