"""The audit policy of a control plane, from a ConfigMap in its namespace."""

import json
from typing import Any, cast

from capelin.api.core import ConfigMap
from capelin.client import Client
from capelin.provider import Blocked
from capelin.yaml import read_untrusted_yaml
from yaml import YAMLError

from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.component_files import AuditPolicyFile
from capelin_control_plane.reasons import Reason

_API_VERSION = "audit.k8s.io/v1"
_LEVELS = ("None", "Metadata", "Request", "RequestResponse")


async def find_audit_policy(
    client: Client, control_plane: CapelinControlPlane
) -> AuditPolicyFile | None:
    """The audit policy that a control plane names, if any.

    Raises:
        Blocked: the policy does not exist, or API servers could not start with it.
    """
    policy = control_plane.spec.api_server.audit_policy
    if policy is None:
        return None
    reference = policy.config_map
    found = await client.find(ConfigMap, reference.name, control_plane.namespace)
    text = None if found is None else found.data.get(reference.key)
    if text is None:
        raise Blocked(
            Reason.INVALID_CONFIGURATION,
            f"spec.apiServer.auditPolicy: no ConfigMap {reference.name} with the entry"
            f" {reference.key} exists in the namespace",
            "create it, or leave the field out",
        )
    try:
        return read_audit_policy(text)
    except ValueError as error:
        raise Blocked(
            Reason.INVALID_CONFIGURATION,
            f"spec.apiServer.auditPolicy: ConfigMap {reference.name}: {error}",
            f"write a Policy of {_API_VERSION}",
        ) from error


def read_audit_policy(text: str) -> AuditPolicyFile:
    """An audit policy, written again from the parsed one: parsers may differ.

    Raises:
        ValueError: the text is not an audit policy.
    """
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
