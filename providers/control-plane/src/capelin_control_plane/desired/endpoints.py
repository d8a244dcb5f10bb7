"""The endpoints of a control plane and of its Cluster, which may differ. Pure."""

from typing import Final

from capelin.api.capi import Cluster
from capelin.contract import ConditionSpec

from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.api.policy import problem_of_host
from capelin_control_plane.api.reasons import Reason

ENDPOINT_CONFLICT: Final = "EndpointConflict"
"""Whether the Cluster has another endpoint than the control plane."""


def other_hosts(control_plane: CapelinControlPlane, cluster: Cluster) -> tuple[str, ...]:
    """The host of the Cluster's endpoint, if it differs from that of the control plane.

    Machines join there, so the certificate of the API servers has to be valid for it.
    """
    own, theirs = control_plane.spec.control_plane_endpoint, cluster.spec.control_plane_endpoint
    if own is None or own.host in {None, theirs.host} or problem_of_host(theirs.host):
        return ()
    return (theirs.host,)


def endpoint_conflict(control_plane: CapelinControlPlane, cluster: Cluster) -> ConditionSpec:
    """Whether machines and the kubeconfig Secret use different endpoints.

    Neither endpoint can change: both are in files of users and machines.
    """
    own, theirs = control_plane.spec.control_plane_endpoint, cluster.spec.control_plane_endpoint
    if own is None or not own.host or not theirs.host:
        return ConditionSpec(ENDPOINT_CONFLICT, "False", f"No{ENDPOINT_CONFLICT}")
    if (own.host, own.port or theirs.port) == (theirs.host, theirs.port):
        return ConditionSpec(ENDPOINT_CONFLICT, "False", f"No{ENDPOINT_CONFLICT}")
    return ConditionSpec(
        ENDPOINT_CONFLICT,
        "True",
        Reason.CLUSTER_HAS_OTHER_ENDPOINT,
        f"the Cluster's spec.controlPlaneEndpoint is {theirs.host}:{theirs.port}, and that of the"
        f" control plane is {own.host}:{own.port or theirs.port}: machines use the Cluster's, and"
        " the kubeconfig Secret that of the control plane",
    )
