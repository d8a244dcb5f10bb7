"""Changing the templates of a cluster: patches, variables, and handlers that stay as released."""

from capelin.runtime.topology.drafts import UnexpectedTemplateError
from capelin.runtime.topology.mutations import Mutations, NoVariables
from capelin.runtime.topology.patches import (
    PatchError,
    apply_json_patch,
    apply_merge_patch,
    json_patch,
    merge_patch,
)
from capelin.runtime.topology.released import changed_answers, record_answers
from capelin.runtime.topology.schemas import VariableSchemaError, variable_schemas
from capelin.runtime.topology.templates import (
    Place,
    Template,
    Where,
    control_plane,
    infrastructure_cluster,
    machine_deployments,
    machine_pools,
)
from capelin.runtime.topology.variables import read_variables

__all__ = [
    "Mutations",
    "NoVariables",
    "PatchError",
    "Place",
    "Template",
    "UnexpectedTemplateError",
    "VariableSchemaError",
    "Where",
    "apply_json_patch",
    "apply_merge_patch",
    "changed_answers",
    "control_plane",
    "infrastructure_cluster",
    "json_patch",
    "machine_deployments",
    "machine_pools",
    "merge_patch",
    "read_variables",
    "record_answers",
    "variable_schemas",
]
