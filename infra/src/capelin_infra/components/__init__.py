"""Components of management clusters: Cluster API, Capelin, and the classes of their clusters."""

from capelin_infra.components.capelin_charts import CapelinCharts, CapelinChartsArgs
from capelin_infra.components.cluster_class import ClusterClass, ClusterClassArgs
from capelin_infra.components.management_cluster import ManagementCluster, ManagementClusterArgs
from capelin_infra.components.release import release_objects

__all__ = [
    "CapelinCharts",
    "CapelinChartsArgs",
    "ClusterClass",
    "ClusterClassArgs",
    "ManagementCluster",
    "ManagementClusterArgs",
    "release_objects",
]
