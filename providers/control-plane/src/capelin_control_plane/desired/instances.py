"""The instances of a control plane's components: desired, planned and observed."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from capelin.provider import Blocked
from capelin.versions import Version

from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.desired.control_plane import Component
from capelin_control_plane.etcd.rules import Loss, Membership


class Phase(StrEnum):
    """The phases of a restore, in their order. Their names are reasons of conditions."""

    PREPARING = "PreparingRestore"
    """New data is created from the backup. The control plane continues to serve."""
    STOPPING = "StoppingForRestore"
    """etcd and its clients stop. From here on, the restore is always completed."""
    REPLACING = "ReplacingData"
    """The data of all etcd members is replaced."""
    STARTING = "StartingRestored"
    """etcd and its clients start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """How much of the machine an instance may use."""

    memory_bytes: int | None = None
    cpus: float | None = None


@dataclass(frozen=True, slots=True)
class Instance:
    """One desired instance of a component."""

    component: Component
    index: int
    version: str
    arguments: tuple[str, ...]
    """The program and its arguments."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    resources: Resources = Resources()
    is_learner: bool = False
    """Whether this etcd member was started without a vote, and is to be promoted."""
    planned_at: datetime | None = None
    """When it was planned. A rollout replaces instances that were planned before its moment."""
    rollout_after: datetime | None = None
    """It replaces an instance that was planned before this moment, even one that runs the same."""

    @property
    def name(self) -> str:
        """Unique in the control plane. Names the process and its log."""
        return f"{self.component}-{self.index}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The instances that should run now, old and new."""

    instances: tuple[Instance, ...] = ()

    def of(self, component: Component) -> tuple[Instance, ...]:
        """The instances of a component."""
        return tuple(instance for instance in self.instances if instance.component == component)

    @property
    def voters(self) -> tuple[Instance, ...]:
        """The etcd members that count for the quorum."""
        return tuple(member for member in self.of("etcd") if not member.is_learner)

    def without(self, removed: Instance) -> "Plan":
        """The plan less one instance."""
        return Plan(tuple(kept for kept in self.instances if kept.name != removed.name))

    def including(self, *added: Instance) -> "Plan":
        """The plan with these instances, which replace those of the same name."""
        names = {instance.name for instance in added}
        return Plan((*(kept for kept in self.instances if kept.name not in names), *added))


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredComponents:
    """The instances of a control plane after all changes."""

    etcd: tuple[Instance, ...]
    relay: Instance
    replicas: int
    api_server: Callable[[int], Instance]
    """The API server of an index. There are more indexes than replicas, for rollouts."""
    controllers: tuple[Instance, ...]
    """Controller manager and scheduler: they need an API server, and are never newer than it."""

    def counterpart(self, instance: Instance) -> Instance | None:
        """The desired form of a planned instance. None if it should not run."""
        if instance.component == "kube-apiserver":
            return self.api_server(instance.index)
        others = (*self.etcd, self.relay, *self.controllers)
        return next((other for other in others if other.name == instance.name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStatus:
    """One observed instance of a component."""

    name: str
    component: Component
    version: str
    ready: bool
    current: bool | None
    """Whether it runs as desired. None while the programs to compare with are not available."""
    failure: str = ""
    """Why it ended, if it did and is being restarted."""
    unready: str = ""
    """Why it is not ready any more, if it was and still runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A control plane as it is now."""

    plan: Plan = Plan()
    statuses: tuple[InstanceStatus, ...] = ()
    desired: DesiredComponents | None = None
    """Its desired components. None while the programs of its version are not available."""
    complete: bool = False
    """Whether exactly the desired instances are planned, ready or not."""
    recovering: frozenset[str] = frozenset()
    """The etcd members that were ready before and may become so again without a change."""
    losses: Mapping[int, Loss] = field(default_factory=dict[int, Loss])
    """By index, the etcd members that cannot continue with their own data."""
    joined: frozenset[int] = frozenset()
    """The indexes of etcd members that were ever ready."""
    membership: Membership | None = None
    """etcd's own list of its members. None if the step does not need it, or no member answers."""
    voters: int = 0
    """How many members of etcd vote. 0 if this is not known."""
    serving: frozenset[str] = frozenset()
    """The API servers that get connections now."""
    alive: frozenset[str] = frozenset()
    """The instances that have a process, whether or not they are ready."""
    stopping: frozenset[str] = frozenset()
    """The instances that are not planned any more and have not ended yet."""
    controllers_may_start: bool = True
    """Whether no starting API server of another control plane needs the processors more."""
    blocked: Blocked | None = None
    renew_at: datetime | None = None
    """When the first certificate is due for renewal."""
    replace_at: datetime | None = None
    """When a member of etcd without a usable node is to be replaced."""
    restore: Phase | None = None
    """The phase of a restore, if one is in progress."""
    stepped: bool = False
    """Whether a step was just taken. Not every step changes a pod, whose event would be next."""

    def of(self, component: Component) -> tuple[InstanceStatus, ...]:
        """The instances of a component."""
        return tuple(status for status in self.statuses if status.component == component)

    @property
    def ending_servers(self) -> list[str]:
        """The API servers that have not ended yet: they serve with their own settings."""
        return sorted(name for name in self.stopping if "kube-apiserver" in name)

    @property
    def ready(self) -> frozenset[str]:
        """The names of the instances that are ready."""
        return frozenset(status.name for status in self.statuses if status.ready)

    @property
    def awaits_data(self) -> bool:
        """Whether a restore is requested whose data is not in use yet: etcd may be empty."""
        return self.restore is Phase.PREPARING

    @property
    def answers(self) -> bool:
        """Whether clients reach the API: an API server and the relay are ready."""
        return any(status.ready for status in self.of("kube-apiserver")) and all(
            status.ready for status in self.of("relay")
        )


def downgrade(serving: Iterable[str], version: str) -> Blocked | None:
    """Why a version is not rolled out: a newer API server already serves."""
    newer = [other for other in serving if Version.parse(other) > Version.parse(version)]
    if not newer:
        return None
    return Blocked(
        Reason.INVALID_CONFIGURATION,
        f"spec.version: {version} is older than {newer[0]}, which runs already",
        f"write {newer[0]} or a later version",
    )


@dataclass(frozen=True, slots=True)
class AgentsEndpoint:
    """Where agents of konnectivity find their servers."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the API of a control plane answers."""

    address: str
    """The address that its backend keeps for the control plane. It never changes."""
    host: str
    port: int
    agents: "AgentsEndpoint | None" = None
    """Where agents of konnectivity connect, if there are any."""

    @property
    def authority(self) -> str:
        """Host and port as they stand in a URL, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL of the API."""
        return f"https://{self.authority}"


@dataclass(frozen=True, slots=True)
class Remains:
    """The remaining objects of a control plane that stops."""

    clients: bool
    """Whether API servers, or the controllers that use them, exist."""
    others: bool
    """Whether anything else exists that runs or has an address."""

    @property
    def any(self) -> bool:
        """Whether anything exists that is not data."""
        return self.clients or self.others
