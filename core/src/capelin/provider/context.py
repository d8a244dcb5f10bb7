"""What a provider's reconcile has at hand, and what it says about its object."""

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
"""Seconds after which to try a workload cluster again that has just failed to answer."""


class ContractBroken(Exception):  # noqa: N818 - names the state, like Blocked
    """A reconcile would write a status that Cluster API's contracts forbid."""


class StatusDraft:
    """The status that is sent when the reconcile ends: what was read, with what was said since."""

    def __init__(self, obj: Object[Any, Any], base: Model) -> None:
        # A copy: the provider may change `obj.status` in place, and that has to be seen.
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
        """The status as it is so far, without the conditions that were set one by one."""
        status: Any = self._status or self._obj.status
        return status.model_copy(update=self._fields)

    def set_status(self, status: Model) -> None:
        """Take this for the status; its conditions, if it has any, are all that there are."""
        wanted = self._status_type
        if not isinstance(status, wanted):
            raise TypeError(f"the status is a {wanted.__name__}, and not a {type(status).__name__}")
        self._status = status

    def set_fields(self, **values: Any) -> None:
        self._fields |= values

    def set_spec_field(self, name: str, value: Any) -> None:
        """Have a field of the spec written before the status, unless it has this value already."""
        if self._live.get("spec", {}).get(name) != value:
            self._spec_fields[f"spec.{name}"] = value

    def set_conditions(self, *specs: ConditionSpec) -> None:
        """Add conditions, or replace those of the same types."""
        self._specs.update((spec.type, spec) for spec in specs)

    def drop_changes(self) -> None:
        """Return to the status that was read, when the new one cannot be written."""
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
            condition.type: ConditionSpec.of(condition) for condition in own or self.before.values()
        }
        conditions = update_conditions(
            self.before.values(),
            (kept | self._specs).values(),
            now=now,
            generation=self._obj.metadata.generation,
        )
        return status.model_copy(update={"conditions": conditions})

    async def send(self, client: Client, now: datetime) -> bool:
        """Write the provider's fields of the spec, then the status; says if anything was sent.

        Raises:
            ContractBroken: the status takes a milestone back, or lacks what a milestone needs.
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
            "status": status.dump(),
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
                raise ContractBroken(f"{field} stays true once it is; use a condition instead")
        spec = self._obj.spec
        if (
            milestones.get("provisioned")
            and not reached.get("provisioned")
            and isinstance(spec, InfraMachineSpec)
            and not self._spec_fields.get("spec.providerID", spec.provider_id)
        ):
            message = "a provisioned machine needs a provider ID; pass one to ctx.set_provisioned"
            raise ContractBroken(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderContext(Context, Generic[OwnerT]):
    """What the reconcile of a provider's object has at hand."""

    cluster_or_none: Cluster | None
    """The Cluster that the object is part of; None only while it is deleted."""
    owner_or_none: OwnerT | None
    """What the object was made for; None only while it is deleted."""
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
        """The Cluster that the object is part of. While it is deleted there may be none."""
        if self.cluster_or_none is None:
            raise Blocked(FrameReason.CLUSTER_NOT_FOUND, "the Cluster that it is part of is gone")
        return self.cluster_or_none

    @property
    def owner(self) -> OwnerT:
        """What the object was made for, as a Machine. Not read while the object is deleted."""
        if self.owner_or_none is None:
            raise Blocked(FrameReason.OWNER_NOT_FOUND, "what it was made for is gone")
        return self.owner_or_none

    def set_status(self, status: Model) -> None:
        """Have this status sent at the end.

        If it has conditions, these are all; else the previous ones stay. `set_conditions` adds to
        them. `obj.status` may also be changed in place.
        """
        self.draft.set_status(status)

    def set_conditions(self, *specs: ConditionSpec) -> None:
        """Have these conditions sent at the end, besides those that the object has already."""
        self.draft.set_conditions(*specs)

    async def send_status(self) -> None:
        """Send the status now, before something that takes long. It is also sent at the end."""
        await self.draft.send(self.client, self.now())

    @asynccontextmanager
    async def workload(self, *, secret: Secret | None = None) -> AsyncGenerator[Client]:
        """A client of the workload cluster. Pass its kubeconfig Secret if you have just read it.

        Raises:
            Blocked: it has no kubeconfig yet, or does not answer.
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
            message = "there is no kubeconfig of the workload cluster yet"
            raise Blocked(WAITING_FOR_CONTROL_PLANE, message) from error
        except Unreachable as error:
            raise workload_unreachable(error) from error
        except (ResponseTooLarge, Unreadable) as error:
            raise Blocked(FrameReason.INVALID_RESPONSE, str(error), retry_seconds=60) from error


def workload_unreachable(error: Unreachable) -> Blocked:
    """Why nothing can be done in a workload cluster now, and when to try again."""
    message = "the API server of the workload cluster does not answer, or not in time"
    hint = "check the cluster's control plane; its objects are tried again together"
    retry = error.retry_seconds if isinstance(error, CircuitOpen) else _RETRY
    return Blocked(
        FrameReason.WORKLOAD_UNREACHABLE, message, hint, retry_seconds=max(retry, _RETRY)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InfraClusterContext(ProviderContext[Cluster]):
    """What the reconcile of a Cluster's infrastructure has at hand."""

    def set_provisioned(
        self,
        *,
        failure_domains: Iterable[FailureDomain] = (),
        endpoint: Endpoint | None = None,
    ) -> None:
        """Say that the infrastructure is there. Core never takes that back.

        Args:
            failure_domains: Where machines can be placed.
            endpoint: Where the API server answers, if the infrastructure decides it.
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
    """What the reconcile of a Machine's infrastructure has at hand."""

    def set_provisioned(
        self,
        provider_id: str,
        *,
        addresses: Iterable[MachineAddress] = (),
        failure_domain: str | None = None,
    ) -> None:
        """Say that the machine is there. Core never takes that back.

        Args:
            provider_id: What its Node is known by; it never changes.
            addresses: Where it is reached.
            failure_domain: Where it is; as its Machine wants it if not given.
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
        """Have `spec.providerID` written before the status."""
        self.draft.set_spec_field("providerID", provider_id)

    async def bootstrap_data(self) -> bytes:
        """What the machine runs when it starts for the first time."""
        name = self.owner.spec.bootstrap.data_secret_name
        secret = await self.client.get(Secret, cast("str", name), self.owner.namespace)
        return secret.data[BOOTSTRAP_DATA_KEY]


@dataclass(frozen=True, slots=True, kw_only=True)
class InfraMachinePoolContext(ProviderContext[MachinePool]):
    """What the reconcile of a MachinePool's infrastructure has at hand."""

    def set_provisioned(self, *, replicas: int) -> None:
        """Say that the pool can have machines, and how many it has. Core never takes it back."""
        self.draft.set_fields(
            initialization=Initialization(provisioned=True), ready=True, replicas=replicas
        )

    def set_provider_ids(self, provider_ids: Iterable[str]) -> None:
        """Have `spec.providerIDList` written before the status."""
        self.draft.set_spec_field("providerIDList", provider_id_list(provider_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneContext(ProviderContext[Cluster]):
    """What the reconcile of a control plane has at hand."""

    def set_endpoint(self, host: str, port: int) -> None:
        """Have `spec.controlPlaneEndpoint` written before the status."""
        endpoint = Endpoint(host=host, port=port)
        self.draft.set_spec_field("controlPlaneEndpoint", endpoint.dump())
