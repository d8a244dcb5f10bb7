"""The base of our Kubernetes types, CRD generation, and typed views of the kinds that we read."""

from capelin.api.meta import Condition, MicroTime, ObjectMeta, OwnerReference, Time
from capelin.api.model import Model, wire_name
from capelin.api.objects import (
    BaseObject,
    Column,
    Definition,
    Object,
    Scale,
    Unstructured,
    kind,
    resource_of,
)
from capelin.api.resource import Resource, plural_of

__all__ = [
    "BaseObject",
    "Column",
    "Condition",
    "Definition",
    "MicroTime",
    "Model",
    "Object",
    "ObjectMeta",
    "OwnerReference",
    "Resource",
    "Scale",
    "Time",
    "Unstructured",
    "kind",
    "plural_of",
    "resource_of",
    "wire_name",
]
