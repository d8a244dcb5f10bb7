"""The provider as Cluster API installs it: kinds, permissions, manager."""

from importlib.metadata import version

from capelin.api import Unstructured
from capelin.provider import Provider

from capelin_control_plane.api import CapelinControlPlane, CapelinControlPlaneTemplate
from capelin_control_plane.desired import PROGRAMS
from capelin_control_plane.reconciler import CapelinControlPlaneReconciler

LABEL = "control-plane-capelin"


def provider() -> Provider:
    """The provider, for environments that install it."""
    return Provider.of(
        "capelin",
        "ControlPlaneProvider",
        version=f"v{version('capelin-control-plane')}",
        module="capelin_control_plane",
        reconcilers=[CapelinControlPlaneReconciler],
        kinds=[CapelinControlPlaneTemplate],
        programs=PROGRAMS,
        objects=read_by_bootstrap_provider(),
    )


def read_by_bootstrap_provider() -> list[Unstructured]:
    """The kubeadm bootstrap provider's permission to read the version of a control plane.

    It reads every control plane kind, but its own role covers only KubeadmControlPlane, and it does
    not aggregate others.
    """
    name = f"{LABEL}-read-by-kubeadm-bootstrap"
    group = "rbac.authorization.k8s.io"
    resource = CapelinControlPlane.resource
    rule = {"apiGroups": [resource.group], "resources": [resource.plural], "verbs": ["get"]}
    reader = {
        "kind": "ServiceAccount",
        "name": "capi-kubeadm-bootstrap-manager",
        "namespace": "capi-kubeadm-bootstrap-system",
    }
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": [rule],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [reader],
        },
    ]
