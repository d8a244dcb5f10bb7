"""The kubeadm bootstrap and control plane providers' kinds, as far as others look at them."""

from typing import Any

from pydantic import Field

from capelin.api.meta import Condition
from capelin.api.model import Model
from capelin.api.objects import BaseObject, kind
from capelin.api.views.capi.shared import Metadata, Replicas


class BootstrapInitialization(Model):
    """Whether the bootstrap data is there."""

    data_secret_created: bool | None = None


class KubeadmConfigStatus(Model):
    """Where the bootstrap data is."""

    conditions: list[Condition] = []
    initialization: BootstrapInitialization = Field(default_factory=BootstrapInitialization)
    data_secret_name: str | None = None
    observed_generation: int | None = None


@kind(group="bootstrap.cluster.x-k8s.io", version="v1beta2")
class KubeadmConfig(BaseObject):
    """How a machine joins by kubeadm."""

    spec: dict[str, Any] = {}
    status: KubeadmConfigStatus = Field(default_factory=KubeadmConfigStatus)


class KubeadmControlPlaneTemplateSpec(Model):
    """Machines of the control plane to be made."""

    metadata: Metadata = Field(default_factory=Metadata)
    spec: dict[str, Any] = {}


class KubeadmControlPlaneSpec(Model):
    """How many machines of which version."""

    replicas: int | None = None
    version: str | None = None
    machine_template: KubeadmControlPlaneTemplateSpec = Field(
        default_factory=KubeadmControlPlaneTemplateSpec
    )
    kubeadm_config_spec: dict[str, Any] = {}


class ControlPlaneInitialization(Model):
    """Whether the API server has answered once."""

    control_plane_initialized: bool | None = None


class KubeadmControlPlaneStatus(Replicas):
    """How the control plane fares."""

    conditions: list[Condition] = []
    initialization: ControlPlaneInitialization = Field(default_factory=ControlPlaneInitialization)
    selector: str | None = None
    version: str | None = None
    observed_generation: int | None = None


@kind(group="controlplane.cluster.x-k8s.io", version="v1beta2")
class KubeadmControlPlane(BaseObject):
    """A control plane on Machines, made by kubeadm."""

    spec: KubeadmControlPlaneSpec = Field(default_factory=KubeadmControlPlaneSpec)
    status: KubeadmControlPlaneStatus = Field(default_factory=KubeadmControlPlaneStatus)
