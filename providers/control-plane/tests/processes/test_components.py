"""The command lines of a control plane on processes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from capelin_control_plane.backends.processes.components import command_of, grace_seconds
from capelin_control_plane.backends.processes.plan import is_current
from capelin_control_plane.desired.control_plane import PROGRAMS, ControlPlane
from capelin_control_plane.desired.instances import DesiredComponents

from ..factories import components_of, with_arguments  # noqa: TID252 - a folder without a name
from .rig import control_plane

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def at(hours: int, rollout_after: datetime | None = None) -> DesiredComponents:
    """The components this many hours after the moment."""
    now = MOMENT + timedelta(hours=hours)
    return components_of(replace(control_plane(), now=now, rollout_after=rollout_after))


def what_is_current(before: DesiredComponents, after: DesiredComponents) -> set[str]:
    pairs = (
        (before.api_server(0), after.api_server(0)),
        *zip((*before.etcd, *before.controllers), (*after.etcd, *after.controllers), strict=True),
    )
    return {present.component for present, desired in pairs if is_current(present, desired)}


def test_a_rollout_replaces_all_components_except_etcd_once() -> None:
    assert what_is_current(at(-1), at(1, MOMENT)) == {"etcd"}
    assert what_is_current(at(1, MOMENT), at(2, MOMENT)) == set(PROGRAMS)


@pytest.mark.parametrize("later", [None, MOMENT - timedelta(days=1)])
def test_earlier_rollout_replaces_nothing(
    later: datetime | None,
) -> None:
    assert what_is_current(at(1, MOMENT), at(2, later)) == set(PROGRAMS)


def test_a_late_rollout_does_not_replace_newer_instances() -> None:
    assert what_is_current(at(1), at(2, MOMENT)) == set(PROGRAMS)


def test_a_rollout_changes_the_command_of_replaced_instances() -> None:
    # The supervisor would not restart the same command.
    pairs = zip(at(-1).controllers, at(1, MOMENT).controllers, strict=True)
    assert all(command_of(old).hash != command_of(new).hash for old, new in pairs)


def gates_of(desired: ControlPlane) -> set[str]:
    prefix = "--feature-gates="
    arguments = components_of(desired).api_server(0).arguments
    (flag,) = (argument for argument in arguments if argument.startswith(prefix))
    return {*flag.removeprefix(prefix).split(",")}


def test_api_servers_of_one_machine_do_not_share_an_identity_lease() -> None:
    assert "APIServerIdentity=false" in gates_of(control_plane())
    gates = {"feature-gates": "APIServerIdentity=true,WatchList=false"}
    changed = with_arguments(control_plane(), "kube-apiserver", gates)
    assert gates_of(changed) >= {"APIServerIdentity=true", "WatchList=false"}


def with_delay(delay: str | None) -> ControlPlane:
    arguments = {} if delay is None else {"shutdown-delay-duration": delay}
    return with_arguments(control_plane(), "kube-apiserver", arguments)


@pytest.mark.parametrize(("delay", "flag"), [(None, "2s"), ("1m", "1m")])
def test_shutdown_delay_of_an_api_server(delay: str | None, flag: str) -> None:
    arguments = components_of(with_delay(delay)).api_server(0).arguments
    prefix = "--shutdown-delay-duration="
    assert [argument for argument in arguments if argument.startswith(prefix)] == [
        f"{prefix}{flag}"
    ]


@pytest.mark.parametrize(
    ("delay", "seconds"), [(None, 12), ("0", 10), ("1m", 70), ("1m30s", 100), ("shoal", 10)]
)
def test_grace_period_of_an_api_server(delay: str | None, seconds: float) -> None:
    components = components_of(with_delay(delay))
    assert grace_seconds(components.api_server(0)) == seconds
    assert grace_seconds(components.etcd[0]) == 10
