"""Strategic merge patches and JSON patches of generated objects, and their limits. Pure.

A user who may write a control plane has the provider write objects with its own permissions. So
`patchable.py` lists the fields that patches may change.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from capelin.api import Unstructured
from capelin.json_patches import apply_json_patch

from capelin_control_plane.api.pod_settings import Patch
from capelin_control_plane.backends.pods.names import fields_at, items_at, value_at
from capelin_control_plane.backends.pods.pod_security import pod_problems
from capelin_control_plane.desired.control_plane import Component, InvalidSpecError

Path = tuple[str, ...]

_ANY: Final = "*"
_METADATA: Final = ("metadata.labels.*", "metadata.annotations.*")
_CONTAINER: Final = tuple(
    f"spec.template.spec.{containers}.{_ANY}.{field}"
    for containers in ("containers", "initContainers")
    for field in (
        "args",
        "command",
        "env",
        "envFrom",
        "image",
        "imagePullPolicy",
        "lifecycle",
        "livenessProbe",
        "ports",
        "readinessProbe",
        "resizePolicy",
        "resources",
        "securityContext",
        "startupProbe",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "volumeMounts",
        "workingDir",
        # Of containers that a patch adds.
        "name",
        "restartPolicy",
    )
)
_POD: Final = tuple(
    f"spec.template.spec.{field}"
    for field in (
        "affinity",
        "dnsConfig",
        "dnsPolicy",
        "enableServiceLinks",
        "hostAliases",
        "imagePullSecrets",
        "nodeSelector",
        "overhead",
        "preemptionPolicy",
        "priorityClassName",
        "runtimeClassName",
        "schedulerName",
        "securityContext",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
        "volumes",
    )
)
_TEMPLATE: Final = (
    *_METADATA,
    "spec.template.metadata.labels.*",
    "spec.template.metadata.annotations.*",
    *_POD,
    *_CONTAINER,
)

PATCHABLE: Final[Mapping[str, Sequence[str]]] = {
    "Deployment": (
        *_TEMPLATE,
        "spec.minReadySeconds",
        "spec.progressDeadlineSeconds",
        "spec.revisionHistoryLimit",
        "spec.strategy.rollingUpdate",
    ),
    "StatefulSet": (*_TEMPLATE, "spec.minReadySeconds", "spec.revisionHistoryLimit"),
    "Service": (
        *_METADATA,
        "spec.allocateLoadBalancerNodePorts",
        "spec.externalTrafficPolicy",
        "spec.internalTrafficPolicy",
        "spec.ipFamilies",
        "spec.ipFamilyPolicy",
        "spec.loadBalancerClass",
        "spec.loadBalancerIP",
        "spec.loadBalancerSourceRanges",
        "spec.sessionAffinity",
        "spec.sessionAffinityConfig",
        "spec.trafficDistribution",
    ),
    "PodDisruptionBudget": _METADATA,
    # Rules can be added. Those that are generated stay: see `_removed_ingress`.
    "NetworkPolicy": (*_METADATA, "spec.ingress"),
}
"""By kind, the fields. A field includes everything below it. `*` is any name."""

_GENERATED: Final = (
    ("metadata", "labels"),
    ("metadata", "annotations"),
    ("spec", "template", "metadata", "labels"),
    ("spec", "template", "metadata", "annotations"),
)
_PATTERNS: Final = {
    kind: tuple(tuple(field.split(".")) for field in fields) for kind, fields in PATCHABLE.items()
}
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


def patch_problem(before: Unstructured, after: Unstructured) -> str:
    """The reason why a patch is rejected. Empty if it is allowed.

    Args:
        before: The generated object.
        after: The object with the patch.
    """
    patterns = _PATTERNS[before["kind"]]
    for path in changed_paths(before, after):
        if not any(_matches(pattern, path) for pattern in patterns):
            return f"{'.'.join(path)} cannot be patched"
    for path in _GENERATED:
        missing = fields_at(before, *path).items() - fields_at(after, *path).items()
        if missing:
            keys = ", ".join(sorted(key for key, _ in missing))
            return f"{'.'.join(path)}: {keys} cannot be patched"
    if problem := _removed_ingress(before, after):
        return problem
    pod = value_at(after, "spec", "template", "spec")
    annotations = fields_at(after, "spec", "template", "metadata", "annotations")
    generated = fields_at(before, "spec", "template", "spec")
    return "" if pod is None else next(pod_problems(pod, annotations, generated), "")


def changed_paths(before: Any, after: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of the values that differ. Containers are identified by their names."""
    if before == after:
        return
    if path[-1:] in {("containers",), ("initContainers",)}:
        before, after = _by_name(before), _by_name(after)
    if not isinstance(after, dict) or not isinstance(before, dict | None):
        yield path
        return
    old, new = cast("dict[str, Any]", before or {}), cast("dict[str, Any]", after)
    if not old and not new:
        yield path
    # A key with dots in it stays one part of the path.
    for key in sorted(old.keys() | new.keys()):
        if key not in new:
            yield (*path, key)
        else:
            yield from changed_paths(old.get(key), new[key], (*path, key))


def _by_name(containers: Any) -> Any:
    """Containers as an object, unless their names are not unique."""
    if containers is None:
        return {}
    items = items_at({"containers": containers}, "containers")
    named = {str(item.get("name")): item for item in items}
    return named if len(named) == len(containers) else containers


def _matches(pattern: Path, path: Path) -> bool:
    return len(path) >= len(pattern) and all(
        part in {_ANY, name} for part, name in zip(pattern, path, strict=False)
    )


def _removed_ingress(before: Unstructured, after: Unstructured) -> str:
    if before["kind"] != "NetworkPolicy":
        return ""
    rules = items_at(after, "spec", "ingress")
    is_kept = all(rule in rules for rule in items_at(before, "spec", "ingress"))
    return "" if is_kept else "spec.ingress: rules can be added only"


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
