"""Desired state from the specs of a control plane and its Cluster."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.desired.control_plane import (
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


def test_an_empty_spec_gets_the_default_networks_and_port() -> None:
    control_plane = desired()
    assert (
        control_plane.namespace,
        control_plane.cluster,
        control_plane.host,
        control_plane.port,
    ) == ("sea", "shoal", None, 6443)
    assert control_plane.service_cidrs == ("10.96.0.0/12",)
    assert control_plane.service_domain == "cluster.local"
    assert control_plane.first_service_address == "10.96.0.1"


def test_the_network_comes_from_the_cluster() -> None:
    network = {
        "apiServerPort": 7443,
        "serviceDomain": "sea.local",
        "services": {"cidrBlocks": ["10.0.0.0/16"]},
        "pods": {"cidrBlocks": ["10.1.0.0/16"]},
    }
    control_plane = desired(cluster={"clusterNetwork": network})
    assert (control_plane.port, control_plane.service_domain) == (7443, "sea.local")
    assert (control_plane.service_cidrs, control_plane.pod_cidrs) == (
        ("10.0.0.0/16",),
        ("10.1.0.0/16",),
    )


def test_the_endpoint_of_the_control_plane_overrides_that_of_its_cluster() -> None:
    theirs = {"controlPlaneEndpoint": {"host": "theirs", "port": 1}}
    assert (desired(cluster=theirs).host, desired(cluster=theirs).port) == ("theirs", 1)
    own = desired({"controlPlaneEndpoint": {"host": "own"}}, theirs)
    assert (own.host, own.port) == ("own", 1)
    assert own.is_port_given
    assert not desired({"controlPlaneEndpoint": {"host": "own"}}).is_port_given


@pytest.mark.parametrize(("days", "is_due"), [(-1, True), (1, False)])
def test_a_rollout_is_due_after_its_moment(days: int, is_due: bool) -> None:
    moment = NOW + timedelta(days=days)
    control_plane = desired({"rollout": {"after": moment.isoformat()}})
    assert control_plane.rollout_after == (moment if is_due else None)


@pytest.mark.parametrize(("days", "is_due"), [(-1, True), (0, True), (9, False)])
def test_a_renewal_is_due_from_its_moment(days: int, is_due: bool) -> None:
    moment = NOW + timedelta(days=days)
    control_plane = desired(annotations={RENEW_ANNOTATION: moment.isoformat()})
    assert control_plane.renew_issued_before == (moment if is_due else None)


@pytest.mark.parametrize("moment", ["soon", "2026-01-31", "2026-01-31T12:00:00"])
def test_a_renewal_with_an_invalid_moment_is_rejected(moment: str) -> None:
    with pytest.raises(InvalidSpecError, match=f"'{moment}' is not a moment"):
        desired(annotations={RENEW_ANNOTATION: moment})


def test_an_invalid_network_is_rejected_with_its_field() -> None:
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
    control_plane = desired(
        {"certificates": {"validityDays": validity, "renewBeforeDays": renew_before}}
    )
    share = 1 - left / timedelta(days=validity)
    assert control_plane.renewal_share == pytest.approx(share)


@pytest.mark.parametrize(
    ("spec", "algorithm"),
    [
        ({}, "ecdsa-p256"),
        ({"keyAlgorithm": "ECDSA-P256"}, "ecdsa-p256"),
        ({"keyAlgorithm": "RSA-2048"}, "rsa-2048"),
    ],
)
def test_the_spec_chooses_the_algorithm_of_keys(spec: dict[str, str], algorithm: str) -> None:
    assert desired({"certificates": spec}).algorithm == algorithm


def test_a_certificate_can_be_valid_for_a_wildcard() -> None:
    control_plane = desired({"apiServer": {"certSANs": ["*.example.com", "192.0.2.1"]}})
    assert control_plane.cert_sans == ("*.example.com", "192.0.2.1")


def test_resources_are_parsed_like_kubernetes_quantities() -> None:
    control_plane = desired({"etcd": {"resources": {"memory": "512Mi", "cpu": "500m"}}})
    assert control_plane.settings["etcd"].memory_bytes == 512 * 2**20
    assert control_plane.settings["etcd"].cpus == 0.5


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
            r"spec\.controllerManager\.extraArgs: --leader-elect is set by Capelin .*Remove it",
        ),
        (
            {"etcd": {"resources": {"memory": "0"}}},
            r"spec\.etcd\.resources\.memory: no component runs with 0: write",
        ),
        (
            {"etcd": {"resources": {"cpu": 0}}},
            r"spec\.etcd\.resources\.cpu: no component runs with 0: write",
        ),
        (
            {"apiServer": {"certSANs": ["bücher.example"]}},
            r"^spec\.apiServer\.certSANs: 'bücher\.example' has letters .*: write",
        ),
        (
            {"controlPlaneEndpoint": {"host": "bücher.example"}},
            r"^spec\.controlPlaneEndpoint\.host: 'bücher\.example' has letters",
        ),
        (
            {"controlPlaneEndpoint": {"host": "*.example.com"}},
            r"^spec\.controlPlaneEndpoint\.host: '\*\.example\.com'",
        ),
    ],
)
def test_invalid_arguments_name_the_field(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        desired(spec)


@pytest.mark.parametrize("cidr", ["10.96.0.0/32", "10.96.0.0/29", "fd00::/125"])
def test_a_service_network_that_is_too_small_is_rejected(cidr: str) -> None:
    network = {"clusterNetwork": {"services": {"cidrBlocks": [cidr]}}}
    with pytest.raises(InvalidSpecError, match=r"services\.cidrBlocks: .* has fewer than the 16"):
        desired(cluster=network)


def test_sixteen_addresses_are_enough_for_services() -> None:
    services = {"services": {"cidrBlocks": ["10.96.0.0/28"]}}
    assert desired(cluster={"clusterNetwork": services}).service_cidrs == ("10.96.0.0/28",)


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
