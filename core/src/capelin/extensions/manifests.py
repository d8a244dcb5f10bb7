"""What a cluster needs before the controller can work in it."""

from capelin.api import Unstructured, crd
from capelin.controller import rbac
from capelin.extensions.api import Extension
from capelin.extensions.controller import Extensions


def manifests() -> list[Unstructured]:
    """The kind, and a role with the least that its controller has to be allowed."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "capelin-extensions"},
        "rules": rbac([Extensions]),
    }
    return [crd(Extension), role]
