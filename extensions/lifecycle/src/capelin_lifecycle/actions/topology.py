"""The hooks that compute: patches, checks of topologies, and upgrade plans.

All are pure: the same request and policies give the same answer. Another patch would roll out
machines, so the meaning of a version of patches never changes (`generate-patches-v1`).
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final, cast

import orjson
from capelin.api import Unstructured
from capelin.runtime import Failure
from capelin.runtime.topology import (
    Builtins,
    TemplateRef,
    control_plane,
    infrastructure_cluster,
    json_patch,
)
from capelin.runtime.v1alpha1 import (
    DiscoverVariablesResponse,
    GeneratePatchesRequest,
    GeneratePatchesResponse,
    GeneratePatchesResponseItem,
    GenerateUpgradePlanRequest,
    GenerateUpgradePlanResponse,
    HolderReference,
    UpgradeStep,
    ValidateTopologyRequest,
    Variable,
)
from capelin.versions import Version

from capelin_lifecycle.actions.validate import TOPOLOGY_VARIABLES, broken_rules, evaluated
from capelin_lifecycle.api.actions import PatchOperation, PatchVersion, TemplatePatch, UpgradePlan
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.sandbox.expressions import ExpressionError
from capelin_lifecycle.sandbox.pool import SANDBOX, Owner, Question

PATCH_VARIABLES: Final = ("object", "variables")
_BUILTIN: Final = "builtin"
_MAX_PATCHES: Final = 16 * 2**20
"""How large the patches of one response may be, in bytes: all hooks share the process's memory."""


def patches_problems(policy: KnownPolicy) -> list[str]:
    """Operations whose value is missing."""
    return [
        f"{place}: Set and Append need a value, Remove has none"
        for where, template in _templates(policy)
        for place, operation in _operations(where, template)
        if (operation.op == "Remove")
        == (operation.value_from is not None or "value" in operation.model_fields_set)
    ]


def patches_expressions(policy: KnownPolicy) -> dict[str, Question]:
    templates = _templates(policy)
    return {
        **{
            f"{where}.when": Question(template.when, PATCH_VARIABLES, boolean=True)
            for where, template in templates
            if template.when is not None
        },
        **{
            f"{place}.valueFrom": Question(operation.value_from, PATCH_VARIABLES)
            for where, template in templates
            for place, operation in _operations(where, template)
            if operation.value_from is not None
        },
    }


def _templates(policy: KnownPolicy) -> list[tuple[str, TemplatePatch]]:
    patches = policy.spec.action.patches
    return [
        (f"version {version.name}, templates[{number}]", template)
        for version in (patches.versions if patches is not None else [])
        for number, template in enumerate(version.templates)
    ]


def _operations(where: str, template: TemplatePatch) -> list[tuple[str, PatchOperation]]:
    return [(f"{where}.operations[{n}]", each) for n, each in enumerate(template.operations)]


# Patches


def discovered_variables(version: PatchVersion) -> DiscoverVariablesResponse:
    """The variables of a version of patches, in the form that a ClusterClass uses."""
    return DiscoverVariablesResponse(
        status="Success",
        variables=[
            {
                "name": variable.name,
                "required": variable.required,
                "schema": {"openAPIV3Schema": variable.schema_},
            }
            for variable in version.variables
        ],
    )


async def generated_patches(
    policy: KnownPolicy, version: PatchVersion, request: GeneratePatchesRequest
) -> GeneratePatchesResponse:
    """A patch for each template that the version changes.

    Raises:
        Failure: an expression has no value, a path leads nowhere, or the patches are too large.
    """
    items: list[GeneratePatchesResponseItem] = []
    problems: set[str] = set()
    size = 0
    for item in request.items:
        variables = _variables(request.variables, item.variables)
        try:
            owner = policy.owner(item.holder_reference.namespace)
            changed = await _changed(owner, version, item.holder_reference, item.object, variables)
        except (ExpressionError, PathError) as error:
            problems.add(f"{item.object.get('kind')} of {item.holder_reference.kind}: {error}")
            continue
        patch = json_patch(item.object, changed)
        if patch:
            content = orjson.dumps(patch)
            size += len(content)
            if size > _MAX_PATCHES:
                raise Failure(
                    f"the patches of all templates have more than {_MAX_PATCHES // 2**20} MiB"
                )
            items.append(
                GeneratePatchesResponseItem(uid=item.uid, patch_type="JSONPatch", patch=content)
            )
    if problems:
        # Cluster API sends the templates in another order every time.
        raise Failure("; ".join(sorted(problems)))
    return GeneratePatchesResponse(status="Success", items=items)


def _variables(common: Sequence[Variable], own: Sequence[Variable]) -> dict[str, Any]:
    """The variables of a template by name: its own over those of the Cluster."""
    merged = {variable.name: variable.value for variable in (*common, *own)}
    builtin: dict[str, Any] = {}
    for variable in (*common, *own):
        value: object = variable.value
        if variable.name == _BUILTIN and isinstance(value, dict):
            builtin |= cast("dict[str, Any]", value)
    return {**merged, _BUILTIN: builtin}


async def _changed(
    owner: Owner,
    version: PatchVersion,
    holder: HolderReference,
    template: Unstructured,
    variables: dict[str, Any],
) -> Unstructured:
    changed = template
    for patch in version.templates:
        if not _is_for(patch, holder, template, variables):
            continue
        if patch.when is not None:
            question = Question(patch.when, PATCH_VARIABLES, boolean=True)
            given = {"object": changed, "variables": variables}
            if not await SANDBOX.value(owner, question, given):
                continue
        if changed is template:
            changed = deepcopy(template)
        for operation in patch.operations:
            value = operation.value
            if operation.value_from is not None:
                question = Question(operation.value_from, PATCH_VARIABLES)
                given = {"object": changed, "variables": variables}
                value = await SANDBOX.value(owner, question, given)
            _operate(operation, changed, value)
    return changed


def _is_for(
    patch: TemplatePatch,
    holder: HolderReference,
    template: Unstructured,
    variables: Mapping[str, Any],
) -> bool:
    if template.get("kind") != patch.kind:
        return False
    if patch.api_version not in (None, template.get("apiVersion")):
        return False
    if patch.used_by and _user(holder) not in patch.used_by:
        return False
    if not patch.classes:
        return True
    builtin = cast("dict[str, Any]", variables[_BUILTIN])
    worker: Any = builtin.get("machineDeployment") or builtin.get("machinePool") or {}
    name = str(cast("dict[str, Any]", worker).get("class", ""))
    return any(fnmatchcase(name, pattern) for pattern in patch.classes)


def _user(holder: HolderReference) -> str:
    ref = TemplateRef(holder, Builtins(None))
    if infrastructure_cluster(ref):
        return "InfrastructureCluster"
    if control_plane(ref):
        return "ControlPlane"
    return f"{holder.kind}s"


class PathError(ValueError):
    """A path leads nowhere in a template."""


def _operate(operation: PatchOperation, template: Unstructured, value: Any) -> None:
    *parents, last = [
        part.replace("~1", "/").replace("~0", "~") for part in operation.path.split("/")[1:]
    ]
    is_removal = operation.op == "Remove"
    try:
        container: Any = template
        for part in parents:
            container = _child(container, part, None if is_removal else dict)
        match operation.op:
            case "Set":
                container[_key(container, last)] = value
            case "Append":
                items = _child(container, last, list)
                if not isinstance(items, list):
                    raise PathError(f"{operation.path} is not a list")
                cast("list[Any]", items).append(value)
            case "Remove":
                del container[_key(container, last)]
    except LookupError as error:
        # The value to remove may be missing.
        if not is_removal:
            text = f"{operation.path} leads to {error.args[0]!r}, which does not exist"
            raise PathError(text) from None


def _child(container: Any, part: str, empty: Callable[[], Any] | None) -> Any:
    """A value in an object or a list. One that an object lacks is added if there is an `empty`."""
    key, children = _key(container, part), cast("dict[Any, Any]", container)
    if empty is not None and isinstance(container, dict) and children.get(key) is None:
        children[key] = empty()
    return children[key]


def _key(container: Any, part: str) -> Any:
    """The key in an object, or the index in a list.

    Raises:
        LookupError: the list has no such index, or it is neither.
    """
    if isinstance(container, dict):
        return part
    if isinstance(container, list) and part.isdecimal():
        index = int(part)
        if index < len(cast("list[Any]", container)):
            return index
    raise LookupError(part)


# Checks of topologies


async def check_topology(policy: KnownPolicy, request: ValidateTopologyRequest) -> None:
    """Check the rules of a policy.

    Raises:
        Failure: rules do not hold.
    """
    validate = policy.spec.action.validate_
    if validate is None:
        return
    templates = [
        {
            "object": item.object,
            "usedBy": _user(item.holder_reference),
            "variables": _variables(request.variables, item.variables),
        }
        for item in request.items
    ]
    variables = {"templates": templates, "variables": _variables(request.variables, ())}
    namespaces = (item.holder_reference.namespace for item in request.items)
    owner = policy.owner(next(namespaces, ""))
    try:
        values = await evaluated(validate, TOPOLOGY_VARIABLES, variables, owner)
    except ExpressionError as error:
        raise Failure(f"policy {policy.name}: {error}") from None
    if broken := broken_rules(validate, values):
        raise Failure(f"policy {policy.name}: {'; '.join(broken)}")


# Upgrade plans


def upgrade_plan(
    plan: UpgradePlan, request: GenerateUpgradePlanRequest, now: datetime
) -> GenerateUpgradePlanResponse:
    """The versions that an upgrade goes through.

    Raises:
        Failure: the upgrade is not allowed, or not now.
    """
    current = request.from_control_plane_kubernetes_version
    workers = request.from_workers_kubernetes_version
    if workers in {"", current}:
        # An upgrade that has begun continues.
        for freeze in plan.freezes:
            if freeze.start <= now < freeze.end:
                reason = f": {freeze.reason}" if freeze.reason else ""
                raise Failure(f"no upgrade starts before {freeze.end:%Y-%m-%d %H:%M} UTC{reason}")
    steps = upgrade_steps(plan.versions, current, request.to_kubernetes_version)
    return GenerateUpgradePlanResponse(
        status="Success", control_plane_upgrades=[UpgradeStep(version=step) for step in steps]
    )


def upgrade_steps(allowed: Sequence[str], current: str, target: str) -> list[str]:
    """The newest allowed version of each minor version on the way, and the target.

    Raises:
        Failure: the target, or a minor version on the way, is not allowed.
    """
    versions = sorted(Version.parse(text) for text in allowed)
    start, end = Version.parse(current), Version.parse(target)
    if start == end:
        # Only workers need the upgrade. Cluster API rejects further steps of the control plane.
        return []
    if end not in versions:
        raise Failure(f"{target} is not allowed (allowed: {', '.join(map(str, versions))})")
    steps: list[str] = []
    for minor in range(start.minor + 1, end.minor):
        candidates = [version for version in versions if version.release == (end.major, minor)]
        if not candidates:
            raise Failure(f"no version v{end.major}.{minor} is allowed on the way to {target}")
        steps.append(str(candidates[-1]))
    return [*steps, str(end)]
