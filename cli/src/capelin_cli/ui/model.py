"""The JSON that the page shows, for other programs too."""

from dataclasses import dataclass
from typing import Literal

from capelin.api import Model, Time

from capelin_cli.explain.model import Explanation
from capelin_cli.status.cluster_tree import State

API_VERSION = "ui.capelin.cluster.x-k8s.io/v1alpha1"

LaneKind = Literal["Cluster", "Hook", "ControlPlane", "Workers", "Machine"]


class Row(Model):
    """An object of a cluster's tree."""

    title: str
    state: State
    counts: str = ""
    """Ready and desired replicas, such as `2/3`."""
    version: str = ""
    message: str = ""
    children: list["Row"] = []


class MachineSet(Model):
    """Machines by columns: the same index is the same Machine."""

    title: str
    """`ControlPlane`, or the workers, such as `MachinePool/workers`."""
    names: list[str]
    states: list[State]
    phases: list[str]
    versions: list[str]
    messages: dict[str, str] = {}
    """Messages of Machines that are not as desired, by name."""
    left_out: int = 0
    """Machines beyond the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A time during which something stayed the same. Thousands of them stay in memory."""

    start: Time
    end: Time | None = None
    """Unset if it still lasts."""
    state: State
    text: str


class Lane(Model):
    """The spans of one hook, object or Machine, in their order."""

    kind: LaneKind
    title: str
    spans: list[Span]


class MachineCounts(Model):
    """Numbers of Machines by state."""

    good: int = 0
    waiting: int = 0
    bad: int = 0
    unknown: int = 0
    asleep: int = 0


class ClusterSummary(Model):
    """A cluster in the list of all clusters."""

    namespace: str
    name: str
    cluster_class: str = ""
    """Namespace and name of its ClusterClass."""
    version: str = ""
    state: State
    message: str = ""
    paused: bool = False
    machines: MachineCounts = MachineCounts()
    explanation: Explanation | None = None
    """Why it waits. Unset if it does not, or if this is not known yet."""


class ClusterView(Model):
    """Everything about one cluster."""

    api_version: str = API_VERSION
    kind: Literal["ClusterView"] = "ClusterView"
    summary: ClusterSummary
    tree: Row
    machines: list[MachineSet]
    timeline: list[Lane]


class Value(Model):
    """A value, and the clusters that have it."""

    text: str
    clusters: list[str]


class Difference(Model):
    """A field that is not the same in all clusters of a class."""

    field: str
    values: list[Value]
    """The most common one first."""


class ClassView(Model):
    """The differences between the clusters of one ClusterClass."""

    api_version: str = API_VERSION
    kind: Literal["ClassView"] = "ClassView"
    name: str
    """Namespace and name."""
    clusters: list[str]
    differences: list[Difference]
    same: int
    """Number of fields that all clusters have in common."""


class Changes(Model):
    """The clusters that changed since the last message of a stream."""

    api_version: str = API_VERSION
    kind: Literal["Changes"] = "Changes"
    now: Time
    clusters: list[ClusterSummary] = []
    removed: list[str] = []
    """Namespace and name of each cluster that no longer exists."""
    total: int
    loading: bool = False
    """Whether the first reading has not ended."""
    trouble: str = ""
    """Why the data may be old."""
