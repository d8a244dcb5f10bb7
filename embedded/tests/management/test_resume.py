"""Which clusters Cluster API's managers wait for when an environment starts again."""

from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin_embedded.management import is_hosted
from capelin_embedded.management.resume import installation_digest


def cluster(
    *,
    host: str = "127.64.3.9",
    provisioned: bool = True,
    reason: str = "Available",
    metadata: Any = None,
    **spec: Any,
) -> Cluster:
    available = {
        "type": "ControlPlaneAvailable",
        "status": "Unknown",
        "reason": reason,
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return Cluster.read(
        {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Cluster",
            "metadata": {"name": "demo", "namespace": "default", **(metadata or {})},
            "spec": {"controlPlaneEndpoint": {"host": host, "port": 6443}, **spec},
            "status": {
                "initialization": {"infrastructureProvisioned": provisioned},
                "conditions": [available],
            },
        }
    )


def test_a_control_plane_on_this_machine_is_hosted() -> None:
    assert is_hosted(cluster())


@pytest.mark.parametrize(
    "other",
    [
        cluster(host="10.0.0.1"),
        cluster(host="api.example.com"),
        cluster(host=""),
        cluster(provisioned=False),
        cluster(paused=True),
        cluster(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        cluster(reason="Asleep"),
    ],
    ids=["elsewhere", "name", "no endpoint", "new", "paused", "deleted", "asleep"],
)
def test_other_clusters_delay_nothing(other: Cluster) -> None:
    assert not is_hosted(other)


def test_a_changed_manifest_is_installed_before_its_manager_starts() -> None:
    before = [{"kind": "ConfigMap", "data": {"a": "1", "b": "2"}}]
    assert installation_digest(before) == installation_digest(
        [{"data": {"b": "2", "a": "1"}, "kind": "ConfigMap"}]
    )
    assert installation_digest(before) != installation_digest([{"kind": "ConfigMap"}])
