"""The fields of generated objects that patches may change. It rejects all others. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from capelin.api import Unstructured

from capelin_control_plane.backends.pods.pod_security import pod_problems
from capelin_control_plane.backends.pods.trees import fields_at, items_at, value_at

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
