"""Admission policies: those of the extension, and those with the rules of users' policies.

Those of the extension keep users from going around the hooks of a Cluster.
"""

import re
from collections.abc import Sequence
from typing import Final

from capelin.api import Unstructured
from capelin.provider import admission_policy, may_patch

from capelin_lifecycle.actions.approval import ANNOTATION_PREFIX
from capelin_lifecycle.api.names import GROUP
from capelin_lifecycle.api.policies import (
    ClusterLifecyclePolicy,
    ClusterPolicySpec,
    LifecyclePolicy,
    Policy,
    Selector,
)
from capelin_lifecycle.api.results import LifecycleResult

_TEXT: Final = re.compile(r"'(\\.|[^'\\])*('|\Z)|\"(\\.|[^\"\\])*(\"|\Z)")
_OTHERS: Final = re.compile(r"\b(now|fromVersion|toVersion|templates|variables)\b")
_CLUSTERS: Final[Unstructured] = {
    "apiGroups": ["cluster.x-k8s.io"],
    "apiVersions": ["*"],
    "operations": ["CREATE", "UPDATE"],
    "resources": ["clusters"],
}


_PROGRESS: Final = (
    "runtime.cluster.x-k8s.io/ok-to-delete",
    "runtime.cluster.x-k8s.io/pending-hooks",
)
"""Annotations in which Cluster API stores which hooks it has called."""
_FINALIZER: Final = "cluster.cluster.x-k8s.io"


def approvals_policy(name: str) -> list[Unstructured]:
    """Users can approve only in their own name.

    `clusterctl move` and a restore create Clusters with the approvals of others. Their users may
    create results too, and could forge approvals anyway.
    """
    old = "oldObject != null && has(oldObject.metadata.annotations)"
    results = LifecycleResult.resource
    may_restore = (
        f"request.operation == 'CREATE' && authorizer.group('{GROUP}').resource('{results.plural}')"
        ".namespace(object.metadata.namespace).check('create').allowed()"
    )
    expression = (
        "!has(object.metadata.annotations) || object.metadata.annotations.all(key,"
        f" !key.startsWith('{ANNOTATION_PREFIX}')"
        " || (object.metadata.annotations[key].matches('^[0-9a-f]{8}:')"
        " && object.metadata.annotations[key].substring(9) == request.userInfo.username)"
        f" || ({old} && key in oldObject.metadata.annotations"
        " && oldObject.metadata.annotations[key] == object.metadata.annotations[key]))"
        f" || ({may_restore})"
    )
    message = (
        "an approval has the value CODE:USER, with the code that the LifecycleResult shows and your"
        " own user name"
    )
    return admission_policy(name, [_CLUSTERS], [{"expression": expression, "message": message}])


def patches_policy(name: str) -> list[Unstructured]:
    """Keeps versions of patches as they are: another patch would roll out machines.

    The API server would reject such a rule in the CRD, since versions can be large.
    """
    versions = "spec.action.patches.versions"
    expression = (
        "!has(object.spec.action.patches) || !has(oldObject.spec.action.patches)"
        f" || object.{versions}.all(v, oldObject.{versions}.all(old,"
        " old.name != v.name || old == v))"
    )
    message = "versions of patches are immutable, since changes roll out machines: add another one"
    policies = {
        "apiGroups": [GROUP],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": [LifecyclePolicy.resource.plural, ClusterLifecyclePolicy.resource.plural],
    }
    return admission_policy(name, [policies], [{"expression": expression, "message": message}])


def references_policy(name: str) -> list[Unstructured]:
    """Only controllers and administrators write the fields by which Cluster API decides on hooks.

    Cluster API does not call BeforeClusterCreate for a Cluster that has references already.
    `clusterctl move` creates such Clusters, as an administrator. It does not call
    BeforeClusterDelete and BeforeClusterUpgrade if its own annotations show that it has done so,
    and does not call BeforeClusterDelete for a Cluster without its finalizer.
    """
    unchanged = " && ".join(
        f"(!has(object.spec.{field}) || oldObject != null"
        f" && object.spec.?{field} == oldObject.spec.?{field})"
        for field in ("infrastructureRef", "controlPlaneRef")
    )
    controls = may_patch("'cluster.x-k8s.io'", "'clusters'")
    references = {
        "expression": f"{unchanged} || {controls}",
        "message": "Cluster API sets infrastructureRef and controlPlaneRef of a Cluster with a"
        " topology: remove them. Only users who may patch the status of Clusters can set them,"
        " for example with `clusterctl move`",
        "reason": "Forbidden",
    }
    kept = [
        *(
            f"{_annotation('object', key)}"
            f" == (oldObject == null ? '-' : {_annotation('oldObject', key)})"
            for key in _PROGRESS
        ),
        f"(oldObject == null || !{_has_finalizer('oldObject')} || {_has_finalizer('object')})",
    ]
    progress = {
        "expression": f"{' && '.join(kept)} || {controls}",
        "message": "Cluster API decides by its finalizer and by the annotations"
        f" {' and '.join(_PROGRESS)} whether it calls hooks: leave them as they are. Only users who"
        " may patch the status of Clusters can change them",
        "reason": "Forbidden",
    }
    condition = {"name": "has-a-topology", "expression": "has(object.spec.topology)"}
    return admission_policy(
        name, [_CLUSTERS], [references, progress], {"matchConditions": [condition]}
    )


def _annotation(of: str, key: str) -> str:
    return f"{of}.metadata.?annotations[?'{key}'].orValue('-')"


def _has_finalizer(of: str) -> str:
    return f"('{_FINALIZER}' in {of}.metadata.?finalizers.orValue([]))"


def quota_labels_policy(name: str) -> list[Unstructured]:
    """Only administrators choose the group of a Cluster in a quota of the whole cluster.

    Every ClusterLifecyclePolicy is a parameter. Its quota may group Clusters by a label. A user
    may give a Cluster the label that its namespace has. For another value, the user needs the
    permission to change ClusterLifecyclePolicies.
    """

    def label(of: str) -> str:
        return f"{of}.metadata.?labels[?variables.key].orValue('')"

    variables = [
        {"name": "key", "expression": "params.spec.action.?quota.?label.orValue('')"},
        {"name": "value", "expression": label("object")},
    ]
    plural = ClusterLifecyclePolicy.resource.plural
    validation = {
        "expression": "variables.key == ''"
        f" || oldObject != null && variables.value == {label('oldObject')}"
        f" || variables.value == {label('namespaceObject')}"
        f" || authorizer.group('{GROUP}').resource('{plural}').check('update').allowed()",
        "messageExpression": _message(label("namespaceObject"), plural),
        "message": "the label decides about a quota: it must be that of the namespace",
        "reason": "Forbidden",
    }
    parameters: Unstructured = {
        "paramKind": {
            "apiVersion": ClusterLifecyclePolicy.resource.api_version,
            "kind": ClusterLifecyclePolicy.resource.kind,
        },
        "variables": variables,
    }
    reference: Unstructured = {"paramRef": {"selector": {}, "parameterNotFoundAction": "Allow"}}
    return admission_policy(name, [_CLUSTERS], [validation], parameters, reference)


def _message(namespace_label: str, plural: str) -> str:
    parts = (
        "'the label ' + variables.key + ' decides about a quota: it must be that of the namespace'",
        f"', \"' + {namespace_label} + '\". Another value needs the right to change {plural}'",
    )
    return " + ".join(parts)


# Policies of users


class NotAdmissibleError(ValueError):
    """No rule of a policy can be evaluated when a Cluster is written."""


def admission_policies(policy: Policy) -> list[Unstructured]:
    """The admission policy and its binding.

    Raises:
        NotAdmissibleError: no rule of the policy depends on the Cluster only.
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
            f"all rules of policy {policy.name} depend on a version or on the time: keep them"
            " in the policy"
        )
    prefix = f"{policy.namespace}-" if policy.namespace else ""
    name = f"lifecycle-{prefix}{policy.name}"
    more = {"matchConditions": _conditions(policy.spec.classes)}
    binding = {"matchResources": {"namespaceSelector": _namespaces(policy)}}
    printed = admission_policy(name, [_CLUSTERS], rules, more, binding)
    constraints = printed[0]["spec"]["matchConstraints"]
    constraints["objectSelector"] = policy.spec.cluster_selector.dump()
    return printed


def _conditions(classes: Sequence[str]) -> list[Unstructured]:
    """Exempts Clusters that are being removed, and those of other classes."""
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
