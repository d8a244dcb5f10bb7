"""Minimal control planes for tests, with the settings of each test."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from capelin_control_plane.api import Addon, Addons, KubeProxyAddon
from capelin_control_plane.backends.processes.components import Program, desired_components
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.desired.control_plane import (
    PROGRAMS,
    Component,
    ComponentSettings,
    ControlPlane,
)
from capelin_control_plane.desired.instances import DesiredComponents

STATE_DIR = StateDir(Path("/state/127.64.0.9"), "127.64.0.9")


def desired_control_plane(
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
        renew_issued_before=None,
        rollout_after=None,
        now=datetime.now(UTC),
        settings=dict.fromkeys(PROGRAMS, ComponentSettings()),
        addons=Addons(core_dns=Addon(enabled=False), kube_proxy=KubeProxyAddon(enabled=False)),
    )


def with_arguments(
    desired: ControlPlane, component: Component, arguments: Mapping[str, str]
) -> ControlPlane:
    """The same with flags of a user for a component."""
    settings = {**desired.settings, component: ComponentSettings(arguments=arguments)}
    return replace(desired, settings=settings)


def components_of(desired: ControlPlane) -> DesiredComponents:
    """Its components on processes, with programs that do not exist."""
    programs: dict[Component, Program] = {
        program: Program(desired.version, Path("/bin") / program) for program in PROGRAMS
    }
    return desired_components(desired, STATE_DIR, STATE_DIR.address, programs)
