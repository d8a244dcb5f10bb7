"""`pulumi up` in this folder makes a developer's environment: copy it, and change it."""

import pulumi
from capelin_infra.components import ClusterClass, ManagementCluster, ManagementClusterArgs
from capelin_infra.resources import WorkloadCluster

config = pulumi.Config()
machine_image = config.get("machineImage")
machine_images = [machine_image] if machine_image else []

# A process, a kind cluster or your own: Cluster API and Capelin run as processes against it.
management = ManagementCluster(
    "management",
    ManagementClusterArgs(
        name=config.require("name"),
        target=config.require("target"),
        kubernetes_version=config.get("managementVersion") or None,
        node_image=config.get("nodeImage") or None,
        kubeconfig=config.get_secret("kubeconfig") if config.get("kubeconfig") else None,
        machine_images=machine_images,
    ),
)
cluster_class = ClusterClass(
    "capelin",
    opts=pulumi.ResourceOptions(
        providers=[management.provider],
        depends_on=[management],
        deleted_with=management.environment,
    ),
)
demo = WorkloadCluster(
    "demo",
    kubeconfig=management.kubeconfig,
    management_uid=management.uid,
    name="demo",
    namespace=cluster_class.namespace,
    cluster_class=cluster_class.name,
    kubernetes_version=config.require("kubernetesVersion"),
    control_plane_replicas=config.require_int("controlPlaneReplicas"),
    workers=config.require_int("workers"),
    machine_images=machine_images,
    opts=pulumi.ResourceOptions(depends_on=[cluster_class]),
)
pulumi.export("kubeconfig", management.kubeconfig)
pulumi.export("workloadKubeconfig", pulumi.Output.secret(demo.workload_kubeconfig))
pulumi.export("endpoint", demo.endpoint)
