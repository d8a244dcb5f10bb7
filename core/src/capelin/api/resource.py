"""Where a kind lives in the Kubernetes API."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
        """What stands in an object's `apiVersion`."""
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


# The first ending that fits; Cluster API derives names of CRDs so and looks for no others.
_PLURALS = (
    *(("data", "data"), ("information", "information")),
    *(("ay", "ays"), ("ey", "eys"), ("oy", "oys"), ("uy", "uys"), ("y", "ies")),
    *(("ss", "sses"), ("us", "uses"), ("s", "s"), ("ch", "ches"), ("sh", "shes"), ("x", "xes")),
    *(("io", "ios"), ("ano", "anos"), ("lo", "los"), ("to", "tos"), ("oo", "oos"), ("o", "oes")),
    *(("ez", "ezzes"), ("iz", "izzes"), ("tz", "tzes"), ("zz", "zzes")),
    *(("fe", "ves"), ("lf", "lves"), ("rf", "rves"), ("eaf", "eaves"), ("oaf", "oaves")),
)


def plural_of(kind: str) -> str:
    """The plural that Cluster API expects in a CRD's name; not of words as index or person."""
    word = kind.lower()
    for singular, plural in _PLURALS:
        if word.endswith(singular):
            return word.removesuffix(singular) + plural
    return f"{word}s"
