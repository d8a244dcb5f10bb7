"""Whole Kubernetes objects: their common fields, and the decorator that makes a class a kind."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from pydantic import Field

from capelin.api.meta import ObjectMeta
from capelin.api.model import Model

SpecT = TypeVar("SpecT")
StatusT = TypeVar("StatusT")
ObjectT = TypeVar("ObjectT", bound="BaseObject")


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind's group, version and names, and the paths that follow from them."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The value of `apiVersion` in objects of the kind."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def read(self, data: Mapping[str, Any], /) -> dict[str, Any]:
        """An object of the kind as plain JSON. A class with `@kind` has a typed `read`."""
        return dict(data)

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """The URL path of the collection, of one object in it, or of an object's subresource."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace is not None and self.namespaced:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        if subresource is not None:
            parts.append(subresource)
        return "/" + "/".join(parts)


# The first matching ending applies. Cluster API derives CRD names from the same list.
_PLURALS = (
    *(("data", "data"), ("information", "information")),
    *(("ay", "ays"), ("ey", "eys"), ("oy", "oys"), ("uy", "uys"), ("y", "ies")),
    *(("ss", "sses"), ("us", "uses"), ("s", "s"), ("ch", "ches"), ("sh", "shes"), ("x", "xes")),
    *(("io", "ios"), ("ano", "anos"), ("lo", "los"), ("to", "tos"), ("oo", "oos"), ("o", "oes")),
    *(("ez", "ezzes"), ("iz", "izzes"), ("tz", "tzes"), ("zz", "zzes")),
    *(("fe", "ves"), ("lf", "lves"), ("rf", "rves"), ("eaf", "eaves"), ("oaf", "oaves")),
)


def plural_of(kind: str) -> str:
    """The plural that Cluster API expects in a CRD's name. Wrong for words such as index."""
    word = kind.lower()
    for singular, plural in _PLURALS:
        if word.endswith(singular):
            return word.removesuffix(singular) + plural
    return f"{word}s"


CONTRACTS = ("v1beta1", "v1beta2")
"""Versions of Cluster API's contracts."""

Unstructured = dict[str, Any]
"""An object of a kind that is only known at run time, as JSON."""


class _NoKind:
    """Explains on access that a class lacks the decorator `@kind`."""

    def __get__(self, obj: object, owner: type) -> Any:
        raise TypeError(
            f"{owner.__name__} is not a kind: decorate it with @kind(group=..., version=...)"
        )


class BaseObject(Model):
    """The base of all kinds. `@kind` makes a class a kind."""

    resource: ClassVar[Resource] = cast("Resource", _NoKind())
    definition: ClassVar["Definition"] = cast("Definition", _NoKind())

    metadata: ObjectMeta = Field(default_factory=ObjectMeta)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str | None:
        """`None` for cluster-scoped objects."""
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        """Empty until the API server has stored the object."""
        return self.metadata.uid

    def dump(self) -> dict[str, Any]:
        """The object in wire format, with `apiVersion` and `kind`."""
        return {
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            **super().dump(),
        }

    @classmethod
    def of(cls, name: str, namespace: str | None = None, **fields: Any) -> Self:
        """A new object by name: `Secret.of("ca", "default", data=...)`."""
        metadata = (
            ObjectMeta(name=name)
            if namespace is None
            else ObjectMeta(name=name, namespace=namespace)
        )
        return cls(metadata=metadata, **fields)


class Object(BaseObject, Generic[SpecT, StatusT]):
    """An object with a spec that users write and a status that controllers write."""

    spec: SpecT
    status: StatusT | None = None

    @classmethod
    def of(  # pyright: ignore[reportIncompatibleMethodOverride] - takes fewer fields, with types
        cls,
        name: str,
        namespace: str | None = None,
        *,
        spec: SpecT,
        status: StatusT | None = None,
    ) -> Self:
        """A new object by name: `School.of("a", "default", spec=SchoolSpec(size=3))`."""
        fields = {"spec": spec} if status is None else {"spec": spec, "status": status}
        return super().of(name, namespace, **fields)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that `kubectl get` prints."""

    name: str
    path: str
    type: str = "string"
    description: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Scale:
    """The paths behind the scale subresource."""

    selector: str | None = None
    spec_replicas: str = ".spec.replicas"
    status_replicas: str = ".status.replicas"


@dataclass(frozen=True, slots=True)
class Definition:
    """Properties of a kind's CRD besides its schema."""

    contracts: tuple[str, ...] = ()
    """Versions of Cluster API's contracts that the kind fulfils: `v1beta1`, `v1beta2`."""
    scale: Scale | None = None
    """The scale subresource, if the kind has one."""
    columns: tuple[Column, ...] = ()
    """Columns of `kubectl get`."""
    selectable: tuple[str, ...] = ()
    """Fields by which `list` can select, such as `spec.size`: at most eight strings, integers or
    booleans. Kubernetes has this since v1.32."""
    short_names: tuple[str, ...] = ()
    """Short names for kubectl."""
    categories: tuple[str, ...] = ()
    """Groups of kinds for kubectl, such as `cluster-api`."""
    labels: Mapping[str, str] | None = None
    """Further labels of the CRD."""
    served: bool = True
    """Whether clients can use this version. One that is not served can still be converted."""
    deprecated: str = ""
    """The warning for clients that use this version, if it is deprecated."""

    def __post_init__(self) -> None:
        if not set(self.contracts) <= set(CONTRACTS):
            known = " and ".join(CONTRACTS)
            raise ValueError(f"contracts={self.contracts!r}: must be a tuple of {known}")


def kind(
    *,
    group: str,
    version: str,
    name: str | None = None,
    plural: str | None = None,
    namespaced: bool = True,
    definition: Definition | None = None,
) -> Callable[[type[ObjectT]], type[ObjectT]]:
    """Make a class a Kubernetes kind, with the name of the class unless `name` is set."""

    def decorate(cls: type[ObjectT]) -> type[ObjectT]:
        kind_name = name or cls.__name__
        cls.resource = Resource(
            group, version, kind_name, plural or plural_of(kind_name), namespaced
        )
        cls.definition = definition or Definition()
        return cls

    return decorate


def resource_of(manifest: Mapping[str, Any], plural: str | None = None) -> Resource:
    """The resource of an unstructured namespaced object, from its `apiVersion` and `kind`."""
    group, _, version = str(manifest["apiVersion"]).rpartition("/")
    kind_name = cast("str", manifest["kind"])
    return Resource(group, version, kind_name, plural or plural_of(kind_name))
