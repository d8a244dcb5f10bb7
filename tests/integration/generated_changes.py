"""Changes of a scene's Cluster from seeds: of its topology, of its class, or of its templates."""

import random
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from capelin.api import Unstructured
from capelin.versions import Version

from .planned_scenes import NEXT, Scene, changed_template, is_named, worker_group

_MOST = 4
_OF_CLASS = 0.25
"""The share of changes that change the class and not the Cluster."""


@dataclass(frozen=True)
class Change:
    """A change of a Cluster, its class or its templates."""

    words: str
    manifests: list[Unstructured]


@dataclass(frozen=True)
class Draft:
    """The objects that a change starts from. Steps change these copies."""

    rng: random.Random
    scene: Scene
    cluster: Unstructured
    cluster_class: Unstructured
    templates: Mapping[tuple[str, str], Unstructured]
    """By kind and name."""

    @property
    def topology(self) -> dict[str, Any]:
        return self.cluster["spec"]["topology"]

    def groups(self, kind: str = "machineDeployments") -> list[dict[str, Any]]:
        """The groups of workers of a kind."""
        return self.topology["workers"].get(kind, [])

    def group(self, kind: str = "machineDeployments") -> dict[str, Any]:
        """One group of workers. It is in no topology if a Cluster has none."""
        groups = self.groups(kind)
        return self.rng.choice(groups) if groups else worker_group("none", 0)

    def worker_class(self) -> dict[str, Any]:
        """One class of workers."""
        return self.rng.choice(self.cluster_class["spec"]["workers"]["machineDeployments"])


def generated(seed: int, scene: Scene, cluster: Unstructured, others: list[Unstructured]) -> Change:
    """The change of a seed: one to three steps for the Cluster, or one for its class.

    Args:
        seed: The seed.
        scene: The scene of the Cluster.
        cluster: The Cluster as it is.
        others: Its class and the templates of the class, as they are.
    """
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    templates = {(each["kind"], each["metadata"]["name"]): each for each in others}
    name = cluster["spec"]["topology"]["classRef"]["name"]
    cluster_class = deepcopy(templates["ClusterClass", name])
    draft = Draft(rng, scene, deepcopy(cluster), cluster_class, templates)
    if rng.random() < _OF_CLASS:
        words, created = rng.choice(_CLASS_STEPS)(draft)
        return Change(words, [*created, draft.cluster_class])
    steps = [step for step in _STEPS if step is not _variable or scene.variables]
    words = [step(draft) for step in rng.sample(steps, rng.randint(1, 3))]
    return Change(", ".join(words), [draft.cluster])


def _version(draft: Draft) -> str:
    present = Version.parse(draft.topology["version"])
    newer = [each for each in draft.scene.versions if Version.parse(each) > present]
    if newer:
        draft.topology["version"] = draft.rng.choice(newer)
    return f"version {draft.topology['version']}"


def _replicas(draft: Draft) -> str:
    group = draft.group()
    group["replicas"] = draft.rng.randint(0, _MOST)
    return f"{group['name']} has {group['replicas']} replicas"


def _pool_replicas(draft: Draft) -> str:
    group = draft.group("machinePools")
    group["replicas"] = draft.rng.randint(0, _MOST)
    return f"pool {group['name']} has {group['replicas']} replicas"


def _control_plane_replicas(draft: Draft) -> str:
    """With members of etcd in memory only: those of real ones take long."""
    if draft.scene.decides_itself:
        draft.topology["controlPlane"]["replicas"] = draft.rng.choice([1, 3])
    return f"the control plane has {draft.topology['controlPlane']['replicas']} replicas"


def _variable(draft: Draft) -> str:
    name = draft.rng.choice(sorted(draft.scene.variables))
    value = draft.rng.choice(draft.scene.variables[name])
    _set_variable(draft.topology.setdefault("variables", []), name, value)
    return f"{name} is {value!r}"


def _override(draft: Draft) -> str:
    """A value for one group of workers. A Cluster must have a variable before a group has it."""
    present = [each["name"] for each in draft.topology.get("variables", [])]
    group = draft.group()
    name = draft.rng.choice(sorted(draft.scene.variables.keys() & {*present}) or [""])
    if not name:
        return "no override"
    value = draft.rng.choice(draft.scene.variables[name])
    overrides = group.setdefault("variables", {}).setdefault("overrides", [])
    _set_variable(overrides, name, value)
    return f"{name} of {group['name']} is {value!r}"


def _set_variable(variables: list[dict[str, Any]], name: str, value: Any) -> None:
    variables[:] = [each for each in variables if each["name"] != name]
    variables.append({"name": name, "value": value})


def _labels(draft: Draft) -> str:
    target = draft.rng.choice([*draft.groups(), draft.topology["controlPlane"]])
    kind = draft.rng.choice(["labels", "annotations"])
    target.setdefault("metadata", {})[kind] = {"team": draft.rng.choice("abc")}
    return f"{kind} of {target.get('name', 'the control plane')}"


def _timeouts(draft: Draft) -> str:
    group = draft.group()
    group["deletion"] = {"nodeDrainTimeoutSeconds": draft.rng.randint(30, 90)}
    return f"timeout of {group['name']}"


def _strategy(draft: Draft) -> str:
    group = draft.group()
    limits = draft.rng.choice([(1, 0), (0, 1), (2, 0), (1, 1)])
    rolling = {"maxSurge": limits[0], "maxUnavailable": limits[1]}
    group["rollout"] = {"strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}
    return f"limits of {group['name']}"


def _health_check(draft: Draft) -> str:
    group = draft.group()
    checks = {"nodeStartupTimeoutSeconds": draft.rng.randint(500, 700)}
    group["healthCheck"] = {"enabled": True, "checks": checks}
    return f"health check of {group['name']}"


def _group(draft: Draft) -> str:
    groups = draft.groups()
    if len(groups) > 1 and draft.rng.random() < 0.5:
        gone = groups.pop(draft.rng.randrange(len(groups)))
        return f"{gone['name']} goes"
    name = f"md-{draft.rng.randrange(1000)}"
    of = draft.worker_class()["class"]
    groups.append(worker_group(name, draft.rng.randint(0, 2), of=of))
    return f"{name} comes"


def _rebase(draft: Draft) -> str:
    reference = draft.topology["classRef"]
    others = {NEXT: draft.scene.class_name}
    reference["name"] = others.get(reference["name"], NEXT)
    return f"class {reference['name']}"


def _template(draft: Draft) -> tuple[str, list[Unstructured]]:
    """Another template for the machines of one class of workers."""
    worker_class = draft.worker_class()
    reference = worker_class["infrastructure"]["templateRef"]
    number = draft.rng.randrange(100000)
    (present,) = (each for each in draft.templates.values() if is_named(each, reference))
    template = changed_template(present, f"template-{number}", number)
    reference["name"] = template["metadata"]["name"]
    return f"another template for {worker_class['class']}", [template]


def _class_labels(draft: Draft) -> tuple[str, list[Unstructured]]:
    worker_class = draft.worker_class()
    kind = draft.rng.choice(["labels", "annotations"])
    worker_class.setdefault("metadata", {})[kind] = {"tier": draft.rng.choice("abc")}
    return f"{kind} of class {worker_class['class']}", []


def _class_timeouts(draft: Draft) -> tuple[str, list[Unstructured]]:
    worker_class = draft.worker_class()
    worker_class["deletion"] = {"nodeVolumeDetachTimeoutSeconds": draft.rng.randint(30, 90)}
    return f"timeout of class {worker_class['class']}", []


def _class_patch(draft: Draft) -> tuple[str, list[Unstructured]]:
    """Other patches by an extension, or another file on the machines of one class."""
    spec = draft.cluster_class["spec"]
    for patch in spec.get("patches", []):
        settings = patch.get("external", {}).get("settings", {})
        if "version" in settings:
            settings["version"] = "v2" if settings["version"] == "v1" else "v1"
            return f"patches {settings['version']}", []
    worker_class = draft.worker_class()["class"]
    name = f"file-{draft.rng.randrange(1000)}"
    definition = {
        "selector": {
            "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
            "kind": "KubeadmConfigTemplate",
            "matchResources": {"machineDeploymentClass": {"names": [worker_class]}},
        },
        "jsonPatches": [
            {
                "op": "add",
                "path": "/spec/template/spec/files",
                "value": [{"path": f"/etc/{name}", "content": name}],
            }
        ],
    }
    spec["patches"] = [*spec.get("patches", []), {"name": name, "definitions": [definition]}]
    return f"a file for {worker_class}", []


_STEPS: list[Callable[[Draft], str]] = [
    _version,
    _replicas,
    _pool_replicas,
    _control_plane_replicas,
    _variable,
    _override,
    _labels,
    _timeouts,
    _strategy,
    _health_check,
    _group,
    _rebase,
]
_CLASS_STEPS: list[Callable[[Draft], tuple[str, list[Unstructured]]]] = [
    _template,
    _class_labels,
    _class_timeouts,
    _class_patch,
]
