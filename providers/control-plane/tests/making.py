"""A control plane as these tests want one: the smallest, but for what a test names."""

from datetime import UTC, datetime, timedelta

from capelin_control_plane.desired import PROGRAMS, ControlPlane, Tuning


def wanted(
    version: str, *, namespace: str = "default", replicas: int = 1, etcd_replicas: int = 1
) -> ControlPlane:
    return ControlPlane(
        namespace=namespace,
        cluster="one",
        version=version,
        replicas=replicas,
        etcd_replicas=etcd_replicas,
        host=None,
        port=6443,
        service_cidrs=("10.96.0.0/12",),
        pod_cidrs=(),
        service_domain="cluster.local",
        cert_sans=(),
        algorithm="ecdsa-p256",
        validity=timedelta(days=365),
        renew_before=timedelta(days=90),
        renew_made_before=None,
        rollout_after=None,
        as_of=datetime.now(UTC),
        tuning=dict.fromkeys(PROGRAMS, Tuning()),
        coredns=None,
        kube_proxy=None,
    )
