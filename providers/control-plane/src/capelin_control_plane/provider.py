"""The provider as Cluster API installs it: its kinds, its permissions, its manager."""

from importlib.metadata import version

from capelin.api import crd
from capelin.controller import rbac
from capelin.embedded.management.providers import Provider

from capelin_control_plane.api import CapelinControlPlane, CapelinControlPlaneTemplate
from capelin_control_plane.reconciler import ControlPlanes

LABEL = "control-plane-capelin"


def provider() -> Provider:
    """What an environment needs to know to run this provider."""
    return Provider(
        name="capelin",
        type="ControlPlaneProvider",
        version=f"v{version('capelin-control-plane')}",
        module="capelin_control_plane",
        crds=[
            crd(CapelinControlPlane, provider=LABEL),
            crd(CapelinControlPlaneTemplate, provider=LABEL),
        ],
        rules=rbac([ControlPlanes]),
    )
