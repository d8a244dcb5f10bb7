"""A CRD of a kind with arbitrary fields."""

from typing import Any


def definition(group: str, *older: str) -> dict[str, Any]:
    """The kind Thing of an API group, stored as v1 and also served in older versions."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    versions = [
        {
            "name": name,
            "served": True,
            "storage": name == "v1",
            "schema": {"openAPIV3Schema": schema},
        }
        for name in ("v1", *older)
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": "Thing", "plural": "things"},
            "versions": versions,
        },
    }
