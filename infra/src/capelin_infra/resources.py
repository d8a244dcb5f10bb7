"""The resources of the Pulumi provider `capelin`, for programs in Python.

Generated from `resource_types` by `python -m infra.tests.python_classes`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

import pulumi

from capelin_infra import resource_types
from capelin_infra.base_resource import BaseResource


class KindMount(TypedDict):
    """A folder of this machine in a node."""

    hostPath: str
    """Absolute path on this machine."""
    containerPath: str
    """Absolute path in the node."""
    readOnly: NotRequired[bool]
    """Whether the node may not write to it."""


class KindPort(TypedDict):
    """A port of a node that this machine listens on."""

    containerPort: int
    """Port in the node."""
    hostPort: int
    """Port of this machine."""
    listenAddress: NotRequired[str]
    """Address of this machine that it listens on."""
    protocol: NotRequired[Literal["TCP", "UDP", "SCTP"]]
    """Protocol of the port."""


class KindNode(TypedDict):
    """A node of a kind cluster."""

    role: NotRequired[Literal["control-plane", "worker"]]
    """Role of the node."""
    mounts: NotRequired[Sequence[KindMount]]
    """Folders of this machine in the node."""
    ports: NotRequired[Sequence[KindPort]]
    """Ports of the node on this machine."""
    labels: NotRequired[Mapping[str, str]]
    """Labels of the Node object."""


class KindCluster(BaseResource):
    """A Kubernetes cluster in containers of this machine, made by kind."""

    _kind = resource_types.KIND_CLUSTER

    name: pulumi.Output[str]
    """Name of the cluster in `kind get clusters`."""
    image: pulumi.Output[str | None]
    """Image of the nodes. Default: kind's own."""
    nodes: pulumi.Output[Sequence[Mapping[str, Any]]]
    """The nodes. Default: one control plane node, which runs everything."""
    feature_gates: pulumi.Output[Mapping[str, bool]]
    """Feature gates of all of Kubernetes' components."""
    pod_subnet: pulumi.Output[str | None]
    """Addresses of pods, such as `10.244.0.0/16`. Default: kind's own."""
    registry_mirrors: pulumi.Output[Mapping[str, str]]
    """Where nodes pull images from: registry host to the URL of its mirror."""
    images: pulumi.Output[Sequence[str]]
    """Images to load into the nodes: paths of archives, or references that the engine has.

    Whether one has to be loaded again is decided by its digest.
    """
    uid: pulumi.Output[str]
    """UID of the namespace `kube-system`, which no two clusters share."""
    kubeconfig: pulumi.Output[str]
    """Content of the administrator's kubeconfig."""
    image_digests: pulumi.Output[Mapping[str, str]]
    """Digest of each loaded image."""
    running: pulumi.Output[bool]
    """Whether all nodes ran at the last check."""

    def __init__(
        self,
        resource_name: str,
        *,
        opts: pulumi.ResourceOptions | None = None,
        name: pulumi.Input[str],
        image: pulumi.Input[str] | None = None,
        nodes: pulumi.Input[Sequence[KindNode]] | None = None,
        feature_gates: pulumi.Input[Mapping[str, bool]] | None = None,
        pod_subnet: pulumi.Input[str] | None = None,
        registry_mirrors: pulumi.Input[Mapping[str, str]] | None = None,
        images: pulumi.Input[Sequence[str]] | None = None,
    ) -> None:
        super().__init__(resource_name, locals(), opts)


class Environment(BaseResource):
    """A management cluster of processes on this machine, with Cluster API and Capelin in it.

    Equal to `capelin up --management-only`: `capelin status`, `logs` and `down` work on it.
    """

    _kind = resource_types.ENVIRONMENT

    name: pulumi.Output[str]
    """Name of the environment in `capelin status -e NAME`."""
    kubernetes_version: pulumi.Output[str | None]
    """Kubernetes version of the management cluster, such as `v1.36.3`. A later one upgrades it.

    Default: the newest known one, and then the version that the cluster has.
    """
    providers: pulumi.Output[Sequence[str]]
    """More providers of `capelin up --with`: `kubeadm-bootstrap`, `kubeadm`..."""
    existing_kubeconfig: pulumi.Output[str | None]
    """Content of a kubeconfig of an existing API server, such as kind's.

    Controllers run as processes on this machine all the same. Default: an API server is
    started.
    """
    machine_images: pulumi.Output[Sequence[str]]
    """Images of machines that are containers and run pods, such as `kindest/node:v1.36.1`.

    Their clusters need the same property. Default: machines are simulated.
    """
    uid: pulumi.Output[str]
    """UID of the namespace `kube-system`, which no two clusters share."""
    kubeconfig: pulumi.Output[str]
    """Content of the administrator's kubeconfig."""
    context: pulumi.Output[str]
    """Name of the context in the kubeconfig."""
    version: pulumi.Output[str]
    """Kubernetes version of the management cluster."""
    folder: pulumi.Output[str]
    """Where the environment keeps its data and logs."""
    running: pulumi.Output[bool]
    """Whether everything ran at the last check."""

    def __init__(
        self,
        resource_name: str,
        *,
        opts: pulumi.ResourceOptions | None = None,
        name: pulumi.Input[str],
        kubernetes_version: pulumi.Input[str] | None = None,
        providers: pulumi.Input[Sequence[str]] | None = None,
        existing_kubeconfig: pulumi.Input[str] | None = None,
        machine_images: pulumi.Input[Sequence[str]] | None = None,
    ) -> None:
        super().__init__(resource_name, locals(), opts)


class WorkloadCluster(BaseResource):
    """A Cluster of Cluster API, made from a ClusterClass. It is created when it is Available."""

    _kind = resource_types.WORKLOAD_CLUSTER

    kubeconfig: pulumi.Output[str]
    """Content of a kubeconfig of the management cluster. It may be renewed."""
    management_uid: pulumi.Output[str | None]
    """The `uid` of the management cluster. Another one replaces the workload cluster."""
    name: pulumi.Output[str]
    """Name of the Cluster."""
    namespace: pulumi.Output[str]
    """Namespace of the Cluster."""
    cluster_class: pulumi.Output[str]
    """Name of the ClusterClass, in the same namespace."""
    kubernetes_version: pulumi.Output[str]
    """Kubernetes version, such as `v1.36.3`. A later one upgrades the cluster."""
    control_plane_replicas: pulumi.Output[int]
    """Number of control plane replicas."""
    workers: pulumi.Output[int]
    """Number of workers."""
    variables: pulumi.Output[Mapping[str, str]]
    """Variables of the ClusterClass. Values are YAML, and `a.b` is a field of an object."""
    machine_images: pulumi.Output[Sequence[str]]
    """Images of its machines, which are containers and run pods. The environment has them, too.

    Default: machines are simulated.
    """
    uid: pulumi.Output[str]
    """Distinguishes the Cluster from others of the same name."""
    workload_kubeconfig: pulumi.Output[str]
    """Content of the workload cluster's kubeconfig."""
    endpoint: pulumi.Output[str]
    """Host and port of the workload cluster's API server."""
    available: pulumi.Output[bool]
    """Whether all of it was as desired at the last check."""

    def __init__(
        self,
        resource_name: str,
        *,
        opts: pulumi.ResourceOptions | None = None,
        kubeconfig: pulumi.Input[str],
        name: pulumi.Input[str],
        kubernetes_version: pulumi.Input[str],
        management_uid: pulumi.Input[str] | None = None,
        namespace: pulumi.Input[str] | None = None,
        cluster_class: pulumi.Input[str] | None = None,
        control_plane_replicas: pulumi.Input[int] | None = None,
        workers: pulumi.Input[int] | None = None,
        variables: pulumi.Input[Mapping[str, str]] | None = None,
        machine_images: pulumi.Input[Sequence[str]] | None = None,
    ) -> None:
        super().__init__(resource_name, locals(), opts)


class AdmissionCheck(BaseResource):
    """Waits until the API server accepts an object in a dry run, so that its webhooks answer."""

    _kind = resource_types.ADMISSION_CHECK

    kubeconfig: pulumi.Output[str]
    """Content of a kubeconfig of the cluster. It may be renewed."""
    cluster_uid: pulumi.Output[str | None]
    """The `uid` of the cluster. Another one repeats the check."""
    manifest: pulumi.Output[str]
    """The object, as JSON. It is never stored in the cluster."""
    accepted: pulumi.Output[bool]
    """Whether the object was accepted."""

    def __init__(
        self,
        resource_name: str,
        *,
        opts: pulumi.ResourceOptions | None = None,
        kubeconfig: pulumi.Input[str],
        manifest: pulumi.Input[str],
        cluster_uid: pulumi.Input[str] | None = None,
    ) -> None:
        super().__init__(resource_name, locals(), opts)
