"""The stories of operators, with pods that run on machines that are containers.

One Cluster goes through its life, test by test: each needs those before it. Cluster API's core, the
control plane, the extension, the registry and the add-ons are real.
"""

import os
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from time import monotonic

import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Pod
from capelin.testing.waiting import until
from capelin.yaml import write_yaml
from capelin_cli.clusters.topology import upgrade_patch
from capelin_embedded.binaries import TESTED_KUBERNETES, Binaries
from capelin_embedded.management import required_programs, workload_programs
from capelin_lifecycle.api import LifecyclePolicy
from capelin_release.tools import HELM

from tests.registry.distribution import DISTRIBUTION, ORAS

from .go_programs import node_programs
from .kind_cluster import IMAGE_VERSION
from .node_images import node_image
from .operator_stories import NAMESPACE, Bed, operator_bed
from .volume_backups import CSI_APP, csi_images, storage_manifests

BEFORE, AFTER = TESTED_KUBERNETES[0], TESTED_KUBERNETES[-1]
IMAGES = {
    # The node image has those of its own version only, and no registry has others.
    "/kube-proxy:": f"registry.k8s.io/kube-proxy:{BEFORE}",
    "/coredns:": "registry.k8s.io/coredns/coredns:v1.12.0",
}
NAME = "shop"
NO_ARCHIVES = "http://127.0.0.1:1"
"""The driver takes no snapshots here."""
TIER = "example.com/tier"
Record = Callable[[str, object], None]

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.needs_programs(
        *required_programs(BEFORE, ("kubeadm-bootstrap",)),
        *workload_programs(BEFORE),
        *workload_programs(AFTER),
        *("kubectl", DISTRIBUTION, HELM, ORAS),
    ),
]

PATCHES: Unstructured = {
    "name": "v1",
    "variables": [{"name": "tier", "schema": {"type": "string", "default": "bronze"}}],
    "templates": [
        {
            "kind": "KubeadmConfigTemplate",
            "usedBy": ["MachinePools"],
            "operations": [
                {
                    "op": "Append",
                    "path": (
                        "/spec/template/spec/joinConfiguration/nodeRegistration/kubeletExtraArgs"
                    ),
                    "valueFrom": (
                        "{'name': 'node-labels', 'value': '" + TIER + "=' + variables.tier}"
                    ),
                }
            ],
        }
    ],
}
EXTERNAL = {
    "generatePatchesExtension": "generate-patches-v1.lifecycle",
    "discoverVariablesExtension": "discover-variables-v1.lifecycle",
    "settings": {"policy": f"{NAMESPACE}/tiers", "version": "v1"},
}
CHART = {
    "Chart.yaml": "apiVersion: v2\nname: till\nversion: 1.0.0\n",
    "values.yaml": "image: none\nreplicas: 1\n",
    "templates/claim.yaml": """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: {{ .Release.Name }}}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 16Mi}}
""",
    "templates/deployment.yaml": """
apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: till}}
  template:
    metadata: {labels: {app: till}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
        - name: till
          image: {{ .Values.image | quote }}
          command: [/bin/busybox, sh, -c]
          args:
            - |
              echo "for {{ .Capabilities.KubeVersion.Version }}" | busybox tee /till/log
              exec busybox sleep 100000
          volumeMounts: [{name: till, mountPath: /till}]
      volumes: [{name: till, persistentVolumeClaim: {claimName: {{ .Release.Name }}}}]
""",
}


@pytest.fixture(scope="module")
async def bed(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Bed]:
    """An environment with policies for quotas and patches."""
    helm, images = await Binaries().path(HELM), await csi_images()
    async with (
        node_image(BEFORE, await node_programs(BEFORE), IMAGES, images) as image,
        node_image(IMAGE_VERSION, images=images) as next_image,
        operator_bed(tmp_path_factory.mktemp("stories"), (image, next_image), helm) as bed,
    ):
        stories = bed.stories
        await stories.apply("tiers", "GeneratePatches", {"patches": {"versions": [PATCHES]}})
        limits = {"limits": [{"resource": "clusters", "limit": 1}]}
        await stories.apply("quota", "BeforeClusterCreate", {"quota": limits})
        await stories.are_called("BeforeClusterCreate")
        external = {"name": "tiers", "external": EXTERNAL}
        await stories.create_class(external, variables=["tier"])
        yield bed


async def test_quota_and_patches_on_machines_that_run_pods(
    bed: Bed, record_property: Record
) -> None:
    record_property("load before", os.getloadavg()[0])
    began = monotonic()
    await bed.create(NAME, tier="gold")
    await bed.stories.is_admitted(NAME)
    await bed.create("second")
    refused = "is exhausted: 1 clusters requested, 1 of 1 in use"
    await bed.stories.wait_for_message("second", refused)
    nodes = await until(lambda: bed.ready_nodes(NAME), lambda nodes: len(nodes) == 1, within=400)
    record_property("seconds: a cluster with a Ready node", round(monotonic() - began, 1))
    assert [node.metadata.labels.get(TIER) for node in nodes.values()] == ["gold"]
    assert await bed.stories.admitted() == [NAME]
    await bed.stories.delete("second")


async def test_add_ons_are_installed_before_an_upgrade(bed: Bed, record_property: Record) -> None:
    stories, client, registry = bed.stories, bed.client, bed.registry
    agent = {"agent.yaml": write_yaml(node_agent(bed.helper_image()))}
    await client.apply(ConfigMap.of("agent", NAMESPACE, data=agent))
    storage = {"apiVersion": "v1", "kind": "List", "items": await storage_manifests(NO_ARCHIVES)}
    chart = await registry.push_chart(write_chart(registry.folder))
    values = {"image": bed.helper_image()}
    sources: list[Unstructured] = [
        {"configMap": "agent"},
        await bed.push("storage", write_yaml(storage)),
        {
            "oci": {"reference": chart, "caBundle": registry.ca},
            "chart": {"release": "till", "namespace": "kube-public", "values": values},
        },
    ]
    hook = "BeforeClusterUpgrade"
    await stories.apply("add-ons", hook, {"apply": {"sources": sources}}, timeout="15m")
    window = {"schedule": "0 0 1 1 *", "duration": "1m"}
    await stories.apply("held", hook, {"approval": {"window": window}}, order=1)
    await stories.are_called(hook)
    before = await bed.ready_nodes(NAME)
    began = monotonic()
    await client.patch(Cluster, NAME, NAMESPACE, upgrade_patch(AFTER), type="json")
    await stories.wait_for_message(NAME, "policy held: waits for the maintenance window")
    record_property("seconds: add-ons before the upgrade", round(monotonic() - began, 1))

    # The add-ons run, and no part of the cluster has the next version.
    record_property("result", await bed.result("add-ons"))
    assert await stories.phase("add-ons", NAME) == "Done"
    assert await bed.running_versions(NAME) == [BEFORE]
    assert len(await bed.ready_pods(NAME, "kube-system", "agent")) == 1
    assert len(await bed.ready_pods(NAME, "default", CSI_APP)) == 1
    (till,) = await bed.ready_pods(NAME, "kube-public", "till")
    assert await log_of(bed, till) == f"for {AFTER}\n"

    await client.delete(LifecyclePolicy, "held", NAMESPACE)

    async def is_upgraded() -> bool:
        nodes = await bed.ready_nodes(NAME)
        return await bed.running_versions(NAME) == [AFTER] and bool(nodes.keys() - before.keys())

    await until(is_upgraded, within=900)
    record_property("seconds: until a new machine is Ready", round(monotonic() - began, 1))
    for namespace, app in (("kube-system", "agent"), ("default", CSI_APP)):
        await until(partial(bed.ready_pods, NAME, namespace, app), len, within=300)
    nodes = await until(
        lambda: bed.ready_nodes(NAME),
        lambda nodes: bool(nodes) and not nodes.keys() & before.keys(),
        within=300,
    )
    record_property("seconds: until the old machine is gone", round(monotonic() - began, 1))
    assert {node.metadata.labels.get(TIER) for node in nodes.values()} == {"gold"}
    # A machine gets the image whose tag is its version. kind's image may have another version.
    kubelets = {node.status.node_info.kubelet_version for node in nodes.values()}
    record_property("kubelets after the upgrade", ", ".join(map(str, kubelets)))
    assert kubelets == {AFTER if IMAGE_VERSION == AFTER else BEFORE}


def node_agent(image: str) -> Unstructured:
    """An add-on with a pod on each node."""
    container = {
        "name": "agent",
        "image": image,
        "command": ["/bin/busybox", "sleep", "100000"],
    }
    labels = {"app": "agent"}
    pod = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "agent", "namespace": "kube-system"},
        "spec": {
            # Not the same object: YAML would refer to it, and sources have no aliases.
            "selector": {"matchLabels": {**labels}},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def write_chart(folder: Path) -> Path:
    for name, content in CHART.items():
        file = folder / "till" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return folder / "till"


async def log_of(bed: Bed, pod: Pod) -> str:
    async with bed.workload(NAME) as client:
        path = Pod.resource.path(pod.metadata.namespace, pod.name, "log")
        return str(await client.request("GET", path))
