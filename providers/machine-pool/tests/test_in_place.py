"""The decisions about updates in place."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from capelin.api.capi import Cluster, MachinePool
from capelin_machine_pool.api import CapelinMachine, CapelinMachinePool
from capelin_machine_pool.desired import DesiredPool, RolloutLimits, desired_pool, pool_machine
from capelin_machine_pool.members import MachineInfo, PoolMember
from capelin_machine_pool.plan import (
    ObservedPool,
    is_updatable,
    next_pool_step,
    next_updates,
    step_events,
)
from capelin_machine_pool.status import pool_conditions
from hypothesis import given
from hypothesis import strategies as st

START = datetime(2026, 1, 1, tzinfo=UTC)
OLD, NEW = "v1.33.13", "v1.34.4"
HOSTS = {"profile": "Bundle", "matchLabels": {"role": "worker"}}


def pool(**spec: Any) -> CapelinMachinePool:
    return CapelinMachinePool.read(
        {
            "metadata": {"name": "workers", "namespace": "team"},
            "spec": {
                "backend": "Hosts",
                "hosts": HOSTS,
                "rollingUpdate": {"method": "InPlace", "maxUnavailable": 1},
                **spec,
            },
        }
    )


def desired(
    version: str = NEW, *, bootstrap: dict[str, Any] | None = None, **spec: Any
) -> DesiredPool:
    machine_pool = MachinePool.read(
        {
            "metadata": {"name": "workers", "namespace": "team"},
            "spec": {"replicas": 3, "template": {"spec": {"version": version}}},
        }
    )
    cluster = Cluster.read({"metadata": {"name": "demo", "namespace": "team"}})
    return desired_pool(pool(**spec), machine_pool, cluster, bootstrap or {})


def machine(name: str = "m0", version: str = OLD, reason: str = "Ready") -> CapelinMachine:
    """A machine that was created for a version."""
    of_version = desired(version)
    made = pool_machine(
        pool(),
        of_version.machine_pool,
        "demo",
        name=name,
        revision=of_version.revision or "",
        failure_domain=None,
    ).dump()
    condition = {
        "type": "Ready",
        "status": "True" if reason == "Ready" else "False",
        "reason": reason,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    made["metadata"] |= {"generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    made["status"] = {"initialization": {"provisioned": True}, "conditions": [condition]}
    return CapelinMachine.read(made)


def infos(*names: str) -> dict[str, MachineInfo]:
    return {name: MachineInfo(None, node_ready=True, delete_first=False) for name in names}


def member(name: str = "m", **changes: Any) -> PoolMember:
    values: dict[str, Any] = {"up_to_date": False, "ready": True, "created": START}
    values |= {"updatable": True, **changes}
    return PoolMember(name=name, **values)


def test_only_another_version_is_updated_in_place() -> None:
    assert is_updatable(desired(), machine())
    assert is_updatable(desired(hosts={**HOSTS, "profile": "Commands"}), machine())
    assert not is_updatable(desired(rollingUpdate={}), machine())
    assert not is_updatable(desired(hosts={"profile": "Bundle"}), machine())
    assert not is_updatable(desired(bootstrap={"files": []}), machine())
    # Two minor versions at once, and back.
    assert not is_updatable(desired("v1.35.4"), machine())
    assert not is_updatable(desired(OLD), machine(version=NEW))
    assert not is_updatable(desired(), machine(reason="UpdateFailed"))
    new = machine()
    assert new.status is not None
    new.status.initialization.provisioned = False
    assert not is_updatable(desired(), new)


def test_machines_are_updated_one_after_another() -> None:
    wanted = desired()
    machines = [machine(f"m{number}") for number in range(3)]
    observed = ObservedPool(machines, infos("m0", "m1", "m2"))
    step = next_pool_step(wanted, observed, START)
    assert (step.update, step.delete, step.create) == (("m0",), (), ())
    events = step_events(wanted, observed, step)
    assert events == [("UpdatingInPlace", f"updating m0 to {NEW} in place")]
    # Its spec has changed, and its condition Ready is from before that.
    machines[0] = machine("m0", version=NEW)
    machines[0].metadata.generation = 2
    step = next_pool_step(wanted, observed, START)
    assert (step.update, step.delete, step.create) == ((), (), ())
    machines[0] = machine("m0", version=NEW)
    assert next_pool_step(wanted, observed, START).update == ("m1",)


def test_failed_update_stops_the_others() -> None:
    wanted = desired(rollingUpdate={"method": "InPlace", "maxUnavailable": 2})
    machines = [machine("m0", NEW, "UpdateFailed"), machine("m1"), machine("m2")]
    step = next_pool_step(wanted, ObservedPool(machines, infos("m0", "m1", "m2")), START)
    assert (step.update, step.delete, step.create) == ((), (), ())
    assert not is_updatable(wanted, machines[0])
    condition = pool_conditions(wanted, machines)[-1]
    assert (condition.type, condition.status, condition.reason) == (
        "UpToDate",
        "False",
        "UpdateFailed",
    )
    assert "the update of the machine m0 failed" in condition.message


@pytest.mark.parametrize("reason", ["Updating", "ArchiveMissing"])
def test_pool_is_not_up_to_date_during_an_update(reason: str) -> None:
    condition = pool_conditions(desired(), [machine("m0", NEW), machine("m1", NEW, reason)])[-1]
    assert (condition.status, condition.reason) == ("False", "Updating")
    assert condition.message == "1 machines are being updated in place"
    assert pool_conditions(desired(), [machine("m0", NEW)])[-1].status == "True"


def test_other_changes_replace_machines() -> None:
    wanted = desired(bootstrap={"files": []})
    machines = [machine(f"m{number}") for number in range(3)]
    step = next_pool_step(wanted, ObservedPool(machines, infos("m0", "m1", "m2")), START)
    assert (step.update, len(step.delete), len(step.create)) == ((), 1, 2)


def test_pool_that_is_scaled_down_deletes_first() -> None:
    wanted = replace(desired(), limits=RolloutLimits(2, unavailable=1))
    machines = [machine(f"m{number}") for number in range(3)]
    step = next_pool_step(wanted, ObservedPool(machines, infos("m0", "m1", "m2")), START)
    assert (step.update, len(step.delete), len(step.create)) == ((), 1, 0)


@pytest.mark.parametrize(
    ("members", "unavailable", "names"),
    [
        ([member("a"), member("b")], 1, ["a"]),
        ([member("a"), member("b"), member("c")], 2, ["a", "b"]),
        # A machine that is not ready goes first: its update makes nothing unavailable.
        ([member("a"), member("b", ready=False)], 1, ["b"]),
        ([member("a", created=START + timedelta(1)), member("b")], 1, ["b"]),
        ([member("a"), member("b", up_to_date=True, updatable=False, ready=False)], 1, []),
        ([member("a"), member("b", updatable=False)], 1, ["a"]),
        ([member("a", has_machine=False), member("b", deleting=True)], 1, []),
        ([member("a"), member("b", updatable=False, update_failed=True)], 2, []),
    ],
)
def test_updates_respect_the_limit(
    members: list[PoolMember], unavailable: int, names: list[str]
) -> None:
    limits = RolloutLimits(len(members), unavailable=unavailable)
    assert list(next_updates(members, limits)) == names


@st.composite
def pools(draw: st.DrawFn) -> list[PoolMember]:
    return [
        member(
            f"m{number}",
            ready=draw(st.booleans()),
            up_to_date=(up_to_date := draw(st.booleans())),
            updatable=not up_to_date and draw(st.booleans()),
            deleting=draw(st.booleans()),
        )
        for number in range(draw(st.integers(0, 8)))
    ]


@given(members=pools(), unavailable=st.integers(0, 4))
def test_no_update_takes_more_than_permitted(members: list[PoolMember], unavailable: int) -> None:
    replicas = len(members)
    names = next_updates(members, RolloutLimits(replicas, unavailable=unavailable))
    before = sum(it.ready for it in members if not it.deleting)
    after = sum(it.ready for it in members if not it.deleting and it.name not in names)
    least = replicas - max(1, unavailable)
    assert after == before or after >= least
