"""Administrators limit the objects of a tenant with Kubernetes quotas."""

from typing import Any

from capelin.api.core import ConfigMap, Namespace
from capelin.client import Client, Config, Forbidden
from capelin.testing.waiting import until
from capelin_embedded.testing.management import ManagementCluster


async def test_a_quota_counts_objects_of_an_environment(
    management_cluster: ManagementCluster,
) -> None:
    config = Config.from_kubeconfig(management_cluster.kubeconfig)
    async with Client(config) as client:
        await client.apply(Namespace.of("counted"))
        hard = {"count/configmaps": "1", "count/clusters.cluster.x-k8s.io": "0"}
        quota: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "few", "namespace": "counted"},
            "spec": {"hard": hard},
        }
        await client.apply(quota)

        async def problem(manifest: dict[str, Any]) -> str:
            try:
                await client.create(manifest)
            except Forbidden as error:
                return str(error)
            return ""

        counted: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"generateName": "counted-", "namespace": "counted"},
        }
        # The API server observes the quota a moment later.
        await until(lambda: problem(counted), lambda text: "exceeded quota: few" in text)
        assert (await client.list(ConfigMap, "counted")).items
        group = "infrastructure.cluster.x-k8s.io"
        infrastructure = {"apiGroup": group, "kind": "CapelinCluster", "name": "one"}
        cluster = {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Cluster",
            "metadata": {"name": "one", "namespace": "counted"},
            "spec": {"paused": True, "infrastructureRef": infrastructure},
        }
        # Until the quota controller discovers the CRD, the API server rejects objects of the kind.
        await until(lambda: problem(cluster), lambda text: "exceeded quota: few" in text)
        await client.delete(Namespace, "counted")
