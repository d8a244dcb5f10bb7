"""Changes of a Cluster from seeds: versions, numbers, variables, metadata, groups and templates."""

import random
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from capelin.api import Unstructured

from .planned_clusters import worker_group
from .pools import VERSION

_MOST = 4
Topology = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """A change of a Cluster, its class or its templates."""

    words: str
    manifests: list[Unstructured]


def generated(seed: int, cluster: Unstructured, others: Mapping[str, Unstructured]) -> Change:
    """The change of a seed: one to three steps in one request.

    Args:
        seed: The seed.
        cluster: The Cluster as it is.
        others: The ClusterClass and a template of its MachineDeployments, by kind.
    """
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    changed = deepcopy(cluster)
    topology: Topology = changed["spec"]["topology"]
    if rng.random() < 0.15:
        return _template(rng, others)
    steps = rng.sample(_STEPS, rng.randint(1, 3))
    words = [step(rng, topology) for step in steps]
    return Change(", ".join(filter(None, words)), [changed])


def _groups(topology: Topology, kind: str = "machineDeployments") -> list[dict[str, Any]]:
    return topology.setdefault("workers", {}).setdefault(kind, [])


def _version(_: random.Random, topology: Topology) -> str:
    topology["version"] = VERSION
    return "version"


def _scaled(rng: random.Random, groups: list[dict[str, Any]]) -> str:
    if not groups:
        return ""
    found = rng.choice(groups)
    found["replicas"] = rng.randint(0, _MOST)
    return f"{found['name']} has {found['replicas']} replicas"


def _replicas(rng: random.Random, topology: Topology) -> str:
    return _scaled(rng, _groups(topology))


def _pool_replicas(rng: random.Random, topology: Topology) -> str:
    return _scaled(rng, _groups(topology, "machinePools"))


def _variable(rng: random.Random, topology: Topology) -> str:
    value = {"startupSeconds": rng.randint(0, 2)}
    others = [each for each in topology.get("variables", []) if each["name"] != "machines"]
    topology["variables"] = [*others, {"name": "machines", "value": value}]
    return f"machines start within {value['startupSeconds']} s"


def _labels(rng: random.Random, topology: Topology) -> str:
    groups = _groups(topology)
    target = rng.choice([*groups, topology["controlPlane"]])
    kind = rng.choice(["labels", "annotations"])
    target.setdefault("metadata", {})[kind] = {"team": rng.choice("abc")}
    return f"{kind} of {target.get('name', 'the control plane')}"


def _timeouts(rng: random.Random, topology: Topology) -> str:
    groups = _groups(topology)
    if not groups:
        return ""
    found = rng.choice(groups)
    found["deletion"] = {"nodeDrainTimeoutSeconds": rng.randint(30, 90)}
    return f"timeout of {found['name']}"


def _strategy(rng: random.Random, topology: Topology) -> str:
    groups = _groups(topology)
    if not groups:
        return ""
    found = rng.choice(groups)
    limits = rng.choice([(1, 0), (0, 1), (2, 0), (1, 1)])
    rolling = {"maxSurge": limits[0], "maxUnavailable": limits[1]}
    found["rollout"] = {"strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}
    return f"limits of {found['name']}"


def _group(rng: random.Random, topology: Topology) -> str:
    groups = _groups(topology)
    if len(groups) > 1:
        gone = groups.pop(rng.randrange(len(groups)))
        return f"{gone['name']} goes"
    name = f"md-{rng.randrange(1000)}"
    groups.append(worker_group(name, rng.randint(0, 2)))
    return f"{name} comes"


def _template(rng: random.Random, others: Mapping[str, Unstructured]) -> Change:
    template = deepcopy(others["CapelinMachineTemplate"])
    cluster_class = deepcopy(others["ClusterClass"])
    namespace = template["metadata"]["namespace"]
    name = f"template-{rng.randrange(100000)}"
    template["metadata"] = {"name": name, "namespace": namespace}
    simulated = template["spec"]["template"]["spec"].setdefault("simulated", {})
    simulated["labels"] = {"disk": rng.choice(["ssd", "nvme"])}
    workers = cluster_class["spec"]["workers"]["machineDeployments"][0]
    workers["infrastructure"]["templateRef"]["name"] = name
    return Change("another template", [template, cluster_class])


Step = Callable[[random.Random, Topology], str]
_STEPS: list[Step] = [
    _version,
    _replicas,
    _pool_replicas,
    _variable,
    _labels,
    _timeouts,
    _strategy,
    _group,
]
