"""Admission policies of an environment: it refuses Kubernetes versions that it cannot run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from capelin.api import Unstructured
from capelin.provider import Provider

_GROUP: Final = "admissionregistration.k8s.io"
_CONTROL_PLANES: Final = "capelin-control-plane-versions"
_CLUSTERS: Final = "capelin-cluster-versions"


def version_policies(
    providers: Iterable[Provider], program: str, known: Sequence[str]
) -> list[Unstructured]:
    """Policies for the control planes of providers that run a program of Kubernetes here.

    Control planes, and Clusters of classes with such control planes, are refused in a version that
    is not known. Cluster API would never take such a version back: there are no downgrades.
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
    message = f" + ' is not a Kubernetes version that Capelin can get; known: {', '.join(known)}'"
    control_planes = _policy(
        _CONTROL_PLANES,
        {"apiGroups": sorted(groups), "resources": sorted(plurals.values())},
        "!has(object.spec.version) || (oldObject != null && has(oldObject.spec.version) && "
        "oldObject.spec.version == object.spec.version) || "
        f"object.spec.version in [{versions}] || 'v' + object.spec.version in [{versions}]",
        f"object.spec.version{message}",
    )
    clusters = _policy(
        _CLUSTERS,
        {"apiGroups": ["cluster.x-k8s.io"], "resources": ["clusters"]},
        # Each ClusterClass of the namespace is a parameter once: the others do not matter.
        "!has(object.spec.topology) || "
        "object.spec.topology.classRef.name != params.metadata.name || "
        "(has(object.spec.topology.classRef.namespace) && "
        "object.spec.topology.classRef.namespace != object.metadata.namespace) || "
        f"!(params.spec.controlPlane.templateRef.kind in [{templates}]) || "
        "(oldObject != null && has(oldObject.spec.topology) && "
        "oldObject.spec.topology.version == object.spec.topology.version) || "
        f"object.spec.topology.version in [{versions}]",
        f"object.spec.topology.version{message}",
    )
    clusters["spec"]["paramKind"] = {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "ClusterClass",
    }
    parameters: Unstructured = {"paramRef": {"selector": {}, "parameterNotFoundAction": "Allow"}}
    return [
        control_planes,
        clusters,
        _binding(_CONTROL_PLANES, {}),
        _binding(_CLUSTERS, parameters),
    ]


def _policy(
    name: str, resources: Mapping[str, Sequence[str]], expression: str, message: str
) -> Unstructured:
    rule = {"apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], **resources}
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            # The command and the reconciler check it too: a policy that cannot be evaluated, as
            # while ClusterClasses are being read, must not stop everybody.
            "failurePolicy": "Ignore",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [
                {"expression": expression, "messageExpression": message, "reason": "Invalid"}
            ],
        },
    }


def _binding(name: str, more: Unstructured) -> Unstructured:
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"], **more},
    }
