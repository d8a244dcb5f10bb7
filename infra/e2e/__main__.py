"""`pulumi up` in this folder installs a release into a cluster: copy it, and change it."""

import json
from collections.abc import Sequence
from pathlib import Path

import pulumi
import pulumi_kubernetes as kubernetes
from capelin_infra.components import (
    CapelinCharts,
    CapelinChartsArgs,
    ClusterClass,
    hook_client_ca,
    hook_client_config_map,
    release_objects,
    with_hook_client,
)
from capelin_infra.resources import AdmissionCheck, KindCluster, WorkloadCluster
from pulumi_kubernetes.yaml.v2 import ConfigGroup

FEATURES = {"CLUSTER_TOPOLOGY": "true", "EXP_MACHINE_POOL": "true", "EXP_RUNTIME_SDK": "true"}
SAMPLE = {"name": "sample", "namespace": "default"}
ISSUER: dict[str, object] = {
    "apiVersion": "cert-manager.io/v1",
    "kind": "Issuer",
    "metadata": SAMPLE,
    "spec": {"selfSigned": {}},
}
CONTROL_PLANE = {
    "apiGroup": "controlplane.cluster.x-k8s.io",
    "kind": "CapelinControlPlane",
    "name": "sample",
}
CLUSTER: dict[str, object] = {
    "apiVersion": "cluster.x-k8s.io/v1beta2",
    "kind": "Cluster",
    "metadata": SAMPLE,
    "spec": {"controlPlaneRef": CONTROL_PLANE},
}

config = pulumi.Config()
release = Path(config.require("release"))

# A new kind cluster with the images of the release, or your own cluster, which pulls them.
kind: KindCluster | None = None
if config.require("target") == "kind":
    kind = KindCluster(
        "kind",
        name=config.require("name"),
        image=config.get("nodeImage") or None,
        images=[image for image in config.require("images").split(",") if image],
    )
    kubeconfig, uid = pulumi.Output.secret(kind.kubeconfig), kind.uid
else:
    kubeconfig, uid = config.require_secret("kubeconfig"), None
api_server = kubernetes.Provider("api-server", kubeconfig=kubeconfig, cluster_identifier=uid)


def options(*after: pulumi.Resource) -> pulumi.ResourceOptions:
    """A resource of the cluster, after others. A kind cluster takes it along when it is deleted."""
    return pulumi.ResourceOptions(providers=[api_server], depends_on=[*after], deleted_with=kind)


def component(label: str) -> list[dict[str, object]]:
    """The objects of a component file."""
    return release_objects(release / "clusterctl", label, FEATURES)


def installed(
    label: str, objects: Sequence[dict[str, object]], *after: pulumi.Resource
) -> ConfigGroup:
    """Objects whose pods run, and whose kinds are established."""
    return ConfigGroup(label, objs=objects, opts=options(*after))


def accepted(name: str, sample: dict[str, object], *after: pulumi.Resource) -> AdmissionCheck:
    """Webhooks that answer. Pods are ready before the API server has the CA of their webhook."""
    return AdmissionCheck(
        name,
        kubeconfig=kubeconfig,
        cluster_uid=uid,
        manifest=json.dumps(sample, sort_keys=True),
        opts=pulumi.ResourceOptions(depends_on=[*after]),
    )


lifecycle = config.require_bool("lifecycle")
ready: list[pulumi.CustomResource] = []
if config.require_bool("certManager"):
    cert_manager = installed("cert-manager", component("cert-manager"))
    ready = [accepted("cert-manager-webhook", ISSUER, cert_manager)]
if config.require_bool("clusterApi"):
    objects = component("cluster-api")
    objects = with_hook_client(objects) if lifecycle else objects
    core = installed("cluster-api", objects, *ready)
    bootstrap = installed("bootstrap-kubeadm", component("bootstrap-kubeadm"), *ready)
    ready = [accepted("cluster-api-webhooks", CLUSTER, core, bootstrap)]

# Everyone who may edit a namespace may have clusters in it.
kubernetes.rbac.v1.ClusterRole(
    "clusters-edit",
    metadata={
        "name": "clusters-edit",
        "labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"},
    },
    rules=[
        {
            "api_groups": ["cluster.x-k8s.io"],
            "resources": ["clusters"],
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
        }
    ],
    opts=options(),
)

# Core presents a certificate of this CA to the lifecycle extension.
ca = hook_client_ca(kubeconfig, ready[-1]) if lifecycle and ready else None
providers: list[pulumi.Resource]
if config.require("install") == "charts":
    (chart,) = release.glob("capelin-[0-9]*.tgz")
    values = {"components": {"lifecycle": lifecycle}}
    arguments = CapelinChartsArgs(chart=str(chart), values=values, hook_client_ca=ca)
    providers = [CapelinCharts("capelin-charts", arguments, options(*ready))]
else:
    labels = ("control-plane-capelin", "infrastructure-capelin")
    providers = [installed(label, component(label), *ready) for label in labels]
    if lifecycle:
        label = "runtime-extension-lifecycle"
        authority = [hook_client_config_map(f"{label}-system", ca)] if ca else []
        providers.append(installed(label, [*component(label), *authority], *ready))

if config.require_bool("cluster"):
    cluster_class = ClusterClass("capelin", opts=options(*providers))
    demo = WorkloadCluster(
        "demo",
        kubeconfig=kubeconfig,
        management_uid=uid,
        name="demo",
        namespace=cluster_class.namespace,
        cluster_class=cluster_class.name,
        kubernetes_version=config.require("kubernetesVersion"),
        workers=config.require_int("workers"),
        # kind has no load balancer.
        variables={"backend": "Pods", "exposure": "NodePort"},
        opts=pulumi.ResourceOptions(depends_on=[cluster_class], deleted_with=kind),
    )
    pulumi.export("workloadKubeconfig", pulumi.Output.secret(demo.workload_kubeconfig))
    pulumi.export("endpoint", demo.endpoint)
pulumi.export("kubeconfig", kubeconfig)
