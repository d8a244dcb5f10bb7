"""Whose a control plane is, and who needs it."""

from collections.abc import Iterable

from capelin.api.views.capi import Cluster, Machine, MachinePool
from capelin.contract.clusters import named_by
from capelin.contract.labels import CLUSTER_NAME_LABEL, CONTROL_PLANE_LABEL
from capelin.controller import Context, ObjectKey

from capelin_control_plane.api import CapelinControlPlane


def its_control_plane(cluster: Cluster) -> Iterable[ObjectKey]:
    """The control plane that a Cluster's events concern."""
    name = named_by(cluster.spec.control_plane_ref, CapelinControlPlane)
    return [] if name is None else [ObjectKey(cluster.namespace or "", name)]


def original_of(control_plane: CapelinControlPlane, cluster: Cluster | None) -> str | None:
    """The control plane that a Cluster has in place of this one, which calls itself its too."""
    if cluster is None:
        return None
    name = named_by(cluster.spec.control_plane_ref, CapelinControlPlane)
    return None if name == control_plane.name else name


def why_nobodys(cluster: Cluster | None, original: str | None) -> str:
    """Why a control plane waits to be a Cluster's."""
    if cluster is None or original is None:
        return "no Cluster owns this control plane yet; name it in a Cluster's spec.controlPlaneRef"
    return (
        f"the spec.controlPlaneRef of Cluster {cluster.name} names {original}, and this control"
        " plane would be a second one; delete it, or name it in another Cluster"
    )


async def workers_of(control_plane: CapelinControlPlane, ctx: Context) -> list[str]:
    """What still needs the API of a control plane, in words."""
    cluster = control_plane.metadata.labels.get(CLUSTER_NAME_LABEL)
    if cluster is None:
        return []
    namespace = control_plane.namespace
    labels = {CLUSTER_NAME_LABEL: cluster}
    machines = await ctx.client.list(Machine, namespace, labels=labels)
    pools = await ctx.client.list(MachinePool, namespace, labels=labels)
    counts = {
        "machines": sum(CONTROL_PLANE_LABEL not in one.metadata.labels for one in machines.items),
        "machine pools": len(pools.items),
    }
    return [f"{count} {what}" for what, count in counts.items() if count]
