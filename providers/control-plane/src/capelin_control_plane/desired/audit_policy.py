"""The audit policy of a control plane, from a ConfigMap in its namespace."""

import json
from functools import lru_cache
from typing import Any, cast

from capelin.api.core import ConfigMap
from capelin.controller import Context
from capelin.provider import Blocked
from capelin.yaml import read_untrusted_yaml
from yaml import YAMLError

from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.desired.component_files import AuditPolicyFile

_API_VERSION = "audit.k8s.io/v1"
_LONGEST = 64 << 10
_MOST_KEPT = 128
_LEVELS = ("None", "Metadata", "Request", "RequestResponse")


async def find_audit_policy(
    ctx: Context, control_plane: CapelinControlPlane
) -> AuditPolicyFile | None:
    """The audit policy that a control plane names, if any.

    Raises:
        Blocked: the policy does not exist, or API servers could not start with it.
    """
    policy = control_plane.spec.api_server.audit_policy
    if policy is None:
        return None
    reference = policy.config_map
    found = await ctx.client.find(ConfigMap, reference.name, control_plane.namespace)
    text = None if found is None else found.data.get(reference.key)
    if text is None:
        raise Blocked(
            Reason.INVALID_CONFIGURATION,
            f"spec.apiServer.auditPolicy: no ConfigMap {reference.name} with the entry"
            f" {reference.key} exists in the namespace",
            "create it, or leave the field out",
        )
    # Each reconcile needs it. A tenant wrote it, and many control planes may name it.
    policy_or_problem = await ctx.call(_read_once, text)
    if isinstance(policy_or_problem, AuditPolicyFile):
        return policy_or_problem
    raise Blocked(
        Reason.INVALID_CONFIGURATION,
        f"spec.apiServer.auditPolicy: ConfigMap {reference.name}: {policy_or_problem}",
        f"write a Policy of {_API_VERSION}",
    )


@lru_cache(maxsize=_MOST_KEPT)
def _read_once(text: str) -> AuditPolicyFile | str:
    try:
        return read_audit_policy(text)
    except ValueError as error:
        return str(error)


def read_audit_policy(text: str) -> AuditPolicyFile:
    """An audit policy, written again from the parsed one: parsers may differ.

    Raises:
        ValueError: the text is not an audit policy.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"it has more than {_LONGEST // 1024} KiB")
    try:
        policy: Any = read_untrusted_yaml(text)
    except (YAMLError, RecursionError):
        raise ValueError("it is not YAML, or has anchors, tags or a key twice") from None
    fields = cast("dict[str, Any]", policy if isinstance(policy, dict) else {})
    if (fields.get("apiVersion"), fields.get("kind")) != (_API_VERSION, "Policy"):
        raise ValueError(f"it is not a Policy of {_API_VERSION}")
    rules = fields.get("rules")
    if not isinstance(rules, list) or not rules:
        raise ValueError("it has no rules")
    for number, rule in enumerate(cast("list[Any]", rules)):
        level = cast("dict[str, Any]", rule).get("level") if isinstance(rule, dict) else None
        if level not in _LEVELS:
            raise ValueError(f"rules[{number}].level is not one of {', '.join(_LEVELS)}")
    try:
        return AuditPolicyFile(json.dumps(fields, sort_keys=True, allow_nan=False).encode())
    except (TypeError, ValueError):
        raise ValueError("it has values that JSON does not have, such as dates") from None
