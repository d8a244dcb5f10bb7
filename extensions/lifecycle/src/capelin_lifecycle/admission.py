"""Writes a ValidatingAdmissionPolicy with the rules of a policy that one object alone decides."""

import re
from collections.abc import Sequence

from capelin.api import Unstructured

from capelin_lifecycle.api import ClusterPolicySpec, Policy, Selector

_GROUP = "admissionregistration.k8s.io/v1"
_TEXT = re.compile(r"'(\\.|[^'\\])*'|\"(\\.|[^\"\\])*\"")
_OTHERS = re.compile(r"\b(now|fromVersion|toVersion|templates|variables)\b")


class NotAdmissibleError(ValueError):
    """No rule of a policy can be judged when a Cluster is written; says why."""


def admission_policies(policy: Policy) -> list[Unstructured]:
    """The admission policy and its binding.

    Raises:
        NotAdmissibleError: the policy has no rules about the Cluster alone.
    """
    validate = policy.spec.action.validate_
    if validate is None or policy.spec.hook == "ValidateTopology":
        raise NotAdmissibleError(
            f"policy {policy.name} has no rules about Clusters: use the action validate, with a"
            " hook of a Cluster's life"
        )
    rules = [
        {"expression": rule.expression, "message": rule.message}
        for rule in validate.rules_
        if not _OTHERS.search(_TEXT.sub("", rule.expression))
    ]
    if not rules:
        raise NotAdmissibleError(
            f"all rules of policy {policy.name} depend on a version or on the time; keep them"
            " in the policy"
        )
    prefix = f"{policy.namespace}-" if policy.namespace else ""
    name = f"lifecycle-{prefix}{policy.name}"
    resources = {
        "apiGroups": ["cluster.x-k8s.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["clusters"],
    }
    constraints: Unstructured = {"resourceRules": [resources]}
    constraints["objectSelector"] = policy.spec.cluster_selector.dump()
    return [
        {
            "apiVersion": _GROUP,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": constraints,
                "matchConditions": _conditions(policy.spec.classes),
                "validations": rules,
            },
        },
        {
            "apiVersion": _GROUP,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {
                "policyName": name,
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": _namespaces(policy)},
            },
        },
    ]


def _conditions(classes: Sequence[str]) -> list[Unstructured]:
    """Clusters that are being removed, and those of other classes, are let through."""
    conditions = [
        {"name": "not-deleted", "expression": "!has(object.metadata.deletionTimestamp)"},
    ]
    if classes:
        names = ", ".join(f"'{name}'" for name in classes)
        expression = f"has(object.spec.topology) && object.spec.topology.classRef.name in [{names}]"
        conditions.append({"name": "classes", "expression": expression})
    return conditions


def _namespaces(policy: Policy) -> Unstructured:
    spec = policy.spec
    if policy.namespace:
        return {"matchLabels": {"kubernetes.io/metadata.name": policy.namespace}}
    selector = spec.namespace_selector if isinstance(spec, ClusterPolicySpec) else Selector()
    return selector.dump()
