"""CRDs of kinds with arbitrary fields."""

from capelin.api import Unstructured


def definition(name: str, stored: str, *others: str) -> Unstructured:
    """The CRD of a name such as `things.example.com`: its stored version, and others it serves."""
    plural, _, group = name.partition(".")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    versions = [
        {
            "name": version,
            "served": True,
            "storage": version == stored,
            "schema": {"openAPIV3Schema": schema},
        }
        for version in (stored, *others)
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": plural.removesuffix("s").capitalize(), "plural": plural},
            "versions": versions,
        },
    }
