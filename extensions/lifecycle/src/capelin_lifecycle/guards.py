"""Admission policies that keep users from going around the hooks of a Cluster."""

from typing import Final

from capelin.api import Unstructured
from capelin.provider import admission_policy, may_patch_status

from capelin_lifecycle.api import GROUP, ClusterLifecyclePolicy

_WRITES: Final[Unstructured] = {
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


def references_policy(name: str) -> list[Unstructured]:
    """Only controllers and administrators write what Cluster API decides its hook calls by.

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
    controls = may_patch_status("'cluster.x-k8s.io'", "'clusters'")
    references = {
        "expression": f"{unchanged} || {controls}",
        "message": "Cluster API sets infrastructureRef and controlPlaneRef of a Cluster with a"
        " topology: remove them. Only users who may patch the status of Clusters can set them, as"
        " for `clusterctl move`",
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
        name, [_WRITES], [references, progress], {"matchConditions": [condition]}
    )


def _annotation(of: str, key: str) -> str:
    return f"{of}.metadata.?annotations[?'{key}'].orValue('-')"


def _has_finalizer(of: str) -> str:
    return f"('{_FINALIZER}' in {of}.metadata.?finalizers.orValue([]))"


def quota_labels_policy(name: str) -> list[Unstructured]:
    """Only administrators choose the group of a Cluster in a quota of the whole cluster.

    Every ClusterLifecyclePolicy is a parameter. Its quota may group Clusters by a label. A user
    may give a Cluster the label that its namespace has; for another value, the user has to be one
    who may change ClusterLifecyclePolicies.
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
    return admission_policy(name, [_WRITES], [validation], parameters, reference)


def _message(namespace_label: str, plural: str) -> str:
    parts = (
        "'the label ' + variables.key + ' decides about a quota: it must be that of the namespace'",
        f"', \"' + {namespace_label} + '\"; another value needs the right to change {plural}'",
    )
    return " + ".join(parts)
