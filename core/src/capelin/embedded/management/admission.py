"""Admission policies of an environment: it refuses Kubernetes versions that it cannot run."""

from collections.abc import Iterable, Sequence
from typing import Final

from capelin.api import Unstructured, admission_policy
from capelin.provider import Provider

# The command and the reconciler check versions too: a policy that cannot be evaluated, as while
# ClusterClasses are being read, must not stop everybody.
_IGNORE: Final = {"failurePolicy": "Ignore"}


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
    # Each ClusterClass of the namespace is a parameter once.
    parameters: Unstructured = {
        "paramKind": {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "ClusterClass"}
    }
    references: Unstructured = {
        "paramRef": {"selector": {}, "parameterNotFoundAction": "Allow"},
    }
    return [
        *admission_policy(
            "capelin-control-plane-versions",
            [_rule(sorted(groups), sorted(plurals.values()))],
            [
                _validation(
                    "!has(object.spec.version) || (oldObject != null && "
                    "has(oldObject.spec.version) && "
                    "oldObject.spec.version == object.spec.version) || "
                    f"object.spec.version in [{versions}] || "
                    f"'v' + object.spec.version in [{versions}]",
                    f"object.spec.version{message}",
                )
            ],
            _IGNORE,
        ),
        *admission_policy(
            "capelin-cluster-versions",
            [_rule(["cluster.x-k8s.io"], ["clusters"])],
            [
                _validation(
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
            ],
            {**_IGNORE, **parameters},
            references,
        ),
    ]


def _rule(groups: list[str], resources: list[str]) -> Unstructured:
    return {
        "apiGroups": groups,
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": resources,
    }


def _validation(expression: str, message: str) -> Unstructured:
    return {"expression": expression, "messageExpression": message, "reason": "Invalid"}
