"""The base of our Kubernetes types, CRD generation, and typed views of the kinds that we read."""

from capelin.api.crd import SchemaError, crd
from capelin.api.meta import Condition, Conditions, MicroTime, ObjectMeta, OwnerReference, Time
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
from capelin.api.rules import immutable, major, minor, rule
from capelin.api.templates import Template, TemplateMetadata, immutable_templates

__all__ = [
    "BaseObject",
    "Column",
    "Condition",
    "Conditions",
    "Definition",
    "MicroTime",
    "Model",
    "Object",
    "ObjectMeta",
    "OwnerReference",
    "Resource",
    "Scale",
    "SchemaError",
    "Template",
    "TemplateMetadata",
    "Time",
    "Unstructured",
    "crd",
    "immutable",
    "immutable_templates",
    "kind",
    "major",
    "minor",
    "plural_of",
    "resource_of",
    "rule",
    "wire_name",
]
