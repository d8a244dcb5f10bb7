"""Admission policies of an environment: they reject Kubernetes versions that it cannot run."""

from collections.abc import Iterable, Sequence

from capelin.api import Unstructured, admission_policy
from capelin.provider import Provider


def version_policies(
    providers: Iterable[Provider], program: str, known: Sequence[str]
) -> list[Unstructured]:
    """Policies for the control planes of providers that run a Kubernetes binary here.

    They reject control planes, and Clusters of classes with such control planes, in an unknown
    version. Cluster API would never revert such a version, because it does not support downgrades.
    """
    plurals: dict[str, str] = {}
    groups: set[str] = set()
    for provider in providers:
        if provider.type != "ControlPlaneProvider" or program not in provider.programs:
            continue
        for crd in provider.crds:
            names = crd["spec"]["names"]
            if not names["kind"].endswith("Template"):
                plurals[names["kind"]] = names["plural"]
                groups.add(crd["spec"]["group"])
    if not plurals:
        return []
    versions = ", ".join(f"'{version}'" for version in known)
    templates = ", ".join(f"'{kind}Template'" for kind in plurals)
    message = f" + ' is not a Kubernetes version that Capelin provides (known: {', '.join(known)})'"
    return [
        *_policy(
            "capelin-control-plane-versions",
            {"apiGroups": sorted(groups), "resources": sorted(plurals.values())},
            "!has(object.spec.version) || (oldObject != null && has(oldObject.spec.version) && "
            "oldObject.spec.version == object.spec.version) || "
            f"object.spec.version in [{versions}] || 'v' + object.spec.version in [{versions}]",
            f"object.spec.version{message}",
        ),
        *_policy(
            "capelin-cluster-versions",
            {"apiGroups": ["cluster.x-k8s.io"], "resources": ["clusters"]},
            # Each ClusterClass of the namespace is a parameter once. Others do not matter.
            "!has(object.spec.topology) || "
            "object.spec.topology.classRef.name != params.metadata.name || "
            "(has(object.spec.topology.classRef.namespace) && "
            "object.spec.topology.classRef.namespace != object.metadata.namespace) || "
            f"!(params.spec.controlPlane.templateRef.kind in [{templates}]) || "
            "(oldObject != null && has(oldObject.spec.topology) && "
            "oldObject.spec.topology.version == object.spec.topology.version) || "
            f"object.spec.topology.version in [{versions}]",
            f"object.spec.topology.version{message}",
            {"paramKind": {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "ClusterClass"}},
            {"paramRef": {"selector": {}, "parameterNotFoundAction": "Allow"}},
        ),
    ]


def _policy(  # noqa: PLR0917 - the parts of a policy, in their order
    name: str,
    resources: Unstructured,
    expression: str,
    message: str,
    more: Unstructured | None = None,
    binding: Unstructured | None = None,
) -> list[Unstructured]:
    rule = {"apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], **resources}
    validation = {"expression": expression, "messageExpression": message, "reason": "Invalid"}
    # The command and the reconciler check versions too. A policy that cannot be evaluated, for
    # example while the API server reads ClusterClasses, must not block all users.
    spec = {"failurePolicy": "Ignore", **(more or {})}
    return admission_policy(name, [rule], [validation], spec, binding)
