"""Patches of generated objects: strategic merge and JSON patches, and what they may not do. Pure.

Whoever may write a control plane makes the provider write pods, with the provider's permissions. So
patched pods must stay within the restricted pod security standard, and get no token.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

from capelin.api import Unstructured

from capelin_control_plane.backends.pods.trees import fields_at, items_at, value_at
from capelin_control_plane.desired import Component, InvalidSpecError
from capelin_control_plane.pod_settings import JsonPatchOperation, Patch

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
"""By list, what its items are merged by. Other lists are replaced, as the API server does."""

_IDENTITY = (
    ("apiVersion",),
    ("kind",),
    ("metadata", "name"),
    ("metadata", "namespace"),
    ("spec", "selector"),
)
_KEPT = (
    ("metadata", "labels"),
    ("metadata", "annotations"),
    ("spec", "template", "metadata", "labels"),
)
_VOLUMES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)


def patched(
    manifest: Unstructured, component: Component | None, patches: Sequence[Patch]
) -> Unstructured:
    """An object with the patches that are for it.

    Raises:
        InvalidSpecError: a patch cannot be applied, or leads to what is not allowed.
    """
    result = manifest
    for index, patch in enumerate(patches):
        target = patch.target
        if target.kind != manifest["kind"] or target.component not in {None, component}:
            continue
        field = f"spec.pods.patches[{index}]"
        try:
            result = _applied(deepcopy(result), patch)
        except (LookupError, ValueError, TypeError) as error:
            raise InvalidSpecError(
                f"{field}: {error}; it does not fit the {target.kind}"
            ) from error
        problem = _problem(manifest, result)
        if problem:
            raise InvalidSpecError(f"{field}: {problem}")
    return result


def _applied(manifest: Unstructured, patch: Patch) -> Unstructured:
    if patch.merge is not None:
        return _merged(manifest, patch.merge)
    for operation in patch.json_ or ():
        _apply_operation(manifest, operation)
    return manifest


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


def _apply_operation(manifest: Unstructured, operation: JsonPatchOperation) -> None:
    path = operation.path
    if not path.startswith("/"):
        raise ValueError(f"the path {path!r} does not begin with a slash")
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]
    node: Any = manifest
    for part in parents:
        node = node[int(part) if isinstance(node, list) else part]
    if isinstance(node, list):
        items = cast("list[Any]", node)
        if operation.op == "add":
            items.insert(len(items) if last == "-" else int(last), operation.value)
        elif operation.op == "remove":
            del items[int(last)]
        else:
            items[int(last)] = operation.value
        return
    if operation.op != "add" and last not in node:
        raise KeyError(f"there is nothing at {path}")
    if operation.op == "remove":
        del node[last]
    else:
        node[last] = operation.value


def _problem(before: Unstructured, after: Unstructured) -> str:
    for path in _IDENTITY:
        if value_at(before, *path) != value_at(after, *path):
            return f"{'.'.join(path)} cannot be patched"
    for path in _KEPT:
        missing = fields_at(before, *path).items() - fields_at(after, *path).items()
        if missing:
            keys = ", ".join(sorted(key for key, _ in missing))
            return f"{'.'.join(path)}: {keys} cannot be patched"
    pod = value_at(after, "spec", "template", "spec")
    return "" if pod is None else next(pod_problems(pod), "")


def pod_problems(pod: Mapping[str, Any]) -> Iterator[str]:
    """What of a pod is outside of the restricted pod security standard."""
    for field in ("hostNetwork", "hostPID", "hostIPC", "hostUsers"):
        if pod.get(field):
            yield f"{field} is not allowed"
    if pod.get("automountServiceAccountToken") is not False:
        yield "automountServiceAccountToken must stay false"
    if pod.get("serviceAccountName") not in {None, "default"}:
        yield "serviceAccountName is not allowed"
    yield from _volume_problems(pod)
    context = fields_at(pod, "securityContext")
    yield from _context_problems(context)
    for field in ("containers", "initContainers"):
        for container in items_at(pod, field):
            for problem in _container_problems(container, context):
                yield f"container {container.get('name')}: {problem}"


def _volume_problems(pod: Mapping[str, Any]) -> Iterator[str]:
    for volume in items_at(pod, "volumes"):
        if others := volume.keys() - {"name"} - _VOLUMES:
            yield f"a volume of the type {', '.join(sorted(others))} is not allowed"
        if any(
            "serviceAccountToken" in source for source in items_at(volume, "projected", "sources")
        ):
            yield "a token of a service account is not allowed"


def _container_problems(container: Mapping[str, Any], of_pod: Mapping[str, Any]) -> Iterator[str]:
    own = fields_at(container, "securityContext")
    if own.get("privileged") or own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation must be false, and privileged is not allowed"
    if "ALL" not in (value_at(own, "capabilities", "drop") or ()):
        yield "all capabilities must be dropped"
    if not set(value_at(own, "capabilities", "add") or ()) <= {"NET_BIND_SERVICE"}:
        yield "no capability but NET_BIND_SERVICE may be added"
    if any(port.get("hostPort") for port in items_at(container, "ports")):
        yield "hostPort is not allowed"
    yield from _context_problems({**of_pod, **own})


def _context_problems(context: Mapping[str, Any]) -> Iterator[str]:
    if context.get("runAsNonRoot") is not True or context.get("runAsUser") == 0:
        yield "it must not run as root"
    if value_at(context, "seccompProfile", "type") not in {"RuntimeDefault", "Localhost"}:
        yield "seccompProfile must be RuntimeDefault or Localhost"
    if context.get("procMount") not in {None, "Default"} or context.get("sysctls"):
        yield "procMount and sysctls are not allowed"
