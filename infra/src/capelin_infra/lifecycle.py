"""The everyday verbs of workload clusters, sent to Cluster API and followed to their end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import yaml
from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass, MachineDeployment, MachinePool
from capelin.client import AlreadyExists, Client
from capelin.errors import InvalidInputError, MissingError, WaitTimeoutError
from rich.console import Console

from capelin_infra.clusters import (
    ClusterOptions,
    Operation,
    ScaleOptions,
    check_name,
    check_upgrade,
    missing,
    new_cluster,
    scaling,
    topology_version,
    upgrade,
)
from capelin_infra.connection import client_of, the_environment
from capelin_infra.progress import Checklist

_LOOK_SECONDS: Final = 0.5

Tell = Callable[[str], None]


async def create_cluster(
    environment: str, shape: ClusterOptions, *, dry_run: bool, within: float | None
) -> None:
    """Create a Cluster and wait until it is ready."""
    check_name(shape.name)
    place = the_environment(environment)
    settings = place.settings()
    async with client_of(place) as client:
        cluster_class = await _class(client, shape)
        version = shape.version or (settings.kubernetes_version if settings else "")
        manifest = new_cluster(shape, version, cluster_class)
        if dry_run:
            await client.create(manifest, dry_run=True)
            _print(manifest)
            return
        try:
            await client.create(manifest)
        except AlreadyExists:
            raise InvalidInputError(
                f"There is a cluster {shape.name} in namespace {shape.namespace} already.",
                reason="Its name can be had only once.",
                hint="Choose another name, or change it with capelin scale and capelin upgrade.",
            ) from None
        await _until_ready(
            client, shape.name, shape.namespace, within, f"cluster {shape.name} created"
        )


async def delete_cluster(
    environment: str, namespace: str, name: str, *, dry_run: bool, within: float | None
) -> None:
    """Delete a Cluster and wait until it is gone."""
    async with client_of(the_environment(environment)) as client:
        cluster = await the_cluster(client, name, namespace)
        if dry_run:
            _print({"delete": f"Cluster {cluster.namespace}/{cluster.name}"})
            return
        await client.delete(Cluster, name, namespace, uid=cluster.uid)

        async def left() -> str | None:
            found = await client.find(Cluster, name, namespace)
            if found is None or found.uid != cluster.uid:
                return None
            deleting = [each for each in found.status.conditions if each.type == "Deleting"]
            return (deleting[0].message if deleting else "") or "it is being deleted"

        await _followed(f"cluster {name} deleted", left, within)


async def upgrade_cluster(
    environment: str,
    namespace: str,
    name: str,
    version: str,
    *,
    dry_run: bool,
    within: float | None,
) -> None:
    """Upgrade a Cluster and wait until all of it runs the version."""
    async with client_of(the_environment(environment)) as client:
        cluster = await the_cluster(client, name, namespace)
        check_upgrade(topology_version(cluster), version)
        await _patch(client, cluster, upgrade(version), dry_run=dry_run)
        if not dry_run:
            title = f"cluster {name} upgraded to {version}"
            await _until_ready(client, name, namespace, within, title)


async def scale_cluster(
    environment: str,
    namespace: str,
    name: str,
    counts: ScaleOptions,
    *,
    dry_run: bool,
    within: float | None,
) -> None:
    """Change a Cluster's numbers and wait until it has them."""
    async with client_of(the_environment(environment)) as client:
        cluster = await the_cluster(client, name, namespace)
        topology_version(cluster)
        await _patch(client, cluster, scaling(cluster, counts), dry_run=dry_run)
        if not dry_run:
            await _until_ready(client, name, namespace, within, f"cluster {name} scaled")


async def until_ready(client: Client, name: str, namespace: str, within: float, tell: Tell) -> None:
    """Wait until a Cluster is as it was asked to be, its workers included.

    Raises:
        WaitTimeoutError: if time runs out, with what is missing.
    """

    async def lacks() -> str | None:
        cluster = await client.find(Cluster, name, namespace)
        label = {"cluster.x-k8s.io/cluster-name": name}
        pools = await client.list(MachinePool, namespace, labels=label)
        deployments = await client.list(MachineDeployment, namespace, labels=label)
        return missing(cluster, [*pools.items, *deployments.items])

    await _wait(f"cluster {name}", lacks, within, tell)


async def the_cluster(client: Client, name: str, namespace: str) -> Cluster:
    """A Cluster by name.

    Raises:
        MissingError: if there is none, with the names of those that there are.
    """
    found = await client.find(Cluster, name, namespace)
    if found is not None:
        return found
    others = ", ".join(each.name for each in (await client.list(Cluster, namespace)).items)
    raise MissingError(
        f"There is no cluster {name} in namespace {namespace}.",
        reason=f"Those that there are: {others or 'none'}.",
        hint="Name one of them, or another --namespace or environment.",
    )


async def _class(client: Client, shape: ClusterOptions) -> ClusterClass:
    found = await client.find(ClusterClass, shape.cluster_class, shape.namespace)
    if found is not None:
        return found
    others = (await client.list(ClusterClass, shape.namespace)).items
    raise MissingError(
        f"There is no ClusterClass {shape.cluster_class} in namespace {shape.namespace}.",
        reason=f"Those that there are: {', '.join(each.name for each in others) or 'none'}.",
        hint="Name one of them with --class, or apply one with kubectl first.",
    )


async def _patch(
    client: Client, cluster: Cluster, operations: list[Operation], *, dry_run: bool
) -> None:
    if dry_run:
        patched = await client.patch(
            Cluster.resource, cluster.name, cluster.namespace, operations, type="json", dry_run=True
        )
        patched["metadata"].pop("managedFields", None)
        _print({key: value for key, value in patched.items() if key != "status"})
    else:
        await client.patch(Cluster, cluster.name, cluster.namespace, operations, type="json")


async def _until_ready(
    client: Client, name: str, namespace: str, within: float | None, title: str
) -> None:
    if within is None:
        Console().print(f"{title}: Cluster API works on it; see capelin status.")
        return
    with Checklist(Console()).shown() as checklist, checklist.step(title) as line:
        await until_ready(
            client, name, namespace, within, lambda what: checklist.update(line, what)
        )
        line.detail = ""


async def _followed(
    title: str, left: Callable[[], Awaitable[str | None]], within: float | None
) -> None:
    if within is None:
        Console().print(f"{title}: Cluster API works on it; see capelin status.")
        return
    with Checklist(Console()).shown() as checklist, checklist.step(title) as line:
        await _wait(title, left, within, lambda what: checklist.update(line, what))
        line.detail = ""


async def _wait(
    title: str, left: Callable[[], Awaitable[str | None]], within: float, tell: Tell
) -> None:
    what = "nothing is known yet"
    try:
        async with asyncio.timeout(within):
            while True:
                found = await left()
                if found is None:
                    return
                what = found
                tell(" ".join(found.split()))
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        raise WaitTimeoutError(
            f"Waiting for {title} took longer than {within:.0f} s.",
            reason=f"The last that was known: {' '.join(what.split())}.",
            hint="Cluster API goes on with it: see capelin status --watch.",
        ) from None


def _print(manifest: Unstructured) -> None:
    print(yaml.safe_dump(manifest, sort_keys=False), end="")  # noqa: T201 - asked for
