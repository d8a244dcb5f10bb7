"""The objects that explain a Cluster, as one reading found them, and findings. Pure."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, cast

from capelin.api import Resource, Time, Unstructured
from capelin.contract import PAUSED_ANNOTATION, find_condition
from pydantic import ValidationError

from capelin_cli.explain.model import Cause, Reference
from capelin_cli.status.cluster_tree import ClusterObject, StatusCondition, state_of
from capelin_cli.status.condition_messages import HookReason, one_line

# The best explanations first: conditions that are true during work, then those that should be true.
ACTIVITIES: Final = ("Deleting", "RollingOut", "Remediating", "ScalingUp", "ScalingDown")
SUMMARIES: Final = ("Available", "Ready")
YOU: Final = "you"


class TimedCondition(StatusCondition):
    """A condition, and when it last changed."""

    last_transition_time: Time | None = None

    @property
    def text(self) -> str:
        """Its message in one line."""
        return one_line(self.message) or self.reason or f"{self.type} is {self.status}"

    @property
    def since(self) -> datetime | None:
        """When it last changed."""
        return self.last_transition_time

    @property
    def evidence(self) -> str:
        """The field that contains it."""
        return f"status.conditions[{self.type}]: {self.status}" + (
            f", {self.reason}" if self.reason else ""
        )


@dataclass(frozen=True, slots=True)
class Warned:
    """An event of type Warning."""

    text: str
    since: datetime | None = None
    evidence: str = "event"


Observation = TimedCondition | Warned
"""A message about an object."""


def at(data: object, *path: str) -> object:
    """A field of an object of any kind. None if it, or a field around it, is missing."""
    for name in path:
        if not isinstance(data, Mapping):
            return None
        data = cast("Mapping[str, object]", data).get(name)
    return data


def text_at(data: object, *path: str) -> str:
    """A field with text. Empty if it is missing, or has another type."""
    found = at(data, *path)
    return found if isinstance(found, str) else ""


def group_of(api_version: str) -> str:
    """The group of an `apiVersion`."""
    return api_version.partition("/")[0] if "/" in api_version else ""


def typed(resource: Resource, raw: Unstructured) -> Unstructured:
    """An object of a list, which has neither `apiVersion` nor `kind`."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **raw}


def reference_of(obj: Unstructured) -> Reference:
    """The identity of an object."""
    return Reference(
        group=group_of(text_at(obj, "apiVersion")),
        kind=text_at(obj, "kind"),
        name=text_at(obj, "metadata", "name"),
        namespace=text_at(obj, "metadata", "namespace") or None,
    )


def labels_of(obj: Unstructured) -> Mapping[str, str]:
    return cast("dict[str, str]", at(obj, "metadata", "labels") or {})


def named_in(holder: Unstructured, *path: str) -> Reference | None:
    """The object in the same namespace that a reference of Cluster API's contract names."""
    return _named(at(holder, *path), holder)


def references_in(obj: Unstructured) -> Iterator[tuple[str, Reference]]:
    """The objects that a spec names by group, kind and name, each with the path of the field.

    Not recursive, since users may nest a spec deeply.
    """
    left = deque[tuple[str, object]]([("spec", obj.get("spec"))])
    while left:
        path, value = left.popleft()
        if isinstance(value, list):
            items = enumerate(cast("list[object]", value))
            left += [(f"{path}[{number}]", item) for number, item in items]
        elif isinstance(value, dict):
            reference = _named(cast("object", value), obj)
            if reference is not None and reference.group:
                yield path, reference
            inner = cast("dict[str, object]", value).items()
            left += [(f"{path}.{name}", item) for name, item in inner]


def _named(value: object, holder: Unstructured) -> Reference | None:
    kind, name = text_at(value, "kind"), text_at(value, "name")
    if not (kind and name):
        return None
    group = text_at(value, "apiGroup") or group_of(text_at(value, "apiVersion"))
    namespace = text_at(holder, "metadata", "namespace") or None
    return Reference(group=group, kind=kind, name=name, namespace=namespace)


@dataclass(frozen=True)
class Subject:
    """An object of any kind."""

    raw: Unstructured

    @property
    def reference(self) -> Reference:
        return reference_of(self.raw)

    @property
    def annotations(self) -> Mapping[str, str]:
        return cast("dict[str, str]", at(self.raw, "metadata", "annotations") or {})

    @property
    def labels(self) -> Mapping[str, str]:
        return labels_of(self.raw)

    @property
    def is_paused(self) -> bool:
        return PAUSED_ANNOTATION in self.annotations

    @property
    def is_deleting(self) -> bool:
        return bool(text_at(self.raw, "metadata", "deletionTimestamp"))

    @property
    def finalizers(self) -> list[str]:
        listed = at(self.raw, "metadata", "finalizers")
        names = cast("list[object]", listed) if isinstance(listed, list) else []
        return [name for name in names if isinstance(name, str)]

    @property
    def is_observed(self) -> bool:
        """Whether its controller has read its present spec."""
        observed = at(self.raw, "status", "observedGeneration")
        return observed == at(self.raw, "metadata", "generation")

    @property
    def is_settled(self) -> bool:
        """Whether it is as desired, as far as its fields show it."""
        if self.is_deleting:
            return False
        try:
            return state_of(ClusterObject.read(self.raw))[0] in {"good", "asleep"}
        except ValidationError:
            return False

    @property
    def conditions(self) -> list[TimedCondition]:
        """The readable conditions, in their order."""
        return self._conditions("status", "conditions")

    @property
    def former_conditions(self) -> list[TimedCondition]:
        """Those of the former contract. Only they have Cluster API's failures to create objects."""
        return self._conditions("status", "deprecated", "v1beta1", "conditions")

    def _conditions(self, *path: str) -> list[TimedCondition]:
        found: list[TimedCondition] = []
        listed = at(self.raw, *path)
        for each in cast("list[Any]", listed) if isinstance(listed, list) else []:
            try:
                found.append(TimedCondition.read(each))
            except ValidationError:
                continue
        return found

    def condition(self, type_: str, status: str = "") -> TimedCondition | None:
        """The condition of a type, optionally only with this status."""
        found = find_condition(self.conditions, type_)
        return found if found and status in {"", found.status} else None

    def unmet(self, type_: str) -> TimedCondition | None:
        """The condition of a type that exists and is not true."""
        found = self.condition(type_)
        return found if found and found.status != "True" else None

    def refers_to(self, *path: str) -> Reference | None:
        """The object in the same namespace that a reference of Cluster API's contract names."""
        return named_in(self.raw, *path)

    def owns(self, other: "Subject") -> bool:
        """Whether it is an owner of another object."""
        owners = at(other.raw, "metadata", "ownerReferences")
        uid = text_at(self.raw, "metadata", "uid")
        listed = cast("list[object]", owners) if isinstance(owners, list) else []
        return bool(uid) and any(text_at(owner, "uid") == uid for owner in listed)


@dataclass(frozen=True, slots=True)
class Controller:
    """A controller of the management cluster, and whether it runs."""

    label: str
    """Its name for clusterctl, such as `cluster-api` or `bootstrap-kubeadm`."""
    reference: Reference
    """Its Deployment, or its process in an environment."""
    runs: bool
    text: str = ""
    """Why it does not run."""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """One reading."""

    cluster: Subject
    waits: str | None
    """The reason that all commands show. None if the Cluster is ready."""
    objects: Mapping[Reference, Subject] = field(default_factory=dict[Reference, Subject])
    missing: frozenset[Reference] = frozenset()
    """Objects that others refer to, and that do not exist."""
    unserved: frozenset[Reference] = frozenset()
    """Those whose kinds the API server does not have."""
    controllers: Sequence[Controller] = ()
    labels: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """The controller of each kind, by group and kind."""
    hooks: Sequence[HookReason] = ()
    blocked: frozenset[str] = frozenset()
    """The hooks that block the Cluster."""
    warnings: Mapping[Reference, Warned] = field(default_factory=dict[Reference, Warned])
    """The newest event of type Warning of an object."""

    def lacks(self, reference: Reference) -> bool:
        """Whether an object that others refer to does not exist."""
        return reference in self.missing or reference in self.unserved

    def of(self, kind: str) -> Iterator[Subject]:
        """The objects of a kind, by name."""
        found = (subject for key, subject in self.objects.items() if key.kind == kind)
        return iter(sorted(found, key=lambda subject: subject.reference.name))

    def controller_of(self, reference: Reference) -> Controller | None:
        """The controller of an object's kind, if it is known."""
        label = self.labels.get((reference.group, reference.kind), "")
        return next((each for each in self.controllers if each.label == label), None)

    def responsible_for(self, reference: Reference) -> str:
        """The controller of an object, in words."""
        label = self.labels.get((reference.group, reference.kind))
        return label or f"the controller of {reference.kind}"


@dataclass(frozen=True, slots=True)
class Finding:
    """Why an object is not as desired."""

    cause: Cause
    """The rule's name, if no other object explains more."""
    text: str
    responsible: str
    evidence: str = ""
    since: datetime | None = None
    command: str = ""
    about: Reference | None = None
    """The object that causes it, if that is another one."""
    because: Sequence[Reference] = ()
    """Objects that may explain more."""


Rule = Callable[[Subject, Facts], Iterable[Finding]]


def reported(
    observed: Observation,
    cause: Cause,
    responsible: str,
    *,
    text: str = "",
    command: str = "",
    about: Reference | None = None,
    because: Sequence[Reference] = (),
) -> Finding:
    """A finding whose evidence is a condition or an event.

    Without a command, it is the one that shows the object which causes it.
    """
    return Finding(
        cause,
        text or observed.text,
        responsible,
        observed.evidence,
        observed.since,
        command or (describe(about) if about else ""),
        about,
        because,
    )


def waits(reference: Reference, responsible: str, observed: Observation | None) -> Finding:
    """An object waits for another one, which may explain more."""
    return Finding(
        "Waits",
        observed.text if observed else f"{reference} is not as desired",
        responsible,
        observed.evidence if observed else "",
        observed.since if observed else None,
        describe(reference),
        because=[reference],
    )


def describe(reference: Reference) -> str:
    """The command that shows an object with its events."""
    return f"kubectl describe {reference.words}"
