"""Objects of a management cluster, as its API server sends them."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from capelin.api import Resource, Unstructured
from capelin.api.capi import Cluster, Machine, MachineDeployment, MachinePool
from capelin_cli.ui.store import Store
from capelin_control_plane.api import CapelinControlPlane
from capelin_lifecycle.api import LifecycleResult

CAPI = "cluster.x-k8s.io"
START = datetime(2030, 1, 1, 12, tzinfo=UTC)
CONTROL_PLANE = CapelinControlPlane.resource
RESOURCES = {
    kind.resource.kind: kind.resource
    for kind in (
        Cluster,
        Machine,
        MachinePool,
        MachineDeployment,
        CapelinControlPlane,
        LifecycleResult,
    )
}


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def stamp(seconds: float = 0) -> str:
    """A time in JSON, counted from the start of the clock."""
    return f"{START + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"


def condition(type_: str, status: str = "True", message: str = "", at: float = 0) -> dict[str, Any]:
    return {
        "type": type_,
        "status": status,
        "reason": "Because",
        "message": message,
        "lastTransitionTime": stamp(at),
    }


def manifest(
    resource: Resource,
    name: str,
    *,
    cluster: str = "",
    namespace: str = "default",
    spec: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    **metadata: Any,
) -> Unstructured:
    label = {f"{CAPI}/cluster-name": cluster} if cluster else {}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": stamp(),
            "labels": {**label, **(labels or {})},
            **metadata,
        },
        "spec": dict(spec or {}),
        "status": dict(status or {}),
    }


def cluster(
    name: str = "prod",
    *conditions: Mapping[str, Any],
    spec: Mapping[str, Any] | None = None,
    version: str = "v1.34.4",
    **more: Any,
) -> Unstructured:
    return manifest(
        Cluster.resource,
        name,
        spec={
            "controlPlaneRef": {
                "apiGroup": CONTROL_PLANE.group,
                "kind": CONTROL_PLANE.kind,
                "name": name,
            },
            "topology": {"classRef": {"name": "capelin"}, "version": version},
            **(spec or {}),
        },
        status={"conditions": list(conditions) or [condition("Available")]},
        **more,
    )


def control_plane(
    name: str = "prod", *conditions: Mapping[str, Any], version: str = "v1.34.4"
) -> Unstructured:
    return manifest(
        CONTROL_PLANE,
        name,
        cluster=name,
        spec={"version": version},
        status={"conditions": list(conditions) or [condition("Available")], "version": version},
    )


def pool(cluster: str = "prod", name: str = "workers", ready: int = 1, of: int = 1) -> Unstructured:
    return manifest(
        MachinePool.resource,
        name,
        cluster=cluster,
        spec={"clusterName": cluster, "replicas": of},
        status={"readyReplicas": ready},
    )


def machine(
    name: str,
    cluster: str = "prod",
    *,
    phase: str = "Running",
    message: str = "",
    pool: str = "workers",
    version: str = "v1.34.4",
    created: float = 0,
) -> Unstructured:
    status = "False" if message else "True"
    return manifest(
        Machine.resource,
        name,
        cluster=cluster,
        labels={f"{CAPI}/pool-name": pool},
        spec={"clusterName": cluster, "version": version},
        status={"phase": phase, "conditions": [condition("Ready", status, message)]},
        creationTimestamp=stamp(created),
    )


def result(
    hook: str = "BeforeClusterUpgrade",
    phase: str = "Waiting",
    message: str = "waits for approval",
    *,
    cluster: str = "prod",
    called: float = 0,
    since: float = 0,
) -> Unstructured:
    return manifest(
        LifecycleResult.resource,
        f"{cluster}-{hook.lower()}",
        spec={
            "id": "0" * 16,
            "called": stamp(called),
            "policy": {"kind": "LifecyclePolicy", "namespace": "default", "name": "freeze"},
            "cluster": {"name": cluster},
            "hook": hook,
            "toVersion": "v1.34.4",
            "action": "approval",
        },
        status={"phase": phase, "message": message, "since": stamp(since)},
        ownerReferences=[
            {
                "apiVersion": f"{CAPI}/v1beta2",
                "kind": "Cluster",
                "name": cluster,
                "uid": f"uid-{cluster}",
            }
        ],
    )


def put(store: Store, *manifests: Unstructured, deleted: bool = False) -> None:
    """Let a store observe objects."""
    for each in manifests:
        store.apply(RESOURCES[each["kind"]], each, deleted=deleted)


def store(*manifests: Unstructured, clock: Clock | None = None) -> Store:
    """A store with objects."""
    made = Store(clock or Clock())
    put(made, *manifests)
    return made
