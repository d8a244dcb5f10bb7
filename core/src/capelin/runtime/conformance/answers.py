"""What successful answers say, hook by hook, held against what Cluster API makes of them."""

import base64
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import orjson

from capelin.api import Unstructured
from capelin.runtime.catalog import AnyHook
from capelin.runtime.conformance.evidence import Asked, Evidence, Reaction
from capelin.runtime.messages import MessageError, is_whole, read
from capelin.runtime.topology.patches import (
    PatchError,
    apply_json_patch,
    apply_merge_patch,
    is_list,
    is_object,
    same,
)
from capelin.runtime.v1alpha1 import DiscoverVariables, GeneratePatches, GenerateUpgradePlan

_VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)(?:[-+].*)?")


class _BadPatchError(Exception):
    """A patch that cannot be applied."""


def bad_retries(seen: Evidence) -> Iterator[str]:
    """Waits that are none."""
    for asked in seen.asked:
        for reaction in (asked.first, asked.again):
            if not (asked.hook.blocks() and reaction.succeeded and reaction.document):
                continue
            seconds = reaction.document.get("retryAfterSeconds")
            if not is_whole(seconds) or not 0 <= seconds < 2**31:
                yield f"{reaction.what}: retryAfterSeconds is {seconds!r}"


def bad_patches(seen: Evidence) -> Iterator[str]:
    """Patches for nothing, or that do not fit."""
    for asked in _successes(seen, GeneratePatches):
        for item, _, problem in _patched(asked):
            if problem:
                yield f"{asked.first.what}: {problem}{_at(item)}"


def out_of_scope(seen: Evidence) -> Iterator[str]:
    """Changes that Cluster API drops."""
    for asked in _successes(seen, GeneratePatches):
        for item, after, problem in _patched(asked):
            if (
                not problem
                and item is not None
                and not same(_kept_apart(item["object"]), _kept_apart(after))
            ):
                yield f"{asked.first.what}: changes more than it may{_at(item)}"


def bad_variables(seen: Evidence) -> Iterator[str]:
    """Variables that a ClusterClass cannot have."""
    for asked in _successes(seen, DiscoverVariables):
        found = _list(asked, "variables")
        for name, count in Counter(str(one.get("name")) for one in found).items():
            if count > 1:
                yield f"{asked.first.what}: {count} variables are called {name}"
        for one in found:
            schema = one.get("schema")
            if not one.get("name"):
                yield f"{asked.first.what}: a variable has no name"
            elif not (is_object(schema) and is_object(schema.get("openAPIV3Schema"))):
                yield f"{asked.first.what}: variable {one['name']} has no schema"


def bad_plans(seen: Evidence) -> Iterator[str]:
    """Upgrade plans that Cluster API refuses."""
    for asked in _successes(seen, GenerateUpgradePlan):
        start = str(asked.request["fromControlPlaneKubernetesVersion"])
        target = str(asked.request["toKubernetesVersion"])
        steps = [step["version"] for step in _list(asked, "controlPlaneUpgrades")]
        if problem := plan_problem(start, target, steps):
            yield f"{asked.first.what}: {problem}"


def effect(asked: Asked, reaction: Reaction) -> Any:
    """What an answer comes to: the same patch in other words, or another order, is the same."""
    if (said := _as_typed(asked, reaction)) is None:
        # What nobody can read is compared as it came.
        return reaction.document
    found = dict(said)
    if asked.hook is GeneratePatches:
        items = {item["uid"]: item["object"] for item in asked.request["items"]}
        found["items"] = {
            patch["uid"]: _effect_on(items.get(patch["uid"]), patch)
            for patch in said.get("items", [])
        }
    for name, current in asked.request.get("current", {}).items():
        if (patch := said.get(f"{name}Patch")) is not None:
            found[f"{name}Patch"] = _effect_on(current, patch)
    return found


def _effect_on(document: Any, patch: Unstructured) -> Any:
    try:
        return patch if document is None else _applied(document, patch)
    except _BadPatchError:
        return patch


def plan_problem(start: str, target: str, steps: list[str]) -> str | None:
    """What is wrong with the way of a control plane from one version to another."""
    if not steps or steps[-1] != target:
        return f"the control plane's plan does not end with {target}"
    before = _version(start)
    for step in steps:
        here = _version(step)
        if here is None or before is None:
            return f"{step} is no version such as v1.34.4"
        if here <= before or here[0] != before[0] or here[1] - before[1] > 1:
            return f"{step} does not follow from what is before it"
        before = here
    return None


def _version(text: str) -> tuple[int, int, int] | None:
    found = _VERSION.fullmatch(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def _successes(seen: Evidence, hook: AnyHook) -> Iterator[Asked]:
    for asked in seen.asked:
        readable = asked.first.unreadable(asked.hook.response_type()) is None
        if asked.hook is hook and asked.first.succeeded and readable:
            yield asked


def _list(asked: Asked, name: str) -> list[Any]:
    return (_as_typed(asked, asked.first) or {}).get(name, [])


def _as_typed(asked: Asked, reaction: Reaction) -> Unstructured | None:
    """The answer with its fields named as the hook's type names them, if it is of that type."""
    try:
        return read(asked.hook.response_type(), reaction.document).dump()
    except MessageError:
        return None


def _patched(asked: Asked) -> Iterator[tuple[Unstructured | None, Any, str | None]]:
    """The item of each patch, its template afterwards, and what is wrong instead of that."""
    items = {item["uid"]: item for item in asked.request["items"]}
    for patch in _list(asked, "items"):
        item = items.get(patch["uid"])
        if item is None:
            yield None, None, "a patch has a uid that is not in the request"
            continue
        try:
            yield item, _applied(item["object"], patch), None
        except _BadPatchError as error:
            yield item, None, str(error)


def _applied(template: Unstructured, patch: Unstructured) -> Any:
    try:
        steps = orjson.loads(base64.b64decode(patch["patch"]))
    except orjson.JSONDecodeError:
        raise _BadPatchError("a patch is no JSON") from None
    if patch["patchType"] == "JSONMergePatch":
        return apply_merge_patch(template, steps)
    if not is_list(steps) or not all(is_object(step) for step in steps):
        raise _BadPatchError("a JSON Patch is no list of steps")
    try:
        return apply_json_patch(template, steps)
    except PatchError as error:
        raise _BadPatchError(str(error)) from None


def _at(item: Unstructured | None) -> str:
    if item is None:
        return ""
    return f" ({item['object'].get('kind')} at {item['holderReference']['fieldPath']})"


def _kept_apart(template: Any) -> Any:
    """What of a template no patch may change."""
    if not is_object(template):
        return template
    metadata = {
        key: value
        for key, value in template.get("metadata", {}).items()
        if key not in {"labels", "annotations"}
    }
    # Go's types add an empty status to what passes through them.
    rest = {k: v for k, v in template.items() if k not in {"spec", "metadata"} and v != {}}
    return {**rest, "metadata": metadata}
