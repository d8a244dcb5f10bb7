"""The hooks for the life of a cluster with a managed topology."""

from capelin.runtime.catalog import Hook
from capelin.runtime.messages import Part, Response, RetryResponse
from capelin.runtime.v1alpha1.common import API_VERSION, CLUSTER_API, ClusterRequest

GO_PACKAGE = "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"

_TAG = "Lifecycle Hooks"


class UpgradeStepInfo(Part):
    """One step of an upgrade."""

    version: str


class UpgradeRequest(ClusterRequest):
    """A request about the next steps of an upgrade."""

    from_kubernetes_version: str
    to_kubernetes_version: str
    control_plane_upgrades: list[UpgradeStepInfo] = []
    """The remaining steps of the control plane."""
    workers_upgrades: list[UpgradeStepInfo] = []
    """The remaining steps of the workers."""


class UpgradedRequest(ClusterRequest):
    """A request about the version that an upgrade has reached."""

    kubernetes_version: str
    control_plane_upgrades: list[UpgradeStepInfo] = []
    """The remaining steps of the control plane."""
    workers_upgrades: list[UpgradeStepInfo] = []
    """The remaining steps of the workers."""


class BeforeClusterCreateRequest(ClusterRequest):
    """A cluster before its creation."""


class BeforeClusterCreateResponse(RetryResponse):
    """Whether to continue."""


@CLUSTER_API.hook(API_VERSION, tag=_TAG, summary="Before anything of the topology is created")
class BeforeClusterCreate(Hook[BeforeClusterCreateRequest, BeforeClusterCreateResponse]):
    """Called when a Cluster exists, before core creates its topology. Blocks the creation."""


class AfterControlPlaneInitializedRequest(ClusterRequest):
    """A cluster whose control plane answers for the first time."""


class AfterControlPlaneInitializedResponse(Response):
    """The result of the handler."""


@CLUSTER_API.hook(
    API_VERSION, tag=_TAG, summary="When the control plane answers for the first time"
)
class AfterControlPlaneInitialized(
    Hook[AfterControlPlaneInitializedRequest, AfterControlPlaneInitializedResponse]
):
    """Called when the workload cluster first answers, and again on failure. Blocks nothing."""


class BeforeClusterUpgradeRequest(UpgradeRequest):
    """A cluster that is about to be upgraded, with all steps of the upgrade."""


class BeforeClusterUpgradeResponse(RetryResponse):
    """Whether to continue."""


@CLUSTER_API.hook(API_VERSION, tag=_TAG, summary="Before an upgrade starts")
class BeforeClusterUpgrade(Hook[BeforeClusterUpgradeRequest, BeforeClusterUpgradeResponse]):
    """Called once for an upgrade, before its first step. Blocks all of it."""


class BeforeControlPlaneUpgradeRequest(UpgradeRequest):
    """A control plane that is about to take a step."""


class BeforeControlPlaneUpgradeResponse(RetryResponse):
    """Whether to continue."""


@CLUSTER_API.hook(API_VERSION, tag=_TAG, summary="Before the control plane takes a step")
class BeforeControlPlaneUpgrade(
    Hook[BeforeControlPlaneUpgradeRequest, BeforeControlPlaneUpgradeResponse]
):
    """Called before each version that the control plane goes through. Blocks that step."""


class AfterControlPlaneUpgradeRequest(UpgradedRequest):
    """A control plane that has taken a step."""


class AfterControlPlaneUpgradeResponse(RetryResponse):
    """Whether to continue."""


@CLUSTER_API.hook(API_VERSION, tag=_TAG, summary="After the control plane has taken a step")
class AfterControlPlaneUpgrade(
    Hook[AfterControlPlaneUpgradeRequest, AfterControlPlaneUpgradeResponse]
):
    """Called after each version that the control plane went through. Blocks the next step."""


class BeforeWorkersUpgradeRequest(UpgradeRequest):
    """Workers that are about to take a step."""


class BeforeWorkersUpgradeResponse(RetryResponse):
    """Whether to continue."""


@CLUSTER_API.hook(API_VERSION, tag=_TAG, summary="Before the workers take a step")
class BeforeWorkersUpgrade(Hook[BeforeWorkersUpgradeRequest, BeforeWorkersUpgradeResponse]):
    """Called before the MachineDeployments and MachinePools get a version. Blocks that step."""


class AfterWorkersUpgradeRequest(UpgradedRequest):
    """Workers that have taken a step."""


class AfterWorkersUpgradeResponse(RetryResponse):
    """Whether to continue."""


@CLUSTER_API.hook(API_VERSION, tag=_TAG, summary="After the workers have taken a step")
class AfterWorkersUpgrade(Hook[AfterWorkersUpgradeRequest, AfterWorkersUpgradeResponse]):
    """Called after the MachineDeployments and MachinePools are on a version. Blocks the rest."""


class AfterClusterUpgradeRequest(ClusterRequest):
    """A cluster after an upgrade."""

    kubernetes_version: str


class AfterClusterUpgradeResponse(RetryResponse):
    """Whether the next upgrade may start."""


@CLUSTER_API.hook(API_VERSION, tag=_TAG, summary="After an upgrade")
class AfterClusterUpgrade(Hook[AfterClusterUpgradeRequest, AfterClusterUpgradeResponse]):
    """Called when all of the cluster is on the new version. Blocks the next upgrade only."""


class BeforeClusterDeleteRequest(ClusterRequest):
    """A cluster before its deletion."""


class BeforeClusterDeleteResponse(RetryResponse):
    """Whether to continue."""


@CLUSTER_API.hook(API_VERSION, tag=_TAG, summary="Before a cluster is deleted")
class BeforeClusterDelete(Hook[BeforeClusterDeleteRequest, BeforeClusterDeleteResponse]):
    """Called after a user deletes a Cluster, before anything of it disappears. Blocks this."""
