"""The hook that plans an upgrade over several versions."""

from capelin.runtime.catalog import Hook
from capelin.runtime.messages import Part, Response
from capelin.runtime.v1alpha1.common import API_VERSION, CLUSTER_API, ClusterRequest

GO_PACKAGE = "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"


class GenerateUpgradePlanRequest(ClusterRequest):
    """The current and the target version of an upgrade."""

    from_control_plane_kubernetes_version: str
    from_workers_kubernetes_version: str = ""
    to_kubernetes_version: str


class UpgradeStep(Part):
    """One step of an upgrade."""

    version: str


class GenerateUpgradePlanResponse(Response):
    """The versions of the upgrade, in order."""

    control_plane_upgrades: list[UpgradeStep] = []
    """At least one version for each minor. The last one is the target."""
    workers_upgrades: list[UpgradeStep] = []
    """Some of the control plane's versions. Empty for as few as possible."""


@CLUSTER_API.hook(API_VERSION, tag="Chained Upgrade Hook", summary="Plans an upgrade", pure=True)
class GenerateUpgradePlan(Hook[GenerateUpgradePlanRequest, GenerateUpgradePlanResponse]):
    """Called when a Cluster's version changes. Core caches the response for some minutes."""
