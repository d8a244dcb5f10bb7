"""Holds a topology with another effect than the plan that `capelin plan --guard` approved.

A plan has a digest for each template that Cluster API computes on the way, without generated
names. Both sides compute digests from the same request, ValidateTopology.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import orjson
from capelin.runtime import Failure
from capelin.runtime.v1alpha1 import ValidateTopologyRequest
from capelin.runtime.v1alpha1.common import Variable

from capelin_lifecycle.api.actions import ApprovedPlan

PLAN_ANNOTATION: Final = "plan.runtime.capelin.cluster.x-k8s.io/approved"
"""The digests of an approved plan on a Cluster, separated by commas."""
_LENGTH: Final = 12
_OWNERS: Final = ("machineDeployment", "machinePool", "controlPlane")
_KEPT: Final = ("class", "metadata", "replicas", "topologyName", "version")
"""The builtin variables of an owner that affect its machines. Others are generated names."""


def topology_digests(request: ValidateTopologyRequest) -> dict[str, str]:
    """A digest for each template and one for the groups of workers, each with its description."""
    found: dict[str, str] = {}
    workers: set[str] = set()
    for item in request.items:
        holder = item.holder_reference.kind
        owner = _owner(item.variables)
        name = str(owner.get("topologyName", ""))
        if name:
            workers.add(f"{holder} {name}")
        kind = str(item.object.get("kind", ""))
        content = [holder, item.holder_reference.field_path, owner, kind, item.object.get("spec")]
        found[_digest(content)] = f"{kind} of {' '.join(filter(None, (holder, name)))}"
    found[_digest(sorted(workers))] = "the groups of workers"
    return found


def check_approved(
    plan: ApprovedPlan,
    policy: str,
    request: ValidateTopologyRequest,
    annotations: Mapping[str, str],
) -> None:
    """Check that a topology is part of the approved plan.

    Raises:
        Failure: It is not.
    """
    approved = annotations.get(PLAN_ANNOTATION)
    if approved is None:
        if plan.required:
            raise Failure(f"policy {policy}: no plan is approved. Approve one: {_COMMAND}")
        return
    known = set(approved.split(","))
    others = {text for digest, text in topology_digests(request).items() if digest not in known}
    if others:
        raise Failure(
            f"policy {policy}: the approved plan does not contain {', '.join(sorted(others))}."
            f" Approve another plan: {_COMMAND}"
        )


_COMMAND: Final = "capelin plan cluster NAME --guard, or capelin plan -f FILE --guard"


def _owner(variables: Iterable[Variable]) -> dict[str, Any]:
    """The builtin variables of the control plane or group of workers that has a template."""
    for variable in variables:
        value: object = variable.value
        if variable.name != "builtin" or not isinstance(value, dict):
            continue
        builtin = cast("dict[str, Any]", value)
        for key in _OWNERS:
            if isinstance(part := builtin.get(key), dict):
                fields = cast("dict[str, Any]", part)
                return {name: fields[name] for name in _KEPT if name in fields}
    return {}


def _digest(content: object) -> str:
    text = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:_LENGTH]
