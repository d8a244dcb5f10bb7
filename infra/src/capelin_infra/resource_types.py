"""The resource types of the Pulumi provider: the source of its schema and of its Python classes."""

import re
from dataclasses import dataclass
from typing import Annotated, Final

from capelin.api import DescribedModel, Model
from capelin_cli.kind import KindConfig
from pydantic import Field

PACKAGE: Final = "capelin"
_PRE_RELEASE: Final = re.compile(r"\.?(a|b|rc|dev)(\d+)")


def semantic_version(version: str) -> str:
    """A version of a Python package as the engine needs it: `0.2.0rc1` is `0.2.0-rc.1`."""
    marks = [f"{mark}.{number}" for mark, number in _PRE_RELEASE.findall(version)]
    return "-".join([_PRE_RELEASE.sub("", version), *([".".join(marks)] if marks else [])])


@dataclass(frozen=True, slots=True)
class Secret:
    """Marks a property that is encrypted in the state and never shown."""


class EnvironmentInputs(DescribedModel):
    """A management cluster of processes on this machine, with Cluster API and Capelin in it.

    Equal to `capelin up --management-only`: `capelin status`, `logs` and `down` work on it.
    """

    name: str
    """Name of the environment in `capelin status -e NAME`."""
    kubernetes_version: str | None = None
    """Kubernetes version of the management cluster, such as `v1.36.3`. A later one upgrades it.

    Default: the newest known one, and then the version that the cluster has.
    """
    providers: list[str] = []
    """More providers of `capelin up --with`: `kubeadm-bootstrap`, `kubeadm`..."""
    existing_kubeconfig: Annotated[str | None, Secret()] = None
    """Content of a kubeconfig of an existing API server, such as kind's.

    Controllers run as processes on this machine all the same. Default: an API server is started.
    """
    machine_images: list[str] = []
    """Images of machines that are containers and run pods, such as `kindest/node:v1.36.1`.

    Their clusters need the same property. Default: machines are simulated.
    """


class EnvironmentState(EnvironmentInputs):
    """An environment as it is."""

    uid: str
    """UID of the namespace `kube-system`, which no two clusters share."""
    kubeconfig: Annotated[str, Secret()]
    """Content of the administrator's kubeconfig."""
    context: str
    """Name of the context in the kubeconfig."""
    version: str
    """Kubernetes version of the management cluster."""
    folder: str
    """Where the environment keeps its data and logs."""
    running: bool
    """Whether everything ran at the last check."""


class KindClusterInputs(KindConfig):
    """A Kubernetes cluster in containers of this machine, made by kind."""

    registry_mirrors: Annotated[dict[str, str], Secret()] = {}
    """Where nodes pull images from: registry host to the URL of its mirror."""
    images: list[str] = []
    """Images to load into the nodes: paths of archives, or references that the engine has.

    Whether one has to be loaded again is decided by its digest.
    """


class KindClusterState(KindClusterInputs):
    """A kind cluster as it is."""

    uid: str
    """UID of the namespace `kube-system`, which no two clusters share."""
    kubeconfig: Annotated[str, Secret()]
    """Content of the administrator's kubeconfig."""
    image_digests: dict[str, str]
    """Digest of each loaded image."""
    running: bool
    """Whether all nodes ran at the last check."""


class WorkloadClusterInputs(DescribedModel):
    """A Cluster of Cluster API, made from a ClusterClass. It is created when it is Available."""

    kubeconfig: Annotated[str, Secret()]
    """Content of a kubeconfig of the management cluster. It may be renewed."""
    management_uid: str | None = None
    """The `uid` of the management cluster. Another one replaces the workload cluster."""
    name: str
    """Name of the Cluster."""
    namespace: str = "default"
    """Namespace of the Cluster."""
    cluster_class: str = "capelin"
    """Name of the ClusterClass, in the same namespace."""
    kubernetes_version: str
    """Kubernetes version, such as `v1.36.3`. A later one upgrades the cluster."""
    control_plane_replicas: Annotated[int, Field(ge=1)] = 1
    """Number of control plane replicas."""
    workers: Annotated[int, Field(ge=0)] = 3
    """Number of workers."""
    variables: Annotated[dict[str, str], Secret()] = {}
    """Variables of the ClusterClass. Values are YAML, and `a.b` is a field of an object."""
    machine_images: list[str] = []
    """Images of its machines, which are containers and run pods. The environment has them, too.

    Default: machines are simulated.
    """


class WorkloadClusterState(WorkloadClusterInputs):
    """A workload cluster as it is."""

    uid: str
    """Distinguishes the Cluster from others of the same name."""
    workload_kubeconfig: Annotated[str, Secret()]
    """Content of the workload cluster's kubeconfig."""
    endpoint: str
    """Host and port of the workload cluster's API server."""
    available: bool
    """Whether all of it was as desired at the last check."""


class AdmissionCheckInputs(DescribedModel):
    """Waits until the API server accepts an object in a dry run, so that its webhooks answer."""

    kubeconfig: Annotated[str, Secret()]
    """Content of a kubeconfig of the cluster. It may be renewed."""
    cluster_uid: str | None = None
    """The `uid` of the cluster. Another one repeats the check."""
    manifest: Annotated[str, Secret()]
    """The object, as JSON. It is never stored in the cluster."""


class AdmissionCheckState(AdmissionCheckInputs):
    """A check that has passed."""

    accepted: bool
    """Whether the object was accepted."""


@dataclass(frozen=True, slots=True)
class ResourceType:
    """A resource type: its inputs, and its outputs."""

    name: str
    inputs: type[Model]
    state: type[Model]
    fixed: frozenset[str] = frozenset()
    """The inputs, by the engine's names, whose change needs another resource."""
    clusters: frozenset[str] = frozenset()
    """The inputs that come from the cluster with the resource.

    If a preview does not know them, that cluster is replaced, and the resource with it.
    """

    @property
    def token(self) -> str:
        """The engine's name of the type."""
        return f"{PACKAGE}:index:{self.name}"

    @property
    def outputs(self) -> set[str]:
        """The engine's names of the outputs that are not inputs."""
        return property_names(self.state) - property_names(self.inputs)


ENVIRONMENT: Final = ResourceType(
    "Environment",
    EnvironmentInputs,
    EnvironmentState,
    fixed=frozenset({"name"}),
    clusters=frozenset({"existingKubeconfig"}),
)
WORKLOAD_CLUSTER: Final = ResourceType(
    "WorkloadCluster",
    WorkloadClusterInputs,
    WorkloadClusterState,
    fixed=frozenset({"name", "namespace", "clusterClass", "machineImages"}),
    clusters=frozenset({"managementUID"}),
)
KIND_CLUSTER: Final = ResourceType(
    "KindCluster",
    KindClusterInputs,
    KindClusterState,
    frozenset({"name", "image", "nodes", "featureGates", "podSubnet"}),
)
ADMISSION_CHECK: Final = ResourceType(
    "AdmissionCheck",
    AdmissionCheckInputs,
    AdmissionCheckState,
    clusters=frozenset({"clusterUID"}),
)
RESOURCE_TYPES: Final = (KIND_CLUSTER, ENVIRONMENT, WORKLOAD_CLUSTER, ADMISSION_CHECK)


def secrets_of(model: type[Model]) -> set[str]:
    """The engine's names of the secret properties."""
    return {
        field.alias or name
        for name, field in model.model_fields.items()
        if any(isinstance(annotation, Secret) for annotation in field.metadata)
    }


def property_names(model: type[Model]) -> set[str]:
    """The engine's names of a type's properties."""
    return {field.alias or name for name, field in model.model_fields.items()}
