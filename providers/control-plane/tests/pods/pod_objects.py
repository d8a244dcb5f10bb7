"""Control planes on pods for tests: their objects, without a management cluster."""

from capelin.controller import ObjectKey
from capelin_control_plane.api.pod_settings import Pods
from capelin_control_plane.backends.pods.exposure import api_server_service
from capelin_control_plane.backends.pods.names import Names
from capelin_control_plane.backends.pods.objects import DesiredObjects, desired_objects
from capelin_control_plane.desired.control_plane import ControlPlane

from ..factories import desired_control_plane  # noqa: TID252 - a folder without a name

NAMES = Names.of(ObjectKey("default", "one"))


def on_pods(version: str = "v1.34.4", *, replicas: int = 1, etcd_replicas: int = 1) -> ControlPlane:
    return desired_control_plane(version, replicas=replicas, etcd_replicas=etcd_replicas)


def objects_of(desired: ControlPlane, names: Names = NAMES) -> DesiredObjects:
    return desired_objects(desired, names, api_server_service(desired, names))


def settings(**fields: object) -> Pods:
    return Pods.model_validate(fields)
