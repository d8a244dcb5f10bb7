"""Changes templates of a cluster: patches, variables, and tests that guard released handlers."""

from capelin.json_patches import PatchError, apply_json_patch, apply_merge_patch
from capelin.runtime.topology.draft import UnexpectedTemplateError
from capelin.runtime.topology.golden import changed_patches, record_patches
from capelin.runtime.topology.mutations import Mutations, NoVariables
from capelin.runtime.topology.patches import (
    UnreadablePatchError,
    apply_patch,
    is_object,
    json_patch,
    merge_patch,
    same,
)
from capelin.runtime.topology.templates import (
    Builtins,
    Selector,
    Template,
    TemplateRef,
    control_plane,
    infrastructure_cluster,
    machine_deployments,
    machine_pools,
)
from capelin.runtime.topology.variables import VariableSchemaError, read_variables, variable_schemas

__all__ = [
    "Builtins",
    "Mutations",
    "NoVariables",
    "PatchError",
    "Selector",
    "Template",
    "TemplateRef",
    "UnexpectedTemplateError",
    "UnreadablePatchError",
    "VariableSchemaError",
    "apply_json_patch",
    "apply_merge_patch",
    "apply_patch",
    "changed_patches",
    "control_plane",
    "infrastructure_cluster",
    "is_object",
    "json_patch",
    "machine_deployments",
    "machine_pools",
    "merge_patch",
    "read_variables",
    "record_patches",
    "same",
    "variable_schemas",
]
