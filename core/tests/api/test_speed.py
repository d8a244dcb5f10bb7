"""Time to read and write an object, relative to the time that `json` takes to parse it."""

import json
import timeit
from collections.abc import Callable
from time import process_time

from capelin.api import Unstructured
from capelin.api.capi import Cluster

NOW = "2025-01-31T10:30:15Z"
TYPES = (
    "Available ControlPlaneAvailable ControlPlaneInitialized Deleting InfrastructureReady Paused"
)
FURTHER = "RemoteConnectionProbe RollingOut ScalingDown ScalingUp WorkersAvailable Remediating"
REFERENCE = {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "ControlPlane", "name": "demo"}


def condition(kind: str) -> Unstructured:
    return {
        "type": kind,
        "status": "True",
        "reason": kind,
        "message": "* Machines demo-1, demo-2, demo-3: all is well since a while",
        "lastTransitionTime": NOW,
        "observedGeneration": 3,
    }


CLUSTER: Unstructured = {
    "apiVersion": "cluster.x-k8s.io/v1beta2",
    "kind": "Cluster",
    "metadata": {
        "name": "demo",
        "namespace": "default",
        "uid": "0b5a3c1e-7a53-4f0f-9f3e-6f8f2c6f0a11",
        "resourceVersion": "1234",
        "generation": 3,
        "creationTimestamp": NOW,
        "labels": {"cluster.x-k8s.io/cluster-name": "demo"},
        "finalizers": ["cluster.cluster.x-k8s.io"],
    },
    "spec": {
        "clusterNetwork": {
            "services": {"cidrBlocks": ["10.0.0.0/12"]},
            "pods": {"cidrBlocks": ["192.168.0.0/16"]},
        },
        "controlPlaneEndpoint": {"host": "127.64.0.3", "port": 6443},
        "controlPlaneRef": REFERENCE,
        "infrastructureRef": REFERENCE,
    },
    "status": {
        "initialization": {"infrastructureProvisioned": True, "controlPlaneInitialized": True},
        "controlPlane": {"replicas": 3, "versions": [{"version": "v1.34.4", "replicas": 3}]},
        "conditions": [condition(kind) for kind in f"{TYPES} {FURTHER}".split()],
        "phase": "Provisioned",
    },
}
TEXT = json.dumps(CLUSTER)


def microseconds(work: Callable[[], object]) -> float:
    return min(timeit.repeat(work, timer=process_time, number=200, repeat=10)) / 200 * 1e6


def test_reading_and_dumping_take_a_small_multiple_of_json_parsing() -> None:
    cluster = Cluster.read_json(TEXT)
    parse = microseconds(lambda: json.loads(TEXT))
    times = {
        "read": microseconds(lambda: Cluster.read(CLUSTER)),
        "read_json": microseconds(lambda: Cluster.read_json(TEXT)),
        "dump": microseconds(cluster.dump),
    }
    shown = ", ".join(f"{name} {time:.0f} us" for name, time in times.items())
    print(f"\n{len(TEXT)} bytes: json.loads {parse:.0f} us, {shown}")  # noqa: T201 - with `pytest -s`
    assert max(times["read"], times["read_json"]) < 7 * parse, shown
    assert times["dump"] < 12 * parse, shown
