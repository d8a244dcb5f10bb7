"""The resource types of the Pulumi provider: the source of its schema and of its Python classes."""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from capelin.api import DescribedModel, Model, Port
from pydantic import Field

PACKAGE: Final = "capelin"


@dataclass(frozen=True, slots=True)
class Secret:
    """Marks a property that is encrypted in the state and never shown."""


@dataclass(frozen=True, slots=True)
class Replaces:
    """Marks an input that cannot be changed: another value makes another resource."""


class EnvironmentInputs(DescribedModel):
    """A management cluster of processes on this machine, with Cluster API and Capelin in it.

    What `capelin up --management-only` makes: `capelin status`, `logs` and `down` work on it.
    """

    name: Annotated[str, Replaces()]
    """Name of the environment, as in `capelin status -e NAME`."""
    kubernetes_version: Annotated[str | None, Replaces()] = None
    """Kubernetes version of the management cluster, as in `v1.34.4`.

    Default: the newest known one.
    """
    providers: list[str] = []
    """More providers, as `capelin up --with` takes them: `kubeadm-bootstrap`, `kubeadm`..."""
    existing_kubeconfig: Annotated[str | None, Secret()] = None
    """Content of a kubeconfig of an existing API server, such as kind's.

    Controllers run as processes on this machine all the same. Default: an API server is started.
    """


class EnvironmentState(EnvironmentInputs):
    """An environment as it is."""

    kubeconfig: Annotated[str, Secret()]
    """Content of the administrator's kubeconfig."""
    context: str
    """Name of the context in the kubeconfig."""
    version: str
    """Kubernetes version of the management cluster."""
    folder: str
    """Where the environment keeps its data and logs."""
    running: bool
    """Whether everything ran when it was last looked at."""


class KindMount(DescribedModel):
    """A folder of this machine in a node."""

    host_path: str
    """Absolute path on this machine."""
    container_path: str
    """Absolute path in the node."""
    read_only: bool = False
    """Whether the node may not write to it."""


class KindPort(DescribedModel):
    """A port of a node that this machine listens on."""

    container_port: Port
    """Port in the node."""
    host_port: Port
    """Port of this machine."""
    listen_address: str = "127.0.0.1"
    """Address of this machine that it listens on."""
    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    """Protocol of the port."""


class KindNode(DescribedModel):
    """A node of a kind cluster."""

    role: Literal["control-plane", "worker"] = "control-plane"
    """What the node does."""
    mounts: list[KindMount] = []
    """Folders of this machine in the node."""
    ports: list[KindPort] = []
    """Ports of the node on this machine."""
    labels: dict[str, str] = {}
    """Labels of the Node object."""


class KindClusterInputs(DescribedModel):
    """A Kubernetes cluster in containers of this machine, made by kind."""

    name: Annotated[str, Replaces()]
    """Name of the cluster, as in `kind get clusters`."""
    image: Annotated[str | None, Replaces()] = None
    """Image of the nodes. Default: kind's own."""
    nodes: Annotated[list[KindNode], Replaces()] = []
    """The nodes. Default: one control plane node, which runs everything."""
    feature_gates: Annotated[dict[str, bool], Replaces()] = {}
    """Feature gates of all of Kubernetes' components."""
    pod_subnet: Annotated[str | None, Replaces()] = None
    """Addresses of pods, as in `10.244.0.0/16`. Default: kind's own."""
    registry_mirrors: dict[str, str] = {}
    """Where nodes pull images from: registry host to the URL of its mirror."""
    images: list[str] = []
    """Images to load into the nodes: paths of archives, or references that the engine has.

    Whether one has to be loaded again is decided by its digest.
    """


class KindClusterState(KindClusterInputs):
    """A kind cluster as it is."""

    kubeconfig: Annotated[str, Secret()]
    """Content of the administrator's kubeconfig."""
    image_digests: dict[str, str]
    """Digest of each loaded image."""
    running: bool
    """Whether all nodes ran when they were last looked at."""


class WorkloadClusterInputs(DescribedModel):
    """A Cluster of Cluster API, made from a ClusterClass. It is created when it is Available."""

    kubeconfig: Annotated[str, Secret()]
    """Content of a kubeconfig of the management cluster."""
    name: Annotated[str, Replaces()]
    """Name of the Cluster."""
    namespace: Annotated[str, Replaces()] = "default"
    """Namespace of the Cluster."""
    cluster_class: Annotated[str, Replaces()] = "capelin"
    """Name of the ClusterClass, in the same namespace."""
    kubernetes_version: str
    """Kubernetes version, as in `v1.34.4`. A later one upgrades the cluster."""
    control_plane_replicas: Annotated[int, Field(ge=1)] = 1
    """Number of control plane replicas."""
    workers: Annotated[int, Field(ge=0)] = 3
    """Number of workers."""
    variables: Annotated[dict[str, str], Secret()] = {}
    """Variables of the ClusterClass; values are YAML, and `a.b` is a field of an object."""


class WorkloadClusterState(WorkloadClusterInputs):
    """A workload cluster as it is."""

    uid: str
    """Which Cluster it is: another one of that name is none of ours."""
    workload_kubeconfig: Annotated[str, Secret()]
    """Content of the workload cluster's kubeconfig."""
    endpoint: str
    """Host and port of the workload cluster's API server."""
    available: bool
    """Whether all of it was as desired when it was last looked at."""


class AdmissionCheckInputs(DescribedModel):
    """Waits until the API server accepts an object in a dry run, so that its webhooks answer."""

    kubeconfig: Annotated[str, Secret()]
    """Content of a kubeconfig of the cluster."""
    manifest: Annotated[str, Secret()]
    """The object, as JSON. It is never stored in the cluster."""


class AdmissionCheckState(AdmissionCheckInputs):
    """A check that has passed."""

    accepted: bool
    """Whether the object was accepted."""


@dataclass(frozen=True, slots=True)
class ResourceType:
    """A resource type: what a program gives, and what it gets."""

    name: str
    inputs: type[Model]
    state: type[Model]

    @property
    def token(self) -> str:
        """As the engine names it."""
        return f"{PACKAGE}:index:{self.name}"


ENVIRONMENT: Final = ResourceType("Environment", EnvironmentInputs, EnvironmentState)
WORKLOAD_CLUSTER: Final = ResourceType(
    "WorkloadCluster", WorkloadClusterInputs, WorkloadClusterState
)
KIND_CLUSTER: Final = ResourceType("KindCluster", KindClusterInputs, KindClusterState)
ADMISSION_CHECK: Final = ResourceType("AdmissionCheck", AdmissionCheckInputs, AdmissionCheckState)
RESOURCE_TYPES: Final = (KIND_CLUSTER, ENVIRONMENT, WORKLOAD_CLUSTER, ADMISSION_CHECK)


def marked(model: type[Model], marker: type[Any]) -> set[str]:
    """The names, as the engine has them, of the properties with a marker."""
    return {
        field.alias or name
        for name, field in model.model_fields.items()
        if any(isinstance(annotation, marker) for annotation in field.metadata)
    }


def outputs_of(kind: ResourceType) -> set[str]:
    """The names, as the engine has them, of what is an output and no input."""
    return property_names(kind.state) - property_names(kind.inputs)


def property_names(model: type[Model]) -> set[str]:
    """The names of a type's properties, as the engine has them."""
    return {field.alias or name for name, field in model.model_fields.items()}
