"""ClusterClasses and Clusters whose changes are planned and made: a scene for each class."""

import asyncio
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin_cli.clusters.demo import demo_manifests
from capelin_cli.clusters.topology import DEMO_CLASS, POD_NETWORK
from capelin_embedded.binaries import Binaries
from capelin_embedded.management import render_template
from capelin_lifecycle.api import LifecyclePolicy

from .pools import OLDER, POOL, VERSION

DEPLOYMENT = "md"
NEXT = "next"
"""The name of the other ClusterClass of a scene, to which its Cluster can change."""
WIDE = 8
"""The classes of workers in the scene with 20 templates."""
LATER = ("v1.34.8", "v1.35.5", "v1.36.1")
"""Versions for clusters in memory: no program of these versions runs."""
MOTTO = "motto"
SECONDS = "seconds"


@dataclass(frozen=True)
class Scene:
    """The objects of one ClusterClass and its Cluster, without their namespace."""

    name: str
    manifests: list[Unstructured]
    topology: dict[str, Any]
    """That of its Cluster at first."""
    versions: Sequence[str] = (OLDER, VERSION)
    """The versions that its Cluster can have, the oldest first."""
    variables: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """The values from which changes choose, by variable."""
    decides_itself: bool = False
    """Whether the provider of the control plane decides about its machines: plans do not."""

    @property
    def class_name(self) -> str:
        """The class of its Cluster at first."""
        return self.topology["classRef"]["name"]


def worker_group(name: str, replicas: int, *, of: str = "default-worker") -> dict[str, Any]:
    """A group of workers in a topology."""
    return {"class": of, "name": name, "replicas": replicas}


def new_topology(
    class_name: str,
    version: str,
    deployments: Sequence[dict[str, Any]],
    pools: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """The topology of a Cluster with one replica of the control plane."""
    workers = {"machineDeployments": [*deployments], "machinePools": [*pools]}
    return {
        "classRef": {"name": class_name},
        "version": version,
        "controlPlane": {"replicas": 1},
        "workers": {kind: groups for kind, groups in workers.items() if groups},
    }


def cluster_of(name: str, topology: dict[str, Any]) -> Unstructured:
    """A Cluster in a namespace of its name."""
    return {
        "apiVersion": Cluster.resource.api_version,
        "kind": "Cluster",
        "metadata": {"name": name, "namespace": name},
        "spec": {
            "clusterNetwork": {
                "pods": {"cidrBlocks": [POD_NETWORK]},
                "services": {"cidrBlocks": ["10.96.0.0/16"]},
                "serviceDomain": "cluster.local",
            },
            "topology": deepcopy(topology),
        },
    }


async def all_scenes() -> list[Scene]:
    """All scenes, in the order in which seeds choose from them."""
    return [demo(), wide(), external_patches(), in_place(), await in_memory()]


def demo() -> Scene:
    """The demo's class, with two MachineDeployments and a MachinePool."""
    groups = [worker_group(DEPLOYMENT, 2), worker_group("other", 1)]
    return Scene(
        "demo",
        with_next(demo_manifests()),
        new_topology(DEMO_CLASS, OLDER, groups, [worker_group(POOL, 2)]),
        variables={"machines": [{"startupSeconds": number} for number in range(3)]},
    )


def wide() -> Scene:
    """A class with 20 templates and inline patches, and a Cluster that uses all of them."""
    found = demo_manifests()
    cluster_class = found[0]
    spec = cluster_class["spec"]
    (worker,) = spec["workers"]["machineDeployments"]
    names = [f"worker-{number}" for number in range(WIDE)]
    copies: list[Unstructured] = []
    spec["workers"]["machineDeployments"] = []
    for name in names:
        copied = deepcopy(worker)
        copied["class"] = name
        for part in ("infrastructure", "bootstrap"):
            reference = copied[part]["templateRef"]
            template = next(each for each in found if each["kind"] == reference["kind"])
            copies.append({**deepcopy(template), "metadata": {"name": name}})
            reference["name"] = name
        spec["workers"]["machineDeployments"].append(copied)
    kept = [each for each in found if each["kind"] != "CapelinMachineTemplate"]
    spec["variables"] = [variable(SECONDS, "integer", 0), variable(MOTTO, "string", "")]
    spec["patches"] = [
        inline_patch(
            SECONDS,
            "CapelinMachineTemplate",
            ["worker-*"],
            "/spec/template/spec/simulated/startupSeconds",
            {"variable": SECONDS},
        ),
        motto_patch(names[: WIDE // 2]),
    ]
    groups = [worker_group(f"md-{number}", 1, of=name) for number, name in enumerate(names)]
    return Scene(
        "wide",
        with_next([*kept, *copies]),
        new_topology(DEMO_CLASS, OLDER, groups, [worker_group(POOL, 1)]),
        variables={SECONDS: [0, 1, 2], MOTTO: ["", "swim", "rest"]},
    )


def external_patches() -> Scene:
    """The demo's class with patches and checks by policies of the lifecycle extension."""
    manifests = demo_manifests()
    external = {
        "generatePatchesExtension": "generate-patches-v1.lifecycle",
        "discoverVariablesExtension": "discover-variables-v1.lifecycle",
        "settings": {"policy": "patched/patches", "version": "v1"},
    }
    checks = {
        "generatePatchesExtension": "generate-patches-v1.lifecycle",
        "validateTopologyExtension": "validate-topology-v1.lifecycle",
        "settings": {"policy": "patched/checks"},
    }
    manifests[0]["spec"]["patches"] += [
        {"name": "external", "external": external},
        {"name": "checks", "external": checks},
    ]
    versions = [
        external_version("v1", "/spec/template/spec/simulated/startupSeconds"),
        external_version("v2", "/spec/template/spec/simulated/startupJitterSeconds"),
    ]
    rule = {"expression": "variables.?seconds.orValue(0) < 100", "message": "seconds are too many"}
    policies = [
        policy("patches", "GeneratePatches", {"patches": {"versions": versions}}),
        policy("checks", "ValidateTopology", {"validate": {"rules": [rule]}}),
    ]
    groups = [worker_group(DEPLOYMENT, 2), worker_group("other", 1)]
    return Scene(
        "patched",
        [*policies, *with_next(manifests)],
        new_topology(DEMO_CLASS, OLDER, groups, [worker_group(POOL, 1)]),
        variables={SECONDS: [0, 1, 2], "machines": [{"startupSeconds": 0}, {"startupSeconds": 1}]},
    )


def in_place() -> Scene:
    """A class whose files an extension updates in place, while other changes replace machines."""
    manifests = demo_manifests()
    spec = manifests[0]["spec"]
    spec["variables"].append(variable(MOTTO, "string", ""))
    spec["patches"].append(motto_patch(["default-worker"]))
    groups = [worker_group(DEPLOYMENT, 2), worker_group("other", 1)]
    return Scene(
        "in-place",
        with_next(manifests),
        new_topology(DEMO_CLASS, OLDER, groups),
        variables={
            MOTTO: ["", "swim", "rest", "dive"],
            "machines": [{"startupSeconds": 0}, {"startupSeconds": 1}],
        },
    )


async def in_memory() -> Scene:
    """Cluster API's providers: upgrades over several minors, by the plan of a policy."""
    folder = await Binaries().module_dir("cluster-api/test")
    file = folder / "infrastructure/docker/templates/clusterclass-in-memory.yaml"
    manifests = render_template(await asyncio.to_thread(file.read_text), {})
    for manifest in manifests:
        if manifest["kind"] == "DevMachineTemplate":
            for part in manifest["spec"]["template"]["spec"]["backend"]["inMemory"].values():
                part["provisioning"] = {"startupDuration": "1s", "startupJitter": "0.2"}
    # The class comes first.
    manifests.reverse()
    external = {"generateUpgradePlanExtension": "generate-upgrade-plan-v1.lifecycle"}
    manifests[0]["spec"]["upgrade"] = {"external": external}
    allowed = {"upgradePlan": {"versions": [OLDER, *LATER]}}
    return Scene(
        "in-memory",
        [policy("upgrades", "GenerateUpgradePlan", allowed), *with_next(manifests)],
        new_topology("in-memory", OLDER, [worker_group(DEPLOYMENT, 2), worker_group("other", 1)]),
        versions=(OLDER, *LATER),
        decides_itself=True,
    )


def with_next(manifests: Sequence[Unstructured]) -> list[Unstructured]:
    """The objects of a class, and another class that has one other template."""
    found = [*manifests]
    other = deepcopy(next(each for each in manifests if each["kind"] == "ClusterClass"))
    other["metadata"]["name"] = NEXT
    reference = other["spec"]["workers"]["machineDeployments"][0]["infrastructure"]["templateRef"]
    (template,) = (each for each in manifests if is_named(each, reference))
    found += [other, changed_template(template, NEXT, 1)]
    reference["name"] = NEXT
    return found


def is_named(obj: Unstructured, reference: Unstructured) -> bool:
    """Whether a reference names an object."""
    return (obj["kind"], obj["metadata"]["name"]) == (reference["kind"], reference["name"])


def changed_template(template: Unstructured, name: str, number: int) -> Unstructured:
    """A template of machines with another name and other settings."""
    kept = {key: value for key, value in template["metadata"].items() if key == "namespace"}
    copied: Unstructured = {**deepcopy(template), "metadata": {**kept, "name": name}}
    spec = copied["spec"]["template"]["spec"]
    if "simulated" in spec:
        spec["simulated"]["labels"] = {"disk": f"disk-{number}"}
    else:
        provisioning = spec["backend"]["inMemory"]["vm"]["provisioning"]
        provisioning["startupDuration"] = f"{1000 + number % 1000}ms"
    return copied


def variable(name: str, type_: str, default: Any) -> dict[str, Any]:
    """The definition of a variable."""
    schema = {"openAPIV3Schema": {"type": type_, "default": default}}
    return {"name": name, "required": False, "schema": schema}


def inline_patch(
    name: str,
    kind: str,
    classes: list[str],
    path: str,
    value: dict[str, Any],
    *,
    condition: str = "",
) -> dict[str, Any]:
    """A patch of the templates of some classes of workers."""
    group = "bootstrap" if kind == "KubeadmConfigTemplate" else "infrastructure"
    version = "v1beta2" if group == "bootstrap" else "v1alpha1"
    definition = {
        "selector": {
            "apiVersion": f"{group}.cluster.x-k8s.io/{version}",
            "kind": kind,
            "matchResources": {"machineDeploymentClass": {"names": classes}},
        },
        "jsonPatches": [{"op": "add", "path": path, "valueFrom": value}],
    }
    enabled = {"enabledIf": condition} if condition else {}
    return {"name": name, **enabled, "definitions": [definition]}


def motto_patch(classes: list[str]) -> dict[str, Any]:
    """A file on the machines of some classes, unless the motto is empty."""
    file = '- path: /etc/motto\n  content: "{{ .motto }}"\n'
    return inline_patch(
        MOTTO,
        "KubeadmConfigTemplate",
        classes,
        "/spec/template/spec/files",
        {"template": file},
        condition='{{ ne .motto "" }}',
    )


def external_version(name: str, path: str) -> Unstructured:
    """A version of the patches of a policy."""
    return {
        "name": name,
        "variables": [{"name": SECONDS, "schema": {"type": "integer", "default": 0}}],
        "templates": [
            {
                "kind": "CapelinMachineTemplate",
                "usedBy": ["MachineDeployments"],
                "operations": [{"path": path, "valueFrom": "variables.seconds"}],
            }
        ],
    }


def policy(name: str, hook: str, action: dict[str, Any]) -> Unstructured:
    """A policy of the lifecycle extension."""
    return {
        "apiVersion": LifecyclePolicy.resource.api_version,
        "kind": LifecyclePolicy.resource.kind,
        "metadata": {"name": name},
        "spec": {"hook": hook, "action": action},
    }
