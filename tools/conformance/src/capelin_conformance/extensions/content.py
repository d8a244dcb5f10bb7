"""Checks the content of successful responses, hook by hook, by Cluster API's rules."""

import base64
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from capelin.api import Unstructured
from capelin.runtime import AnyHook
from capelin.runtime.messages import MessageError, is_whole, read
from capelin.runtime.topology import PatchError, apply_patch, is_object, same
from capelin.runtime.v1alpha1 import DiscoverVariables, GeneratePatches, GenerateUpgradePlan
from capelin.versions import Version

from capelin_conformance.extensions.exchange import UPGRADED, Exchange, Observations, Probe

_STEPS: Final = "controlPlaneUpgrades"


def bad_retries(observed: Observations) -> Iterator[str]:
    for probe in observed.probes:
        for exchange in (probe.first, probe.again):
            if not (probe.hook.blocks() and exchange.succeeded and exchange.document):
                continue
            seconds = exchange.document.get("retryAfterSeconds")
            if not is_whole(seconds) or not 0 <= seconds < 2**31:
                yield f"{exchange.label}: retryAfterSeconds is {seconds!r}"


def bad_patches(observed: Observations) -> Iterator[str]:
    for probe in _successes(observed, GeneratePatches):
        for item, _, problem in _patched(probe):
            if problem:
                yield f"{probe.first.label}: {problem}{_location(item)}"


def out_of_scope(observed: Observations) -> Iterator[str]:
    for probe in _successes(observed, GeneratePatches):
        for item, after, problem in _patched(probe):
            if (
                not problem
                and item is not None
                and not same(_protected(item["object"]), _protected(after))
            ):
                yield f"{probe.first.label}: changes more than it may{_location(item)}"


def bad_variables(observed: Observations) -> Iterator[str]:
    for probe in _successes(observed, DiscoverVariables):
        found = _list(probe, "variables")
        for name, count in Counter(str(variable.get("name")) for variable in found).items():
            if count > 1:
                yield f"{probe.first.label}: {count} variables have the name {name}"
        for variable in found:
            schema = variable.get("schema")
            if not variable.get("name"):
                yield f"{probe.first.label}: a variable has no name"
            elif not (is_object(schema) and is_object(schema.get("openAPIV3Schema"))):
                yield f"{probe.first.label}: variable {variable['name']} has no schema"


def bad_plans(observed: Observations) -> Iterator[str]:
    for probe in _successes(observed, GenerateUpgradePlan):
        start = str(probe.request["fromControlPlaneKubernetesVersion"])
        target = str(probe.request["toKubernetesVersion"])
        steps = [step["version"] for step in _list(probe, _STEPS)]
        if problem := plan_problem(start, target, steps):
            yield f"{probe.first.label}: {problem}"
        upgraded = probe.variants.get(UPGRADED)
        if upgraded and upgraded.succeeded and (upgraded.document or {}).get(_STEPS):
            yield f"{upgraded.label}: the control plane needs no step, and the plan has one"


def effect(probe: Probe, exchange: Exchange) -> Any:
    """The effect of a response: equal for patches that differ only in words or order."""
    if (response := _as_typed(probe, exchange)) is None:
        # Compare an unreadable response literally.
        return exchange.document
    found = dict(response)
    if probe.hook is GeneratePatches:
        items = {item["uid"]: item["object"] for item in probe.request["items"]}
        found["items"] = {
            patch["uid"]: _effect_on(items.get(patch["uid"]), patch)
            for patch in response.get("items", [])
        }
    for name, current in probe.request.get("current", {}).items():
        if (patch := response.get(f"{name}Patch")) is not None:
            found[f"{name}Patch"] = _effect_on(current, patch)
    return found


def _effect_on(document: Any, patch: Unstructured) -> Any:
    try:
        return patch if document is None else _applied(document, patch)
    except PatchError:
        return patch


def plan_problem(start: str, target: str, steps: list[str]) -> str | None:
    if not steps or steps[-1] != target:
        return f"the control plane's plan does not end with {target}"
    before = _version(start)
    for step in steps:
        here = _version(step)
        if here is None or before is None:
            return f"{step} is not a version such as v1.36.3"
        if here <= before or here[0] != before[0] or here[1] - before[1] > 1:
            return f"{step} does not follow from the version before it"
        before = here
    return None


def _version(text: str) -> tuple[int, int, int] | None:
    try:
        version = Version.parse(text)
    except ValueError:
        return None
    return (version.major, version.minor, version.patch) if text.startswith("v") else None


def _successes(observed: Observations, hook: AnyHook) -> Iterator[Probe]:
    for probe in observed.probes:
        readable = probe.first.unreadable(probe.hook.response_type()) is None
        if probe.hook is hook and probe.first.succeeded and readable:
            yield probe


def _list(probe: Probe, name: str) -> list[Any]:
    return (_as_typed(probe, probe.first) or {}).get(name, [])


def _as_typed(probe: Probe, exchange: Exchange) -> Unstructured | None:
    """The response with the field names of its type, if it is of that type."""
    try:
        return read(probe.hook.response_type(), exchange.document).dump()
    except MessageError:
        return None


def _patched(probe: Probe) -> Iterator[tuple[Unstructured | None, Any, str | None]]:
    """For each patch, its item and the patched template, or else a problem."""
    items = {item["uid"]: item for item in probe.request["items"]}
    for patch in _list(probe, "items"):
        item = items.get(patch["uid"])
        if item is None:
            yield None, None, "a patch has a uid that is not in the request"
            continue
        try:
            yield item, _applied(item["object"], patch), None
        except PatchError as error:
            yield item, None, str(error)


def _applied(template: Any, patch: Unstructured) -> Any:
    return apply_patch(template, patch["patchType"], base64.b64decode(patch["patch"]))


def _location(item: Unstructured | None) -> str:
    if item is None:
        return ""
    return f" ({item['object'].get('kind')} at {item['holderReference']['fieldPath']})"


def _protected(template: Any) -> Any:
    """The part of a template that no patch may change."""
    if not is_object(template):
        return template
    metadata = {
        key: value
        for key, value in template.get("metadata", {}).items()
        if key not in {"labels", "annotations"}
    }
    # Go's types add an empty status.
    rest = {k: v for k, v in template.items() if k not in {"spec", "metadata"} and v != {}}
    return {**rest, "metadata": metadata}
