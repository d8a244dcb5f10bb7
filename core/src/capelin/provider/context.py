"""The context of a provider's reconcile, and the status of its object."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Generic, Self, TypeVar, cast

from capelin.api import BaseObject, Condition, Model, Object, ObjectMeta, Unstructured
from capelin.api.capi import Cluster, Machine, MachinePool
from capelin.api.core import Secret
from capelin.client import (
    CircuitOpen,
    Client,
    NotFound,
    ResponseTooLarge,
    Unreachable,
    Unreadable,
    WorkloadClients,
)
from capelin.contract import (
    BOOTSTRAP_DATA_KEY,
    WAITING_FOR_CONTROL_PLANE,
    ConditionSpec,
    provider_id_list,
    update_conditions,
)
from capelin.controller import Context
from capelin.provider.blocked import Blocked, FrameReason
from capelin.provider.fields import (
    Endpoint,
    FailureDomain,
    InfraMachineSpec,
    Initialization,
    MachineAddress,
)

OwnerT = TypeVar("OwnerT", bound=BaseObject)

_RETRY = 1.0
"""Seconds before the next request to a workload cluster that has just failed to answer."""


class ContractBroken(Exception):  # noqa: N818 - names the state, like Blocked
    """A reconcile would write a status that Cluster API's contracts forbid."""


class StatusDraft:
    """The status to send at the end of a reconcile: the old status plus all changes since."""

    def __init__(self, obj: Object[Any, Any], base: Model) -> None:
        # A copy, to detect changes that the provider makes in `obj.status`.
        self._live: Unstructured = obj.dump()
        self._obj = obj
        before: list[Condition] = obj.status.conditions if obj.status else []
        self.before: dict[str, Condition] = {
            condition.type: condition.model_copy() for condition in before
        }
        obj.status = base
        self._status_type = type(base)
        self._status: Model | None = None
        self._fields: dict[str, Any] = {}
        self._specs: dict[str, ConditionSpec] = {}
        self._spec_fields: dict[str, Any] = {}

    @property
    def status(self) -> Any:
        """The current status, without the conditions that were set one by one."""
        status: Any = self._status or self._obj.status
        return status.model_copy(update=self._fields)

    def set_status(self, status: Model) -> None:
        """Set the status. If it has conditions, they replace all others."""
        wanted = self._status_type
        if not isinstance(status, wanted):
            raise TypeError(f"the status must be {wanted.__name__}, not {type(status).__name__}")
        self._status = status

    def set_fields(self, **values: Any) -> None:
        self._fields |= values

    def set_spec_field(self, name: str, value: Any) -> None:
        """Write a field of the spec before the status, unless it already has this value."""
        if self._live.get("spec", {}).get(name) != value:
            self._spec_fields[f"spec.{name}"] = value

    def set_conditions(self, *specs: ConditionSpec) -> None:
        """Add conditions, or replace those of the same types."""
        self._specs.update((spec.type, spec) for spec in specs)

    def drop_changes(self) -> None:
        """Return to the status that was read, if the new one cannot be written."""
        status = self._live.get("status")
        self._obj.status = self._status_type.read(status) if status else self._status_type()
        self._status, self._fields = None, {}
        self._specs, self._spec_fields = {}, {}

    def says(self, type_: str) -> bool:
        """Whether this reconcile has set a condition of that type."""
        return type_ in self._specs or (
            self._status is not None
            and any(condition.type == type_ for condition in self.status.conditions)
        )

    def compose(self, now: datetime) -> Model:
        status = self.status
        own: list[Condition] = status.conditions if self._status else []
        kept = {
            condition.type: ConditionSpec.kept(condition)
            for condition in own or self.before.values()
        }
        conditions = update_conditions(
            self.before.values(),
            (kept | self._specs).values(),
            now=now,
            generation=self._obj.metadata.generation,
        )
        return status.model_copy(update={"conditions": conditions})

    async def send(self, client: Client, now: datetime) -> bool:
        """Write the provider's fields of the spec, then the status. Returns whether it sent any.

        Raises:
            ContractBroken: The status reverts a milestone, or lacks a field that a milestone needs.
        """
        self._check_milestones()
        obj, resource = self._obj, self._obj.resource
        for path, value in self._spec_fields.items():
            written = await client.apply_fields(obj, {path: value})
            obj.spec, obj.metadata = written.spec, written.metadata
            self._live = written.dump()
        self._spec_fields = {}
        status = self.compose(now)
        wanted: Unstructured = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": ObjectMeta(name=obj.name, namespace=obj.namespace, uid=obj.uid).dump(),
            "status": _without_empty_lists(status),
        }
        live = await client.apply_status(wanted, live=self._live, resource=resource)
        if live is self._live:
            return False
        self._live = live
        obj.metadata = ObjectMeta.read(live["metadata"])
        obj.status = status
        return True

    def _check_milestones(self) -> None:
        reached = self._live.get("status", {}).get("initialization", {})
        initialization: Model | None = getattr(self.status, "initialization", None)
        milestones = {} if initialization is None else initialization.dump()
        for milestone in (name for name, was in reached.items() if was):
            if not milestones.get(milestone):
                field = f"status.initialization.{milestone}"
                raise ContractBroken(f"{field} stays true once it is true: use a condition instead")
        spec = self._obj.spec
        if (
            milestones.get("provisioned")
            and not reached.get("provisioned")
            and isinstance(spec, InfraMachineSpec)
            and not self._spec_fields.get("spec.providerID", spec.provider_id)
        ):
            message = "a provisioned machine needs a provider ID: pass one to ctx.set_provisioned"
            raise ContractBroken(message)


def _without_empty_lists(status: Model) -> Unstructured:
    """The fields of a status, without the empty lists that are empty by default.

    For server-side apply, a list that is merged by item has no owner while it is empty. A client
    cannot see that it has sent the list already.
    """
    omitted = {
        field.serialization_alias or name
        for name, field in type(status).model_fields.items()
        if getattr(status, name) == [] == field.default
    }
    return {name: value for name, value in status.dump().items() if name not in omitted}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderContext(Context, Generic[OwnerT]):
    """The context for the reconcile of a provider's object."""

    cluster_or_none: Cluster | None
    """The Cluster that the object is part of. None only during deletion."""
    owner_or_none: OwnerT | None
    """The object's owner. None only during deletion."""
    draft: StatusDraft
    workloads: WorkloadClients

    @classmethod
    def of(
        cls,
        ctx: Context,
        *,
        cluster: Cluster | None,
        owner: OwnerT | None,
        draft: StatusDraft,
        workloads: WorkloadClients,
    ) -> Self:
        return cls(
            **{field.name: getattr(ctx, field.name) for field in fields(Context)},
            cluster_or_none=cluster,
            owner_or_none=owner,
            draft=draft,
            workloads=workloads,
        )

    @property
    def cluster(self) -> Cluster:
        """The Cluster that the object is part of. During deletion it may be missing."""
        if self.cluster_or_none is None:
            raise Blocked(FrameReason.CLUSTER_NOT_FOUND, "its Cluster no longer exists")
        return self.cluster_or_none

    @property
    def owner(self) -> OwnerT:
        """The object's owner, such as a Machine. Not read during deletion."""
        if self.owner_or_none is None:
            raise Blocked(FrameReason.OWNER_NOT_FOUND, "its owner no longer exists")
        return self.owner_or_none

    def set_status(self, status: Model) -> None:
        """Send this status at the end.

        Its conditions, if any, replace the previous ones, to which `set_conditions` adds. You can
        also change `obj.status` in place.
        """
        self.draft.set_status(status)

    def set_conditions(self, *specs: ConditionSpec) -> None:
        """Send these conditions at the end, in addition to those that the object already has."""
        self.draft.set_conditions(*specs)

    async def send_status(self) -> bool:
        """Send the status now, before a long operation. It is also sent at the end.

        Returns whether it changed.
        """
        return await self.draft.send(self.client, self.now())

    @asynccontextmanager
    async def workload(self, *, secret: Secret | None = None) -> AsyncGenerator[Client]:
        """A client of the workload cluster. Pass its kubeconfig Secret if you have just read it.

        Raises:
            Blocked: It has no kubeconfig yet, or does not answer.
        """
        cluster, entered = self.cluster, False
        access = self.workloads.client(cluster.name, cluster.namespace or "", secret=secret)
        try:
            async with access as client:
                entered = True
                yield client
        except NotFound as error:
            if entered:
                raise
            message = "the workload cluster does not have a kubeconfig yet"
            raise Blocked(WAITING_FOR_CONTROL_PLANE, message) from error
        except Unreachable as error:
            raise workload_unreachable(error) from error
        except (ResponseTooLarge, Unreadable) as error:
            raise Blocked(FrameReason.INVALID_RESPONSE, str(error), retry_seconds=60) from error


def workload_unreachable(error: Unreachable) -> Blocked:
    """The error for a silent workload cluster, with the time of the next attempt."""
    message = "the API server of the workload cluster does not answer, or not in time"
    hint = "check the cluster's control plane. All objects of the cluster are retried together"
    retry = error.retry_seconds if isinstance(error, CircuitOpen) else _RETRY
    return Blocked(
        FrameReason.WORKLOAD_UNREACHABLE, message, hint, retry_seconds=max(retry, _RETRY)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InfraClusterContext(ProviderContext[Cluster]):
    """The context for the reconcile of a Cluster's infrastructure."""

    def set_provisioned(
        self,
        *,
        failure_domains: Iterable[FailureDomain] = (),
        endpoint: Endpoint | None = None,
    ) -> None:
        """Mark the infrastructure as provisioned. Core never reverts that.

        Args:
            failure_domains: Failure domains for machines.
            endpoint: Address of the API server, if the infrastructure decides it.
        """
        self.draft.set_fields(
            initialization=Initialization(provisioned=True),
            ready=True,
            failure_domains=list(failure_domains),
        )
        if endpoint is not None:
            self.draft.set_spec_field("controlPlaneEndpoint", endpoint.dump())


@dataclass(frozen=True, slots=True, kw_only=True)
class InfraMachineContext(ProviderContext[Machine]):
    """The context for the reconcile of a Machine's infrastructure."""

    def set_provisioned(
        self,
        provider_id: str,
        *,
        addresses: Iterable[MachineAddress] = (),
        failure_domain: str | None = None,
    ) -> None:
        """Mark the machine as provisioned. Core never reverts that.

        Args:
            provider_id: Identifier of the machine and of its Node. It never changes.
            addresses: Addresses of the machine.
            failure_domain: Failure domain of the machine. Default: the one in the Machine's spec.
        """
        wanted = self.owner_or_none.spec.failure_domain if self.owner_or_none else None
        self.draft.set_fields(
            initialization=Initialization(provisioned=True),
            ready=True,
            addresses=list(addresses),
            failure_domain=failure_domain or wanted,
        )
        self.set_provider_id(provider_id)

    def set_provider_id(self, provider_id: str) -> None:
        """Write `spec.providerID` before the status."""
        self.draft.set_spec_field("providerID", provider_id)

    async def bootstrap_data(self) -> bytes:
        """The script or data for the machine's first boot."""
        name = self.owner.spec.bootstrap.data_secret_name
        secret = await self.client.get(Secret, cast("str", name), self.owner.namespace)
        return secret.data[BOOTSTRAP_DATA_KEY]


@dataclass(frozen=True, slots=True, kw_only=True)
class InfraMachinePoolContext(ProviderContext[MachinePool]):
    """The context for the reconcile of a MachinePool's infrastructure."""

    def set_provisioned(self, *, replicas: int) -> None:
        """Mark the pool as provisioned, with its number of machines. Core never reverts that."""
        self.draft.set_fields(
            initialization=Initialization(provisioned=True), ready=True, replicas=replicas
        )

    def set_provider_ids(self, provider_ids: Iterable[str]) -> None:
        """Write `spec.providerIDList` before the status."""
        self.draft.set_spec_field("providerIDList", provider_id_list(provider_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneContext(ProviderContext[Cluster]):
    """The context for the reconcile of a control plane."""

    def set_endpoint(self, host: str, port: int) -> None:
        """Write `spec.controlPlaneEndpoint` before the status."""
        endpoint = Endpoint(host=host, port=port)
        self.draft.set_spec_field("controlPlaneEndpoint", endpoint.dump())
