"""From a spec, and its Cluster's, to what is wanted."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.desired import (
    RENEW_ANNOTATION,
    ControlPlane,
    InvalidSpecError,
    desired_state,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def desired(
    spec: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
) -> ControlPlane:
    mine = CapelinControlPlane.read(
        {
            "metadata": {"name": "one", "namespace": "sea", "annotations": annotations or {}},
            "spec": {"version": "v1.34.4", **(spec or {})},
        }
    )
    theirs = Cluster.read(
        {"metadata": {"name": "shoal", "namespace": "sea"}, "spec": cluster or {}}
    )
    return desired_state(mine, theirs, NOW)


def test_what_nobody_says_is_as_everywhere() -> None:
    one = desired()
    assert (one.namespace, one.cluster, one.host, one.port) == ("sea", "shoal", None, 6443)
    assert one.service_cidrs == ("10.96.0.0/12",)
    assert one.service_domain == "cluster.local"
    assert one.first_service_address == "10.96.0.1"


def test_the_network_is_the_clusters() -> None:
    network = {
        "apiServerPort": 7443,
        "serviceDomain": "sea.local",
        "services": {"cidrBlocks": ["10.0.0.0/16"]},
        "pods": {"cidrBlocks": ["10.1.0.0/16"]},
    }
    one = desired(cluster={"clusterNetwork": network})
    assert (one.port, one.service_domain) == (7443, "sea.local")
    assert (one.service_cidrs, one.pod_cidrs) == (("10.0.0.0/16",), ("10.1.0.0/16",))


def test_the_control_planes_own_endpoint_comes_before_its_clusters() -> None:
    theirs = {"controlPlaneEndpoint": {"host": "theirs", "port": 1}}
    assert (desired(cluster=theirs).host, desired(cluster=theirs).port) == ("theirs", 1)
    own = desired({"controlPlaneEndpoint": {"host": "own"}}, theirs)
    assert (own.host, own.port) == ("own", 1)


@pytest.mark.parametrize(("days", "is_due"), [(-1, True), (1, False)])
def test_a_rollout_is_wanted_once_its_moment_has_passed(days: int, is_due: bool) -> None:
    moment = NOW + timedelta(days=days)
    one = desired({"rollout": {"after": moment.isoformat()}})
    assert one.rollout_after == (moment if is_due else None)


@pytest.mark.parametrize(("days", "is_due"), [(-1, True), (0, True), (9, False)])
def test_a_renewal_is_wanted_once_its_moment_has_come(days: int, is_due: bool) -> None:
    moment = NOW + timedelta(days=days)
    one = desired(annotations={RENEW_ANNOTATION: moment.isoformat()})
    assert one.renew_issued_before == (moment if is_due else None)


@pytest.mark.parametrize("said", ["soon", "2026-01-31", "2026-01-31T12:00:00"])
def test_a_renewal_before_no_moment_is_refused(said: str) -> None:
    with pytest.raises(InvalidSpecError, match=f"'{said}' is not a moment"):
        desired(annotations={RENEW_ANNOTATION: said})


def test_a_network_that_is_none_is_refused_by_its_field() -> None:
    with pytest.raises(InvalidSpecError, match=r"spec\.clusterNetwork\.pods\.cidrBlocks: 'sea'"):
        desired(cluster={"clusterNetwork": {"pods": {"cidrBlocks": ["sea"]}}})


@pytest.mark.parametrize(
    ("validity", "renew_before", "left"),
    [
        (365, 90, timedelta(days=90)),
        (365, 0, timedelta(days=1)),
        (2, 0, timedelta(hours=16)),
        (1, 0, timedelta(hours=8)),
    ],
)
def test_renewal_of_certificates(validity: int, renew_before: int, left: timedelta) -> None:
    one = desired({"certificates": {"validityDays": validity, "renewBeforeDays": renew_before}})
    share = 1 - left / timedelta(days=validity)
    assert one.renewal_share == pytest.approx(share)


def test_resources_are_read_as_kubernetes_writes_them() -> None:
    one = desired({"etcd": {"resources": {"memory": "512Mi", "cpu": "500m"}}})
    assert one.settings["etcd"].memory_bytes == 512 * 2**20
    assert one.settings["etcd"].cpus == 0.5


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"apiServer": {"extraArgs": {"feature-gates": "Shoal"}}},
            r"spec\.apiServer\.extraArgs\[feature-gates\]: 'Shoal' is not a feature gate. Write",
        ),
        (
            {"scheduler": {"extraArgs": {"v=2": "2"}}},
            r"spec\.scheduler\.extraArgs: 'v=2' is not the name of a flag. Write",
        ),
        (
            {"controllerManager": {"extraArgs": {"leader-elect": "true"}}},
            r"spec\.controllerManager\.extraArgs: --leader-elect is set by Capelin .*leave it out",
        ),
        (
            {"etcd": {"resources": {"memory": "0"}}},
            r"spec\.etcd\.resources\.memory: nothing runs with 0; write",
        ),
        (
            {"etcd": {"resources": {"cpu": 0}}},
            r"spec\.etcd\.resources\.cpu: nothing runs with 0; write",
        ),
        (
            {"apiServer": {"certSANs": ["bücher.example"]}},
            r"^spec\.apiServer\.certSANs: 'bücher\.example' has letters .*; write",
        ),
        (
            {"controlPlaneEndpoint": {"host": "bücher.example"}},
            r"^spec\.controlPlaneEndpoint\.host: 'bücher\.example' has letters",
        ),
    ],
)
def test_invalid_arguments_name_the_field(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        desired(spec)


@pytest.mark.parametrize("cidr", ["10.96.0.0/32", "10.96.0.0/29", "fd00::/125"])
def test_a_network_without_room_for_services_is_refused(cidr: str) -> None:
    network = {"clusterNetwork": {"services": {"cidrBlocks": [cidr]}}}
    with pytest.raises(InvalidSpecError, match=r"services\.cidrBlocks: .* has fewer than the 16"):
        desired(cluster=network)


@pytest.mark.parametrize(
    ("cluster", "field"),
    [
        ({"clusterNetwork": {"serviceDomain": "bücher.local"}}, r"clusterNetwork\.serviceDomain"),
        (
            {"controlPlaneEndpoint": {"host": "bücher.example", "port": 6443}},
            r"controlPlaneEndpoint\.host",
        ),
    ],
)
def test_invalid_cluster_name_is_rejected(cluster: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSpecError, match=rf"^Cluster spec\.{field}: 'bücher"):
        desired(cluster=cluster)
