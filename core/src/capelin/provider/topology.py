"""The admission policy for the objects that Cluster API's topology controller owns."""

from collections.abc import Iterable
from typing import Final

from capelin.api import BaseObject, Unstructured, admission_policy

OWNED: Final = "topology.cluster.x-k8s.io/owned"
_OPERATIONS: Final = (
    "annotations of this API group are operations that no hook of the Cluster holds: they need the"
    " right to patch the subresource operations"
)


def may_patch(group: str, resource: str, subresource: str = "status") -> str:
    """The CEL expression that is true for controllers of a resource, and for administrators.

    Users of Cluster API write the spec of objects, and controllers write the status. So this needs
    no list of users, which would depend on namespaces and on the installation. Users who may patch
    the subresource `operations` may annotate objects with operations. It exists only in roles.
    """
    return (
        f"authorizer.group({group}).resource({resource}).subresource('{subresource}')"
        ".namespace(request.namespace).check('patch').allowed()"
    )


def topology_owned(name: str, kinds: Iterable[type[BaseObject]]) -> list[Unstructured]:
    """The policy, and its binding, that lets only controllers change and delete owned objects.

    Otherwise a user could start an upgrade or a deletion that a lifecycle hook of the Cluster
    still blocks. Users may change labels and annotations, except for the owner's label and for
    annotations of the object's API group: these are operations, or the state of a controller.
    """
    resources: dict[str, list[str]] = {}
    for kind in kinds:
        resources.setdefault(kind.resource.group, []).append(kind.resource.plural)
    rules = [
        {
            "apiGroups": [group],
            "apiVersions": ["*"],
            "operations": ["UPDATE", "DELETE"],
            "resources": sorted(plurals),
        }
        for group, plurals in sorted(resources.items())
    ]
    unchanged = " && ".join(
        [
            "object.?spec == oldObject.?spec",
            *(
                f"object.metadata.?{field} == oldObject.metadata.?{field}"
                for field in ("ownerReferences", "finalizers")
            ),
            f"'{OWNED}' in object.metadata.?labels.orValue({{}})",
        ]
    )
    resource = "request.resource.group", "request.resource.resource"
    expression = (
        f"request.operation == 'UPDATE' && {unchanged}"
        # The namespace controller deletes the objects of a namespace.
        " || namespaceObject != null && has(namespaceObject.metadata.deletionTimestamp)"
        f" || {may_patch(*resource)}"
    )
    operations = (
        "request.operation == 'DELETE' || [object, oldObject].all(each,"
        " each.metadata.?annotations.orValue({}).all(key,"
        " !key.startsWith(request.resource.group + '/')"
        " || object.metadata.?annotations[?key] == oldObject.metadata.?annotations[?key]))"
        f" || {may_patch(*resource)} || {may_patch(*resource, 'operations')}"
    )
    message = (
        "Cluster API's topology controller owns this object: change spec.topology of its Cluster,"
        " or delete the Cluster"
    )
    condition = f"'{OWNED}' in oldObject.metadata.?labels.orValue({{}})"
    return admission_policy(
        name,
        rules,
        [
            {"expression": expression, "message": message, "reason": "Forbidden"},
            {"expression": operations, "message": _OPERATIONS, "reason": "Forbidden"},
        ],
        {"matchConditions": [{"name": "owned-by-a-topology", "expression": condition}]},
    )
