"""The change that a plan is about: from files or options to changed objects. Pure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import yaml
from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.errors import InvalidInputError
from capelin.json_patches import apply_json_patch, apply_merge_patch
from capelin.yaml import read_all_yaml, read_yaml

from capelin_cli.clusters.topology import ScaleOptions, scale_patch, upgrade_patch
from capelin_cli.explain.facts import text_at
from capelin_cli.plan.differences import LAST_APPLIED, LEVELS, is_too_deep

_HINT: Final = "Name a file with the objects in the form in which kubectl applies them."


def read_manifests(text: str, source: str, namespace: str) -> list[Unstructured]:
    """The objects in a YAML or JSON text. An object without a namespace gets the default one.

    Raises:
        InvalidInputError: The text has no object, or something else.
    """
    try:
        documents = [doc for doc in read_all_yaml(text) if doc is not None]
    except yaml.YAMLError as error:
        raise InvalidInputError(
            f"{source} cannot be used.",
            reason=f"It is neither YAML nor JSON: {' '.join(str(error).split())}.",
            hint=_HINT,
        ) from None
    found: list[Unstructured] = []
    for document in documents:
        items = cast("Any", document).get("items") if isinstance(document, dict) else None
        found += cast("list[Unstructured]", items if isinstance(items, list) else [document])
    for manifest in found:
        if not all(text_at(manifest, *path) for path in _REQUIRED):
            raise InvalidInputError(
                f"{source} cannot be used.",
                reason="An object in it has no apiVersion, no kind or no name.",
                hint=_HINT,
            )
        if is_too_deep(manifest):
            raise InvalidInputError(
                f"{source} cannot be used.",
                reason=f"An object in it has more than {LEVELS} levels of fields.",
                hint=_HINT,
            )
    if not found:
        raise InvalidInputError(f"{source} cannot be used.", reason="It has no object.", hint=_HINT)
    return [_in_namespace(manifest, namespace) for manifest in found]


_REQUIRED: Final = (("apiVersion",), ("kind",), ("metadata", "name"))
_CLUSTER_SCOPED: Final = frozenset({"ExtensionConfig", "Namespace"})


def read_file(path: Path, namespace: str) -> list[Unstructured]:
    """The objects in a file.

    Raises:
        InvalidInputError: The file cannot be read, or is invalid.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "It is not text"
        raise InvalidInputError(
            f"{path} cannot be read.", reason=f"{reason}.", hint=_HINT
        ) from None
    return read_manifests(text, str(path), namespace)


def _in_namespace(manifest: Unstructured, namespace: str) -> Unstructured:
    metadata = manifest["metadata"]
    if manifest["kind"] in _CLUSTER_SCOPED or metadata.get("namespace"):
        return manifest
    return {**manifest, "metadata": {**metadata, "namespace": namespace}}


def applied(live: Unstructured | None, manifest: Unstructured) -> Unstructured:
    """The object after `kubectl apply`, without fields that only the previous manifest had."""
    if live is None:
        return manifest
    annotations = cast("dict[str, str]", live["metadata"].get("annotations") or {})
    removed: Any = {}
    if text := annotations.get(LAST_APPLIED):
        removed = removals(read_yaml(text), manifest)
    merged = apply_merge_patch(apply_merge_patch(live, removed), manifest)
    # The version in which the live object was read.
    return {**merged, "apiVersion": live["apiVersion"]}


def removals(previous: Any, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that removes the fields which only the previous manifest has."""
    found: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", previous).items():
        if key not in manifest:
            found[key] = None
        elif isinstance(value, dict) and isinstance(manifest[key], dict):
            inner = removals(value, manifest[key])
            if inner:
                found[key] = inner
    return found


def changed_cluster(
    live: Unstructured,
    *,
    version: str | None = None,
    scale: ScaleOptions | None = None,
    variables: Mapping[str, Any] | None = None,
) -> Unstructured:
    """A Cluster after `capelin upgrade`, `capelin scale` and new values of variables."""
    operations: Sequence[Mapping[str, Any]] = [
        *(upgrade_patch(version) if version else ()),
        *(scale_patch(Cluster.read(live), scale) if scale else ()),
    ]
    changed = cast("Unstructured", apply_json_patch(live, operations))
    if variables:
        topology = changed["spec"]["topology"]
        kept = [each for each in topology.get("variables", []) if each["name"] not in variables]
        new = [{"name": name, "value": value} for name, value in variables.items()]
        topology["variables"] = [*kept, *new]
    return changed
