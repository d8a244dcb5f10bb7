"""What machines are to be: from specs to plain values and manifests."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from capelin.api import BaseObject, ObjectMeta
from capelin.api.views.capi import Machine, MachinePool
from capelin.contract.labels import (
    NODE_CLUSTER_NAME_ANNOTATION,
    NODE_CLUSTER_NAMESPACE_ANNOTATION,
    NODE_MACHINE_ANNOTATION,
    NODE_OWNER_KIND_ANNOTATION,
    NODE_OWNER_NAME_ANNOTATION,
    POOL_NAME_LABEL,
)
from capelin.contract.metadata import pool_machine_labels
from capelin.contract.owners import reference_to
from capelin.controller import ObjectKey

from capelin_machine_pool.api import (
    CapelinMachine,
    CapelinMachinePool,
    Faults,
    MachineSpec,
    Simulated,
)

FINALIZER = "infrastructure.cluster.x-k8s.io/capelin"
REVISION_LABEL = "infrastructure.cluster.x-k8s.io/capelin-revision"
"""Which making of its pool a machine came from; others are outdated."""

Fault = Literal["never boots", "dies", "flaps"]

_LONGEST_NAME = 63
"""Core names Machines, and Kubernetes hosts in labels, with so many characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedMachine:
    """A machine as it is wanted."""

    key: ObjectKey
    cluster: str
    provider_id: str
    version: str
    failure_domain: str | None
    created: datetime
    simulated: Simulated
    pool: str | None = None
    """Its MachinePool, if it is in one."""

    @property
    def node_annotations(self) -> dict[str, str]:
        """What core would write on its Node, at the twenty requests a second that it has there."""
        if self.pool is None:
            return {}
        return {
            NODE_CLUSTER_NAME_ANNOTATION: self.cluster,
            NODE_CLUSTER_NAMESPACE_ANNOTATION: self.key.namespace,
            NODE_MACHINE_ANNOTATION: self.key.name,
            NODE_OWNER_KIND_ANNOTATION: MachinePool.resource.kind,
            NODE_OWNER_NAME_ANNOTATION: self.pool,
        }

    @property
    def boots_at(self) -> datetime:
        """When it becomes a node: after its startup time and a part of the jitter."""
        jitter = self.simulated.startup_jitter_seconds * fraction_of("jitter", self.key.name)
        return self.created + timedelta(seconds=self.simulated.startup_seconds + jitter)

    @property
    def fault(self) -> Fault | None:
        """What goes wrong with it, if anything does."""
        return fault_of(self.key.name, self.simulated.faults)

    @property
    def fails_at(self) -> datetime:
        """When its fault shows, if it is one of a machine that runs."""
        return self.boots_at + timedelta(seconds=self.simulated.faults.after_seconds)


def provider_id(namespace: str, cluster: str, name: str) -> str:
    """What a machine is known by, to core and to its node."""
    return f"capelin:///{namespace}/{cluster}/{name}"


def wanted_machine(
    machine: CapelinMachine, owner: Machine | None, cluster: str
) -> WantedMachine | None:
    """What a machine is to be, or nothing while nobody says its version."""
    version = machine.spec.version or (owner.spec.version if owner else None)
    if version is None or machine.metadata.creation_timestamp is None:
        return None
    namespace = machine.namespace or ""
    return WantedMachine(
        key=ObjectKey(namespace, machine.name),
        cluster=cluster,
        provider_id=machine.spec.provider_id or provider_id(namespace, cluster, machine.name),
        version=version,
        failure_domain=machine.spec.failure_domain
        or (owner.spec.failure_domain if owner else None),
        created=machine.metadata.creation_timestamp,
        simulated=machine.spec.simulated,
        pool=machine.metadata.labels.get(POOL_NAME_LABEL),
    )


def revision_of(
    pool: CapelinMachinePool, machine_pool: MachinePool, bootstrap_spec: Mapping[str, Any]
) -> str:
    """The making of a pool's machines: two machines of one revision are alike.

    What has its default does not count, so that a provider that knows more replaces no machine.
    """
    making = {
        "version": machine_pool.spec.template.spec.version,
        "simulated": pool.spec.simulated.model_dump(mode="json", exclude_defaults=True),
        "bootstrap": _without_discovery(bootstrap_spec),
    }
    return hashlib.sha256(json.dumps(making, sort_keys=True).encode()).hexdigest()[:16]


def pool_machine(
    pool: CapelinMachinePool,
    machine_pool: MachinePool,
    cluster: str,
    *,
    name: str,
    revision: str,
    failure_domain: str | None,
) -> CapelinMachine:
    """A machine of a pool, such that core finds it and makes its Machine."""
    namespace = pool.namespace or ""
    return CapelinMachine(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            labels={
                **pool_machine_labels(cluster=cluster, pool=machine_pool.name),
                REVISION_LABEL: revision,
            },
            # Not as its controller: that will be the Machine.
            owner_references=[reference_to(pool)],
            finalizers=[FINALIZER],
        ),
        spec=MachineSpec(
            backend=pool.spec.backend,
            simulated=pool.spec.simulated,
            provider_id=provider_id(namespace, cluster, name),
            failure_domain=failure_domain,
            version=machine_pool.spec.template.spec.version,
        ),
    )


def fault_of(name: str, faults: Faults) -> Fault | None:
    """What goes wrong with a machine: decided by its name, in the shares that are asked for."""
    place = 100 * fraction_of("fault", name)
    for share, fault in _shares(faults):
        if place < share:
            return fault
        place -= share
    return None


def machine_name(pool: str, suffix: str) -> str:
    """The name of a pool's machine, short enough for its Machine and its Node's labels."""
    return f"{pool[: _LONGEST_NAME - len(suffix) - 1].rstrip('-.')}-{suffix}"


def is_of(obj: BaseObject, revision: str) -> bool:
    """Whether a machine is of a revision."""
    return obj.metadata.labels.get(REVISION_LABEL) == revision


def _without_discovery(bootstrap_spec: Mapping[str, Any]) -> dict[str, Any]:
    """What a bootstrap config says of machines, without how they find the cluster.

    The kubeadm bootstrap provider writes that into the spec itself, and a new token into it every
    few minutes; machines that have joined need none.
    """
    join: Mapping[str, Any] = bootstrap_spec.get("joinConfiguration") or {}
    said = {name: value for name, value in join.items() if name != "discovery"}
    return {**bootstrap_spec, "joinConfiguration": said}


def _shares(faults: Faults) -> tuple[tuple[int, Fault], ...]:
    return (
        (faults.never_boots, "never boots"),
        (faults.dies, "dies"),
        (faults.flaps, "flaps"),
    )


def fraction_of(purpose: str, name: str) -> float:
    """A number from 0 to 1 that looks random and is always the same for a name."""
    digest = hashlib.sha256(f"{purpose}/{name}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64
