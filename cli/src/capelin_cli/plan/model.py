"""The answer of `capelin plan`, for people and for programs."""

from typing import Any, Literal

from capelin.api import Model

from capelin_cli.explain.model import Reference

API_VERSION = "plan.capelin.cluster.x-k8s.io/v1alpha1"

Action = Literal["Created", "Changed", "Rotated", "Deleted"]
"""Rotated: another object takes the place of one that cannot be changed, such as a template."""


class FieldChange(Model):
    """A field that changes. A missing value is null."""

    path: str
    before: Any = None
    after: Any = None


class ObjectChange(Model):
    """The effect on one object, which is identified by its role: many names are generated."""

    action: Action
    kind: str
    role: str
    """Such as `infrastructure template of MachineDeployment workers`."""
    fields: list[FieldChange] = []
    """Empty for created and deleted objects."""


class MachineChanges(Model):
    """The effect on the machines of one MachineDeployment, MachinePool or control plane."""

    owner: str
    """Such as `MachineDeployment workers`."""
    before: int
    after: int
    kept: int = 0
    updated: int = 0
    """Machines that change and remain: their metadata, or an update in place."""
    replaced: int = 0
    created: int = 0
    deleted: int = 0
    fields: list[str] = []
    """The paths that change on the machines that remain."""
    max_surge: int | None = None
    """How many additional machines exist during a replacement. Null if none is replaced."""
    max_unavailable: int | None = None
    """How many machines may be missing during a replacement."""
    order: Literal["CreateFirst", "DeleteFirst", "OnDelete"] | None = None
    unknown: str = ""
    """Why the effect on these machines is unknown. Then the numbers are those before."""


class HookCall(Model):
    """A call of a Runtime Extension that the change causes."""

    hook: str
    handler: str
    """As in the ExtensionConfig, with its name."""
    from_version: str | None = None
    to_version: str | None = None
    policies: list[str] = []
    """The lifecycle policies that match, in the order in which they start."""


class Budget(Model):
    """A PodDisruptionBudget that currently permits no eviction on Nodes that will be drained."""

    name: str
    namespace: str
    pods: int
    """The number of its pods on these Nodes."""


class ClusterPlan(Model):
    """The effect on one Cluster."""

    cluster: Reference
    versions: list[str] = []
    """The versions of the control plane, from the first to the last. One if it keeps its own."""
    objects: list[ObjectChange] = []
    machines: list[MachineChanges] = []
    """All sets of machines, those without a change too."""
    hooks: list[HookCall] = []
    budgets: list[Budget] = []
    topologies: list[str] = []
    """Digests of the topologies before and during the change, if a policy of its class holds
    others than approved ones."""
    unknown: list[str] = []
    """The effects that could not be determined, and why."""

    @property
    def has_effect(self) -> bool:
        """Whether anything changes, or may change."""
        return bool(
            self.objects
            or self.hooks
            or self.unknown
            or any(each.before != each.after or has_changes(each) for each in self.machines)
        )

    @property
    def replaces_machines(self) -> bool:
        """Whether machines are replaced."""
        return any(each.replaced for each in self.machines)


class Plan(Model):
    """The effect of a change on all Clusters that it concerns."""

    api_version: str = API_VERSION
    kind: str = "Plan"
    cluster_api: str = ""
    """The version of Cluster API that computed the effect."""
    change: list[ObjectChange] = []
    """The change itself."""
    clusters: list[ClusterPlan] = []
    notes: list[str] = []
    """Differences between the plan's conditions and the management cluster's."""

    @property
    def replaces_machines(self) -> bool:
        """Whether machines of any Cluster are replaced."""
        return any(each.replaces_machines for each in self.clusters)


def has_changes(machines: MachineChanges) -> bool:
    """Whether a set of machines changes."""
    counts = (machines.updated, machines.replaced, machines.created, machines.deleted)
    return any(counts) or bool(machines.unknown)
