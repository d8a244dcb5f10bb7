"""API types of control planes that run as pods of the management cluster."""

from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from capelin.api import (
    AnyObject,
    AnyValue,
    DNSSubdomain,
    Model,
    Quantity,
    immutable,
    rule,
    set_list,
)

ImageRepository = Annotated[str, MinLen(1), MaxLen(255)]
StorageClassName = Annotated[str, MinLen(1), MaxLen(253)]
AnnotationValue = Annotated[str, MaxLen(4096)]
Spread = Literal["Preferred", "Required"]
JsonPointer = Annotated[str, MinLen(1), MaxLen(512)]

PodComponent = Literal["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
PatchedKind = Literal[
    "Deployment", "StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"
]


class Images(Model):
    """Where the images of the control plane come from."""

    repository: ImageRepository = "registry.k8s.io"
    """Registry and path of the images, such as `registry.example.com/mirror`."""
    etcd: Annotated[str, MinLen(1), MaxLen(512)] | None = None
    """Image of etcd in place of the one that Capelin was tested with."""
    pull_secrets: Annotated[list[DNSSubdomain], MaxLen(8), set_list()] = []
    """Names of secrets in the control plane's namespace, with credentials of the registry."""


class Exposure(Model):
    """How clients reach the API servers."""

    type: Literal["LoadBalancer", "NodePort", "ClusterIP"] = "LoadBalancer"
    """Type of the API servers' Service.

    `LoadBalancer` has the management cluster's load balancer give an address. `NodePort` takes the
    internal address of a node, unless `spec.controlPlaneEndpoint` names another one. `ClusterIP` is
    for clients inside the management cluster.
    """
    annotations: Annotated[dict[str, AnnotationValue], MaxLen(32)] = {}
    """Annotations of the Service, such as those that a cloud's load balancer reads."""
    load_balancer_class: Annotated[str, MinLen(1), MaxLen(253)] | None = None
    """Class of the load balancer, if not the management cluster's default."""
    portable: bool = False
    """Whether another management cluster can have the same address.

    It allows `clusterctl move` of a control plane whose endpoint is an address of this management
    cluster, for example if the load balancers of both clusters can announce it. DNS names and other
    addresses need no declaration.
    """

    rules = (
        rule(
            "!has(self.loadBalancerClass) || self.type == 'LoadBalancer'",
            "loadBalancerClass is for the type LoadBalancer",
            field_path=".loadBalancerClass",
        ),
    )


class EtcdVolume(Model):
    """Where the members of etcd keep their data."""

    medium: Literal["PersistentVolume", "Memory"] = "PersistentVolume"
    """`Memory` is for tests: all data is lost with its pod."""
    size: Quantity = "4Gi"
    """Size of each member's volume, such as `4Gi`. In memory, it counts as memory of the pod."""
    storage_class: StorageClassName | None = None
    """Storage class, if not the management cluster's default."""


class Konnectivity(Model):
    """Tunnels that nodes open to the API servers, for nodes that these do not reach."""

    enabled: bool = False
    """Whether to run a server with each API server, and an agent on each node.

    Logs, exec, port-forward, webhooks and aggregated APIs then need no route from the management
    cluster to nodes and pods. Agents reach the servers through a Service of their own, of the same
    type as that of the API servers. Disabling it later does not uninstall the agents.
    """
    server_image: Annotated[str, MinLen(1), MaxLen(512)] | None = None
    """Image of the server in place of the one that Capelin was tested with."""
    agent_image: Annotated[str, MinLen(1), MaxLen(512)] | None = None
    """Image of the agent in place of the one that Capelin was tested with."""


class Placement(Model):
    """Where the pods run."""

    zones: Spread = "Preferred"
    """Whether the pods of a component have to be in as many zones as possible. `Required` leaves a
    pod pending that would be in the wrong zone. A change restarts all components."""
    nodes: Spread = "Preferred"
    """The same for nodes. Nodes with taints that the pods do not tolerate do not count."""
    replace_members_after_seconds: Annotated[int, Ge(60), Le(86400)] | None = None
    """Seconds after which a member of etcd that has no usable node is replaced on another one.

    Its volume is deleted, and the new member copies the data of the others. This happens only
    while the others have a quorum, to one member at a time. Without this field, members wait for
    their node.
    """


class JsonPatchOperation(Model):
    """One operation of a JSON patch (RFC 6902)."""

    op: Literal["add", "remove", "replace"]
    """What to do."""
    path: JsonPointer
    """Path in the object, such as `/spec/template/spec/priorityClassName`."""
    value: AnyValue | None = None
    """The value to add or to put in place."""


class PatchTarget(Model):
    """The generated objects that a patch changes."""

    kind: PatchedKind
    """Kind of the objects."""
    component: PodComponent | None = None
    """Component of the control plane, if not all of that kind."""


class Patch(Model):
    """A change of generated objects: either `merge` or `json`."""

    target: PatchTarget
    """The objects to change."""
    merge: AnyObject | None = None
    """A strategic merge patch: lists of containers, volumes and so on are merged by name."""
    json_: Annotated[list[JsonPatchOperation], MinLen(1), MaxLen(32)] | None = None
    """A JSON patch."""

    rules = (
        rule("has(self.merge) != has(self.json)", "a patch has either merge or json, not both"),
    )


class Pods(Model):
    """Settings of a control plane that runs as pods of the management cluster."""

    images: Images = Images()
    """Where the images come from."""
    exposure: Exposure = Exposure()
    """How clients reach the API servers."""
    etcd_volume: Annotated[EtcdVolume, immutable("the volumes of etcd are immutable")] = (
        EtcdVolume()
    )
    """Where the members of etcd keep their data."""
    konnectivity: Konnectivity = Konnectivity()
    """Tunnels that nodes open to the API servers."""
    placement: Placement = Placement()
    """Where the pods run, and when members of etcd leave a lost node."""
    patches: Annotated[list[Patch], MaxLen(32)] = []
    """Changes of generated objects, in their order.

    Pods must stay within the restricted pod security standard.
    """
