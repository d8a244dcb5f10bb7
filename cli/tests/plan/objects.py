"""Objects of a small Cluster, for tests of plans."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from capelin.api import Unstructured
from capelin.contract import CLUSTER_NAME_LABEL
from capelin_cli.explain.model import Reference
from capelin_cli.plan.snapshot import Snapshot

CAPI = "cluster.x-k8s.io"
NAMESPACE = "shop"
CLUSTER = Reference(group=CAPI, kind="Cluster", name="prod", namespace=NAMESPACE)
Fields = Mapping[str, Any]


def made(
    kind: str, name: str, spec: Fields | None = None, *, group: str = "", **metadata: Any
) -> Unstructured:
    """An object of the Cluster. `group` is the part before `.cluster.x-k8s.io`."""
    whole = f"{group}.{CAPI}" if group else CAPI
    labels = {CLUSTER_NAME_LABEL: CLUSTER.name, **metadata.pop("labels", {})}
    return {
        "apiVersion": f"{whole}/v1beta2",
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{kind}-{name}",
            "generation": 1,
            "labels": labels,
            **metadata,
        },
        "spec": dict(spec or {}),
    }


def refers(kind: str, name: str, group: str = "infrastructure") -> dict[str, str]:
    return {"apiGroup": f"{group}.{CAPI}", "kind": kind, "name": name}


def cluster(**spec: Any) -> Unstructured:
    references = {
        "controlPlaneRef": refers("FooControlPlane", "prod-abc", "controlplane"),
        "infrastructureRef": refers("FooCluster", "prod-def"),
    }
    return made("Cluster", CLUSTER.name, {**references, **spec})


def control_plane(version: str = "v1.33.1", **spec: Any) -> Unstructured:
    return made("FooControlPlane", "prod-abc", {"version": version, **spec}, group="controlplane")


def deployment(
    template: str = "prod-md-1", version: str = "v1.33.1", replicas: int = 3, **spec: Any
) -> Unstructured:
    machine = {
        "version": version,
        "infrastructureRef": refers("FooMachineTemplate", template),
        "bootstrap": {"configRef": refers("FooConfigTemplate", "prod-md-b", "bootstrap")},
    }
    return made(
        "MachineDeployment",
        "prod-md-x7",
        {"replicas": replicas, "template": {"spec": machine}, **spec},
        labels={"topology.cluster.x-k8s.io/deployment-name": "md"},
    )


def template(name: str = "prod-md-1", cpus: int = 2) -> Unstructured:
    spec = {"template": {"spec": {"cpus": cpus}}}
    return made("FooMachineTemplate", name, spec, group="infrastructure")


def machine(name: str, version: str = "v1.33.1", **metadata: Any) -> Unstructured:
    labels = {"cluster.x-k8s.io/deployment-name": "prod-md-x7", **metadata.pop("labels", {})}
    spec = {"version": version, "infrastructureRef": refers("FooMachine", name)}
    return made("Machine", name, spec, labels=labels, **metadata)


def snapshot(*objects: Unstructured) -> Snapshot:
    """The Cluster with its control plane, and these objects."""
    base = [cluster(), control_plane(), made("FooCluster", "prod-def", group="infrastructure")]
    return Snapshot.of(deepcopy([*base, *objects]))
