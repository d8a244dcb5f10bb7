"""A Cluster whose infrastructure has set another endpoint than that of the control plane."""

from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.desired.endpoints import endpoint_conflict, other_hosts

OWN = {"host": "10.0.0.1", "port": 6443}
OTHER = {"host": "lb.example.com", "port": 6443}


def control_plane(endpoint: dict[str, Any] | None) -> CapelinControlPlane:
    spec = {"version": "v1.34.4", "controlPlaneEndpoint": endpoint}
    return CapelinControlPlane.model_validate({"metadata": {"name": "one"}, "spec": spec})


def cluster(endpoint: dict[str, Any]) -> Cluster:
    spec = {"controlPlaneEndpoint": endpoint}
    return Cluster.model_validate({"metadata": {"name": "one"}, "spec": spec})


@pytest.mark.parametrize(
    ("own", "theirs"),
    [(None, OTHER), (OWN, {}), (OWN, OWN), ({"host": OWN["host"]}, OWN)],
    ids=["not yet published", "none in the Cluster", "equal", "without a port"],
)
def test_endpoints_agree(own: dict[str, Any] | None, theirs: dict[str, Any]) -> None:
    obj, owner = control_plane(own), cluster(theirs)
    assert (endpoint_conflict(obj, owner).status, other_hosts(obj, owner)) == ("False", ())


def test_a_conflict_names_both_endpoints_and_certificates_cover_them() -> None:
    # Without a port of its own, the control plane has that of the Cluster.
    for endpoint, port in ((OWN, 6443), ({"host": OWN["host"]}, 443)):
        obj, owner = control_plane(endpoint), cluster({**OTHER, "port": 443})
        condition = endpoint_conflict(obj, owner)
        assert (condition.status, condition.reason) == ("True", "ClusterHasOtherEndpoint")
        assert condition.message == (
            "the Cluster's spec.controlPlaneEndpoint is lb.example.com:443, and that of the control"
            f" plane is 10.0.0.1:{port}: machines use the Cluster's, and the kubeconfig Secret that"
            " of the control plane"
        )
        assert other_hosts(obj, owner) == ("lb.example.com",)


def test_another_port_of_the_same_host_is_a_conflict_too() -> None:
    obj, owner = control_plane(OWN), cluster({**OWN, "port": 443})
    assert (endpoint_conflict(obj, owner).status, other_hosts(obj, owner)) == ("True", ())


def test_certificates_do_not_cover_a_host_that_no_certificate_can_name() -> None:
    assert (
        other_hosts(control_plane(OWN), cluster({"host": "b\u00fccher.example", "port": 1})) == ()
    )
