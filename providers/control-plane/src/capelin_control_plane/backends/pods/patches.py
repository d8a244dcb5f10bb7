"""Strategic merge patches and JSON patches of generated objects. Pure.

A user who may write a control plane has the provider write objects with its own permissions. So
`patchable.py` lists the fields that patches may change.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from capelin.api import Unstructured
from capelin.json_patches import apply_json_patch

from capelin_control_plane.api.pod_settings import Patch
from capelin_control_plane.backends.pods.patchable import patch_problem
from capelin_control_plane.desired.control_plane import Component, InvalidSpecError

_MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "ports": "port",
}
"""By list, the key that merges its items. Other lists are replaced, like in the API server."""


def patched(
    manifest: Unstructured, component: Component | None, patches: Sequence[Patch]
) -> Unstructured:
    """An object with the patches that are for it.

    Raises:
        InvalidSpecError: a patch cannot be applied, or changes a field that it may not change.
    """
    result = manifest
    for index, patch in enumerate(patches):
        target = patch.target
        if target.kind != manifest["kind"] or target.component not in {None, component}:
            continue
        field = f"spec.pods.patches[{index}]"
        try:
            result = _applied(result, patch)
            problem = patch_problem(manifest, result)
        except (AttributeError, LookupError, ValueError, TypeError) as error:
            raise InvalidSpecError(f"{field} does not fit the {target.kind}: {error}") from error
        if problem:
            raise InvalidSpecError(f"{field}: {problem}")
    return result


def _applied(manifest: Unstructured, patch: Patch) -> Unstructured:
    if patch.merge is not None:
        return _merged(manifest, patch.merge)
    operations = patch.json_ or []
    for path in (operation.path for operation in operations):
        if not path.startswith("/"):
            raise ValueError(f"the path {path!r} does not begin with a slash")
    return apply_json_patch(
        manifest,
        [{"op": step.op, "path": step.path, "value": step.value} for step in operations],
    )


def _merged(present: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(present)
    if change.get("$patch") == "replace":
        return {key: value for key, value in change.items() if key != "$patch"}
    for key, value in change.items():
        before = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(before, dict):
            result[key] = _merged(cast("Mapping[str, Any]", before), cast("Any", value))
        elif isinstance(value, list) and isinstance(before, list) and key in _MERGE_KEYS:
            result[key] = _merged_list(
                cast("list[Any]", before), cast("list[Any]", value), _MERGE_KEYS[key]
            )
        else:
            result[key] = value
    return result


def _merged_list(present: list[Any], change: list[Any], key: str) -> list[Any]:
    result = list(present)
    for item in change:
        if not isinstance(item, dict) or key not in item:
            raise ValueError(f"an item of a list that is merged has no {key}")
        fields = cast("dict[str, Any]", item)
        index = next((n for n, other in enumerate(result) if other.get(key) == fields[key]), None)
        if fields.get("$patch") == "delete":
            if index is not None:
                del result[index]
        elif index is None:
            result.append(fields)
        else:
            result[index] = _merged(result[index], fields)
    return result
