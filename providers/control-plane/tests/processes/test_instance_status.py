"""The status of the instances of a control plane."""

from capelin_control_plane.backends.processes.instance_status import instance_statuses
from capelin_control_plane.desired.instances import Plan

from ..factories import STATE_DIR, components_of  # noqa: TID252 - a folder without a name
from .rig import control_plane


def test_instances_are_neither_current_nor_outdated_without_the_desired_binaries() -> None:
    desired = control_plane()
    components = components_of(desired)
    plan = Plan(
        (*components.etcd, components.relay, components.api_server(0), *components.controllers)
    )
    statuses = [
        instance_statuses(plan, known, {}, STATE_DIR, desired) for known in (components, None)
    ]
    assert [{status.current for status in known} for known in statuses] == [{True}, {None}]
