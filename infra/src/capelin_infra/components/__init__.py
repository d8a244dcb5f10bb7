"""Components of management clusters: Cluster API, Capelin, and the classes of their clusters."""

from capelin_infra.components.capelin_charts import CapelinCharts, CapelinChartsArgs
from capelin_infra.components.cluster_class import ClusterClass, ClusterClassArgs
from capelin_infra.components.hook_client import (
    hook_client_ca,
    hook_client_config_map,
    with_hook_client,
)
from capelin_infra.components.management_cluster import ManagementCluster, ManagementClusterArgs
from capelin_infra.components.release import release_objects

__all__ = [
    "CapelinCharts",
    "CapelinChartsArgs",
    "ClusterClass",
    "ClusterClassArgs",
    "ManagementCluster",
    "ManagementClusterArgs",
    "hook_client_ca",
    "hook_client_config_map",
    "release_objects",
    "with_hook_client",
]
