"""The reconciler of a control plane provider."""

from abc import abstractmethod
from collections.abc import Awaitable, Iterable
from typing import Any, ClassVar, Generic, Literal

from capelin.api import Model
from capelin.api.capi import Cluster
from capelin.contract import AVAILABLE, named_by
from capelin.controller import ObjectKey, Permission, Result
from capelin.provider.context import ControlPlaneContext, ProviderContext
from capelin.provider.fields import ControlPlaneStatus
from capelin.provider.reconciler import KindT, ProviderReconciler


class ControlPlaneReconciler(ProviderReconciler[KindT], Generic[KindT]):
    """Reconciles the control plane of a Cluster."""

    permissions = (Permission("", ("secrets",), ("get", "create", "patch")),)
    context_type: ClassVar[type[ProviderContext[Any]]] = ControlPlaneContext
    status_base: ClassVar[type[Model]] = ControlPlaneStatus
    ready_condition: ClassVar[str] = AVAILABLE
    milestone: ClassVar[str] = "Initialized"
    has_template: ClassVar[bool] = True

    @abstractmethod
    def reconcile_normal(
        self, ctx: ControlPlaneContext, obj: KindT, /
    ) -> Result | Awaitable[Result]:
        """Run the control plane, and call `ctx.set_endpoint(...)` when its address is known."""

    def blocked_status(self, status: Any, *, failed: bool) -> Literal["False", "Unknown"]:  # noqa: ARG002
        """An API server that has answered before may still answer: its state is unknown."""
        return "Unknown" if self.is_initialized(status) else "False"

    def is_initialized(self, status: Any) -> bool:
        """Whether the API server has answered once."""
        return bool(status.initialization.control_plane_initialized)

    @classmethod
    def keys_of(cls, owner: Cluster) -> Iterable[ObjectKey]:
        """The control plane that a Cluster's events concern."""
        name = named_by(owner.spec.control_plane_ref, cls.kind)
        return [] if name is None else [ObjectKey(owner.namespace or "", name)]
