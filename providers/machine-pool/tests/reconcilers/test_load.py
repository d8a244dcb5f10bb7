"""A thousand machines do not cause a thousand requests."""

from contextlib import suppress
from typing import Any, cast

import pytest
from capelin.api.capi import Machine
from capelin.api.core import Secret
from capelin.client import Client
from capelin.controller import ObjectKey
from capelin_machine_pool.reconcilers.machines import KubeconfigSecrets, machine_of
from capelin_machine_pool.reconcilers.pools import RateLimit

from tests.support.clock import MonotonicClock

POOL, OTHER = ObjectKey("team", "pool"), ObjectKey("team", "other")
DEMO = ObjectKey("team", "demo")


class Counting:
    """A client that counts its requests."""

    def __init__(self) -> None:
        self.requests = 0
        self.exists = True

    async def find(self, *_: object) -> Secret | None:
        self.requests += 1
        return Secret.of("demo-kubeconfig", "team") if self.exists else None


def reconcile(
    limit: RateLimit, clock: MonotonicClock, key: ObjectKey, seconds: float, machines: int = 1000
) -> None:
    with limit.measure(key, 1):
        limit.set_size(key, machines)
        clock.now += seconds


def test_a_long_reconcile_causes_a_longer_delay() -> None:
    limit = RateLimit(clock := MonotonicClock())
    assert limit.delay(POOL, 1) == 0
    reconcile(limit, clock, POOL, 1.0)
    assert limit.delay(POOL, 1) == pytest.approx(4.0)
    assert limit.delay(OTHER, 1) == 0
    clock.now += 3
    assert limit.delay(POOL, 1) == pytest.approx(1.0)
    clock.now += 2
    assert limit.delay(POOL, 1) == 0


def test_the_delay_is_at_most_ten_seconds() -> None:
    limit = RateLimit(clock := MonotonicClock())
    reconcile(limit, clock, POOL, 60.0)
    assert limit.delay(POOL, 1) == pytest.approx(10.0)


@pytest.mark.parametrize(("machines", "seconds"), [(0, 0), (3, 0.03), (100, 1), (800, 8)])
def test_a_small_pool_hardly_waits_for_a_busy_api_server(machines: int, seconds: float) -> None:
    limit = RateLimit(clock := MonotonicClock())
    reconcile(limit, clock, POOL, 60.0, machines)
    assert limit.delay(POOL, 1) == pytest.approx(seconds)


def test_a_failed_reconcile_causes_no_delay_since_the_queue_backs_off() -> None:
    limit = RateLimit(clock := MonotonicClock())
    with suppress(RuntimeError), limit.measure(POOL, 1):
        clock.now += 1
        raise RuntimeError
    assert limit.delay(POOL, 1) == 0


def test_a_change_of_the_pool_itself_does_not_wait() -> None:
    limit = RateLimit(clock := MonotonicClock())
    reconcile(limit, clock, POOL, 1.0)
    assert limit.delay(POOL, 2) == 0
    assert limit.delay(POOL, 1) == pytest.approx(4.0)


async def test_machines_of_a_cluster_read_its_kubeconfig_twice_a_minute() -> None:
    counting, clock = Counting(), MonotonicClock()
    client, secrets = cast("Client", counting), KubeconfigSecrets(clock)
    for _ in range(1000):
        assert await secrets.find(client, DEMO) is not None
    assert counting.requests == 1
    await secrets.find(client, ObjectKey("other", "demo"))
    assert counting.requests == 2
    clock.now += 30
    await secrets.find(client, DEMO)
    assert counting.requests == 3


async def test_missing_kubeconfig_is_read_once_a_second() -> None:
    counting, clock = Counting(), MonotonicClock()
    client, secrets = cast("Client", counting), KubeconfigSecrets(clock)
    counting.exists = False
    assert await secrets.find(client, DEMO) is None
    assert await secrets.find(client, DEMO) is None
    assert counting.requests == 1
    clock.now += 1
    counting.exists = True
    assert await secrets.find(client, DEMO) is not None


async def test_kubeconfig_of_a_silent_cluster_is_read_again_after_a_second() -> None:
    counting, clock = Counting(), MonotonicClock()
    client, secrets = cast("Client", counting), KubeconfigSecrets(clock)
    await secrets.find(client, DEMO)
    secrets.doubt(DEMO)
    await secrets.find(client, DEMO)
    assert counting.requests == 1, "all machines of the cluster fail together"
    clock.now += 0.5
    secrets.doubt(DEMO)
    clock.now += 0.5
    await secrets.find(client, DEMO)
    assert counting.requests == 2
    clock.now += 1
    await secrets.find(client, DEMO)
    assert counting.requests == 2, "the cluster answers again"


def machine(*, in_pool: bool, type_: str = "NodeReady", reason: str = "") -> Machine:
    reference = {
        "apiGroup": "infrastructure.cluster.x-k8s.io",
        "kind": "CapelinMachine",
        "name": "one",
    }
    labels = {"cluster.x-k8s.io/pool-name": "pool"} if in_pool else {}
    condition: dict[str, Any] = {
        "type": type_,
        "status": "False",
        "reason": reason,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return Machine.read(
        {
            "metadata": {"name": "one", "namespace": "team", "labels": labels},
            "spec": {"infrastructureRef": reference},
            "status": {"conditions": [condition] if reason else []},
        }
    )


def test_a_change_of_a_machine_reconciles_its_infrastructure_machine() -> None:
    assert machine_of(machine(in_pool=False)) == [ObjectKey("team", "one")]


@pytest.mark.parametrize(
    ("reason", "keys"),
    [
        ("", []),
        ("NodeReady", []),
        ("NodeNotReady", []),
        ("NodeDeleted", [ObjectKey("team", "one")]),
    ],
)
def test_deleted_node_reconciles_the_machine(reason: str, keys: list[ObjectKey]) -> None:
    assert machine_of(machine(in_pool=True, reason=reason)) == keys


def test_a_failed_health_check_reconciles_a_machine_of_a_pool() -> None:
    given_up = machine(in_pool=True, type_="OwnerRemediated", reason="WaitingForRemediation")
    assert machine_of(given_up) == [ObjectKey("team", "one")]
