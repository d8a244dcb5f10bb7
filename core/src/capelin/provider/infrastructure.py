"""The reconcilers of infrastructure providers, for Clusters, Machines and MachinePools."""

from abc import abstractmethod
from collections.abc import Awaitable, Hashable, Iterable
from typing import Any, ClassVar, Generic

from capelin.api import Model
from capelin.api.capi import Cluster, Machine, MachinePool
from capelin.contract import (
    NOT_PROVISIONED,
    WAITING_FOR_BOOTSTRAP_DATA,
    WAITING_FOR_CLUSTER_INFRASTRUCTURE,
    WAITING_FOR_CONTROL_PLANE,
    ConditionSpec,
    cluster_name_of,
    is_managed_elsewhere,
    named_by,
)
from capelin.controller import ObjectKey, Permission, Result
from capelin.provider.blocked import Blocked
from capelin.provider.context import (
    InfraClusterContext,
    InfraMachineContext,
    InfraMachinePoolContext,
    ProviderContext,
)
from capelin.provider.fields import (
    InfraClusterSpec,
    InfraClusterStatus,
    InfraMachinePoolSpec,
    InfraMachinePoolStatus,
    InfraMachineSpec,
    InfraMachineStatus,
)
from capelin.provider.reconciler import KindT, ProviderReconciler

# Events of a Cluster do not trigger its machines: they poll.
_SOON = 2.0
_LATER = 15.0


class _InfraReconciler(ProviderReconciler[KindT], Generic[KindT]):
    has_template: ClassVar[bool] = True

    def readiness(self, status: Any) -> ConditionSpec:
        """Ready as soon as the infrastructure is provisioned."""
        if self.is_initialized(status):
            return super().readiness(status)
        return ConditionSpec(self.ready_condition, "False", NOT_PROVISIONED)


class InfraClusterReconciler(_InfraReconciler[KindT], Generic[KindT]):
    """Reconciles the surroundings of a Cluster's machines, such as networks and load balancers."""

    context_type: ClassVar[type[ProviderContext[Any]]] = InfraClusterContext
    spec_base: ClassVar[type[Model]] = InfraClusterSpec
    status_base: ClassVar[type[Model]] = InfraClusterStatus

    @abstractmethod
    def reconcile_normal(
        self, ctx: InfraClusterContext, obj: KindT, /
    ) -> Result | Awaitable[Result]:
        """Create the Cluster's infrastructure, and then call `ctx.set_provisioned(...)`."""

    def ignores(self, obj: KindT) -> bool:
        """Whether another system manages it, by the annotation `cluster.x-k8s.io/managed-by`."""
        return is_managed_elsewhere(obj)


class InfraMachineReconciler(_InfraReconciler[KindT], Generic[KindT]):
    """Reconciles the infrastructure of a Machine, once its cluster and bootstrap data are ready."""

    owner_kind = Machine
    permissions = (Permission("", ("secrets",), ("get",)),)
    context_type: ClassVar[type[ProviderContext[Any]]] = InfraMachineContext
    spec_base: ClassVar[type[Model]] = InfraMachineSpec
    status_base: ClassVar[type[Model]] = InfraMachineStatus
    paused_retry_seconds: ClassVar[float | None] = _LATER

    @abstractmethod
    def reconcile_normal(
        self, ctx: InfraMachineContext, obj: KindT, /
    ) -> Result | Awaitable[Result]:
        """Create the machine, and then call `ctx.set_provisioned(provider_id, ...)`."""

    def group(self, obj: KindT, /) -> Hashable | None:
        """The Cluster: its API server may be slow, or silent."""
        name = cluster_name_of(obj)
        return None if name is None else ObjectKey(obj.namespace or "", name)

    def waiting_for(
        self, obj: KindT, cluster: Cluster | None, owner: Machine | None
    ) -> Blocked | None:
        """The Machine, the cluster's infrastructure, the bootstrap data: in this order."""
        if missing := super().waiting_for(obj, cluster, owner):
            return missing
        if missing := infrastructure_missing(cluster):
            return missing
        if owner is None or owner.spec.bootstrap.data_secret_name is None:
            message = "its Machine has no bootstrap data yet"
            return Blocked(WAITING_FOR_BOOTSTRAP_DATA, message, retry_seconds=_LATER)
        return None


class InfraMachinePoolReconciler(_InfraReconciler[KindT], Generic[KindT]):
    """Reconciles the infrastructure of a MachinePool, once its cluster and data are ready."""

    owner_kind = MachinePool
    permissions = (Permission("", ("secrets",), ("get",)),)
    context_type: ClassVar[type[ProviderContext[Any]]] = InfraMachinePoolContext
    spec_base: ClassVar[type[Model]] = InfraMachinePoolSpec
    status_base: ClassVar[type[Model]] = InfraMachinePoolStatus
    paused_retry_seconds: ClassVar[float | None] = _LATER

    @abstractmethod
    def reconcile_normal(
        self, ctx: InfraMachinePoolContext, obj: KindT, /
    ) -> Result | Awaitable[Result]:
        """Create machines, then call `ctx.set_provider_ids(...)` and `ctx.set_provisioned()`."""

    def waiting_for(
        self, obj: KindT, cluster: Cluster | None, owner: MachinePool | None
    ) -> Blocked | None:
        """The MachinePool, the cluster's infrastructure, the bootstrap data, the control plane."""
        if missing := super().waiting_for(obj, cluster, owner):
            return missing
        if missing := infrastructure_missing(cluster):
            return missing
        if owner is None or owner.spec.template.spec.bootstrap.data_secret_name is None:
            message = "its MachinePool has no bootstrap data yet"
            return Blocked(WAITING_FOR_BOOTSTRAP_DATA, message, retry_seconds=_SOON)
        if cluster is None or not cluster.status.initialization.control_plane_initialized:
            message = "the control plane has not answered yet"
            return Blocked(WAITING_FOR_CONTROL_PLANE, message, retry_seconds=_SOON)
        return None

    @classmethod
    def keys_of(cls, owner: MachinePool) -> Iterable[ObjectKey]:
        """The pool that a MachinePool's events concern."""
        name = named_by(owner.spec.template.spec.infrastructure_ref, cls.kind)
        return [] if name is None else [ObjectKey(owner.namespace or "", name)]


def infrastructure_missing(cluster: Cluster | None) -> Blocked | None:
    """The reason why a cluster cannot have machines yet, or `None`."""
    if cluster is not None and cluster.status.initialization.infrastructure_provisioned:
        return None
    message = "the Cluster's infrastructure is not provisioned yet"
    return Blocked(WAITING_FOR_CLUSTER_INFRASTRUCTURE, message, retry_seconds=_SOON)
