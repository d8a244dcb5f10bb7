"""Desired state of pools and machines, as plain values and manifests."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

from capelin.api import BaseObject, ObjectMeta
from capelin.api.capi import Cluster, Machine, MachinePool
from capelin.contract import (
    NODE_CLUSTER_NAME_ANNOTATION,
    NODE_CLUSTER_NAMESPACE_ANNOTATION,
    NODE_MACHINE_ANNOTATION,
    NODE_OWNER_KIND_ANNOTATION,
    NODE_OWNER_NAME_ANNOTATION,
    POOL_NAME_LABEL,
    cluster_name_of,
    pool_machine_labels,
    reference_to,
)
from capelin.controller import ObjectKey
from capelin.provider import Blocked

from capelin_machine_pool.api import (
    BackendName,
    CapelinMachine,
    CapelinMachinePool,
    Containers,
    Faults,
    HostReference,
    Hosts,
    MachineSpec,
    NodeInfo,
    Simulated,
)

MANAGER = "capelin-machine-pool"
FINALIZER = "infrastructure.cluster.x-k8s.io/capelin"
REVISION_LABEL = "infrastructure.cluster.x-k8s.io/capelin-revision"
"""Hash of the pool template that the machine was created from."""

ARCHITECTURE_LABEL = "kubernetes.io/arch"
OPERATING_SYSTEM_LABEL = "kubernetes.io/os"

_FLAP = timedelta(seconds=90)
"""How long a flapping Node has no heartbeats, and then has them: longer than Kubernetes waits."""

DeletePolicy = Literal["Oldest", "Newest", "Random"]
Fault = Literal["never boots", "dies", "flaps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Desired state of a machine in its backend."""

    key: ObjectKey
    cluster: str
    provider_id: str
    version: str
    failure_domain: str | None
    created: datetime
    simulated: Simulated
    uid: str = ""
    backend: BackendName = "Simulated"
    containers: Containers = field(default_factory=Containers)
    hosts: Hosts = field(default_factory=Hosts)
    host: HostReference | None = None
    """The host that it has claimed, for the backend `Hosts`."""
    bootstrap_secret: str | None = None
    """Name of the Secret of its Machine. The machines of a pool use that of their MachinePool."""
    pool: str | None = None
    """Name of its MachinePool, if it is part of one."""
    provisioned: bool = False
    """Whether it has had a Node: then a missing Node was deleted, and is not created again."""

    @property
    def node_annotations(self) -> dict[str, str]:
        """The annotations that core writes on the Nodes of a pool.

        Core sends twenty requests a second to a workload cluster. With these annotations present
        it needs one less for each Node.
        """
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
        """When it gets its Node, or begins its bootstrap."""
        if self.backend == "Containers":
            return self.created
        jitter = self.simulated.startup_jitter_seconds * stable_fraction("jitter", self.key.name)
        return self.created + timedelta(seconds=self.simulated.startup_seconds + jitter)

    @property
    def faults(self) -> Faults:
        return self.containers.faults if self.backend == "Containers" else self.simulated.faults

    @property
    def fault(self) -> Fault | None:
        return fault_of(self.key.name, self.faults)

    @property
    def fails_at(self) -> datetime:
        """When its fault begins, unless the fault is that it never boots."""
        return self.boots_at + timedelta(seconds=self.faults.after_seconds)


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """How many machines a pool has, and how many more or fewer it may have during a rollout."""

    replicas: int
    surge: int = 1
    unavailable: int = 0
    policy: DeletePolicy = "Oldest"


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredPool:
    cluster: str
    machine_pool: MachinePool
    limits: RolloutLimits
    revision: str | None
    """None if the bootstrap config cannot be read: outdated machines are then unknown."""
    unreadable: Blocked | None = None
    """Why the bootstrap config cannot be read."""
    revision_of_version: Callable[[str], str] | None = None
    """The revision of machines that differ from the desired ones only in their version. None if
    the pool does not update machines in place."""
    failure_domains: Sequence[str] = ()

    @property
    def machine_labels(self) -> dict[str, str]:
        """The labels of the pool's machines and their Machines."""
        return pool_machine_labels(cluster=self.cluster, pool=self.machine_pool.name)


def desired_pool(
    pool: CapelinMachinePool,
    machine_pool: MachinePool,
    cluster: Cluster,
    bootstrap_spec: Mapping[str, Any] | Blocked,
) -> DesiredPool:
    """Desired state of a pool's machines. `bootstrap_spec` may be the reason for its absence."""
    unreadable = bootstrap_spec if isinstance(bootstrap_spec, Blocked) else None
    replicas = 1 if machine_pool.spec.replicas is None else machine_pool.spec.replicas
    rolling = pool.spec.rolling_update
    of_version: Callable[[str], str] | None = None
    if rolling.method == "InPlace" and not isinstance(bootstrap_spec, Blocked):
        of_version = partial(_revision, pool, machine_pool, bootstrap_spec)
    return DesiredPool(
        cluster=cluster.name,
        machine_pool=machine_pool,
        limits=rollout_limits(
            replicas, rolling.max_surge, rolling.max_unavailable, rolling.delete_policy
        ),
        revision=(
            None
            if isinstance(bootstrap_spec, Blocked)
            else revision_of(pool, machine_pool, bootstrap_spec)
        ),
        unreadable=unreadable,
        revision_of_version=of_version,
        failure_domains=machine_pool.spec.failure_domains
        or [domain.name for domain in cluster.status.failure_domains],
    )


def rollout_limits(
    replicas: int, max_surge: int | str, max_unavailable: int | str, policy: DeletePolicy
) -> RolloutLimits:
    """Numbers from numbers or percentages. Surge is rounded up, unavailability down."""
    surge = _resolve(max_surge, replicas, math.ceil)
    unavailable = min(_resolve(max_unavailable, replicas, math.floor), replicas)
    # With neither, no machine could ever be replaced.
    return RolloutLimits(replicas, surge, unavailable if surge else max(1, unavailable), policy)


def provider_id(namespace: str, cluster: str, name: str) -> str:
    return f"capelin:///{namespace}/{cluster}/{name}"


def provider_id_of(machine: CapelinMachine) -> str:
    """The provider ID of a machine, also if it is not in its spec yet."""
    namespace, cluster = machine.namespace or "", cluster_name_of(machine) or ""
    return machine.spec.provider_id or provider_id(namespace, cluster, machine.name)


def desired_instance(machine: CapelinMachine, owner: Machine | None) -> Instance:
    """Desired state of a machine's instance. Its version has to be set, on either of the two."""
    namespace, cluster = machine.namespace or "", cluster_name_of(machine) or ""
    created = machine.metadata.creation_timestamp
    version = machine.spec.version or (owner.spec.version if owner else None)
    if version is None or created is None:
        raise ValueError(f"machine {machine.name} has no version, or was not read from an API")
    return Instance(
        key=ObjectKey(namespace, machine.name),
        cluster=cluster,
        provider_id=provider_id_of(machine),
        version=version,
        failure_domain=machine.spec.failure_domain
        or (owner.spec.failure_domain if owner else None),
        created=created,
        simulated=machine.spec.simulated,
        uid=machine.uid,
        backend=machine.spec.backend,
        containers=machine.spec.containers or Containers(),
        hosts=machine.spec.hosts or Hosts(),
        host=machine.spec.host,
        bootstrap_secret=owner.spec.bootstrap.data_secret_name if owner else None,
        pool=machine.metadata.labels.get(POOL_NAME_LABEL),
        provisioned=bool(machine.status and machine.status.initialization.provisioned),
    )


def node_info(simulated: Simulated) -> NodeInfo:
    """The platform of the Nodes of simulated machines, from their labels."""
    return NodeInfo(
        architecture=simulated.labels.get(ARCHITECTURE_LABEL, "amd64"),
        operating_system=simulated.labels.get(OPERATING_SYSTEM_LABEL, "linux"),
    )


def revision_of(
    pool: CapelinMachinePool, machine_pool: MachinePool, bootstrap_spec: Mapping[str, Any]
) -> str:
    """Hash of everything that makes a machine outdated when it changes.

    It leaves out defaults, so that a new field of a later release replaces no machine.
    """
    version = machine_pool.spec.template.spec.version
    return _revision(pool, machine_pool, bootstrap_spec, version)


def _revision(
    pool: CapelinMachinePool,
    machine_pool: MachinePool,
    bootstrap_spec: Mapping[str, Any],
    version: str | None,
) -> str:
    spec = machine_pool.spec.template.spec
    template = {
        "version": version,
        "simulated": pool.spec.simulated.model_dump(mode="json", exclude_defaults=True),
        "bootstrap": _without_discovery(bootstrap_spec),
    }
    if pool.spec.containers is not None:
        containers = pool.spec.containers
        template["containers"] = containers.model_dump(mode="json", exclude_defaults=True)
    if pool.spec.hosts is not None:
        # The programs that they install follow from the version.
        template["hosts"] = pool.spec.hosts.model_dump(
            mode="json", exclude_defaults=True, exclude={"profile", "install_commands"}
        )
    if spec.bootstrap.config_ref is None and spec.bootstrap.data_secret_name is not None:
        # The user's own Secret: another name is another content. A bootstrap provider's Secret
        # changes with every token.
        template["bootstrapSecret"] = spec.bootstrap.data_secret_name
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:16]


def pool_machine(
    pool: CapelinMachinePool,
    machine_pool: MachinePool,
    cluster: str,
    *,
    name: str,
    revision: str,
    failure_domain: str | None,
) -> CapelinMachine:
    """A new machine of a pool, with the labels by which core finds it and creates its Machine."""
    namespace = pool.namespace or ""
    return CapelinMachine(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            labels={
                **pool_machine_labels(cluster=cluster, pool=machine_pool.name),
                REVISION_LABEL: revision,
            },
            # The pool is not the controller: the Machine will be.
            owner_references=[reference_to(pool)],
            finalizers=[FINALIZER],
        ),
        spec=MachineSpec(
            backend=pool.spec.backend,
            simulated=pool.spec.simulated,
            containers=pool.spec.containers,
            hosts=pool.spec.hosts,
            provider_id=provider_id(namespace, cluster, name),
            failure_domain=failure_domain,
            version=machine_pool.spec.template.spec.version,
        ),
    )


def fault_of(name: str, faults: Faults) -> Fault | None:
    """The fault of a machine: its name decides, in the configured percentages."""
    percentile = 100 * stable_fraction("fault", name)
    percentages: tuple[tuple[int, Fault], ...] = (
        (faults.never_boots, "never boots"),
        (faults.dies, "dies"),
        (faults.flaps, "flaps"),
    )
    for percentage, fault in percentages:
        if percentile < percentage:
            return fault
        percentile -= percentage
    return None


def has_heartbeats(instance: Instance, now: datetime) -> tuple[bool, datetime | None]:
    """Whether a machine's Node should have heartbeats now, and when that changes."""
    if instance.fault not in {"dies", "flaps"}:
        return True, None
    if now < instance.fails_at:
        return True, instance.fails_at
    if instance.fault == "dies":
        return False, None
    turn, _ = divmod(now - instance.fails_at, _FLAP)
    return turn % 2 == 1, instance.fails_at + (turn + 1) * _FLAP


def has_revision(obj: BaseObject, revision: str) -> bool:
    return obj.metadata.labels.get(REVISION_LABEL) == revision


def stable_fraction(purpose: str, name: str) -> float:
    """A number from 0 to 1 that looks random and is always the same for a name."""
    digest = hashlib.sha256(f"{purpose}/{name}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64


def _resolve(value: int | str, total: int, rounded: Callable[[float], int]) -> int:
    if isinstance(value, int):
        return value
    return rounded(total * int(value.removesuffix("%")) / 100)


def _without_discovery(bootstrap_spec: Mapping[str, Any]) -> dict[str, Any]:
    """A bootstrap config's spec without `joinConfiguration.discovery`.

    The kubeadm bootstrap provider writes a new token there every few minutes. Machines that have
    joined do not need it.
    """
    join: Mapping[str, Any] = bootstrap_spec.get("joinConfiguration") or {}
    kept = {name: value for name, value in join.items() if name != "discovery"}
    return {**bootstrap_spec, "joinConfiguration": kept}
