"""The images of a control plane's components. Pure."""

from capelin_control_plane.desired import Component, ControlPlane

ETCD_TAG = "3.6.5-0"
"""The etcd of all Kubernetes versions: an upgrade of a control plane leaves etcd alone."""


def image_of(component: Component, desired: ControlPlane) -> str:
    """The image of a component."""
    images = desired.pods.images
    if component == "etcd":
        return images.etcd or f"{images.repository}/etcd:{ETCD_TAG}"
    return f"{images.repository}/{component}:{desired.version}"
