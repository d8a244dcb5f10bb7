"""Results of one namespace do not hold up those of others."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

from capelin.api import ObjectMeta, Unstructured
from capelin.controller import Context, Done, Result
from capelin.testing.fake_client import FakeClient
from capelin_lifecycle.actions.reservations import Reservations
from capelin_lifecycle.api.results import LifecycleResult
from capelin_lifecycle.judge import Judge
from capelin_lifecycle.policies.clusters import Occurrence
from capelin_lifecycle.policies.store import Store
from capelin_lifecycle.reconcilers.policies import policy_problem
from capelin_lifecycle.reconcilers.records import new_result
from capelin_lifecycle.reconcilers.results import ResultReconciler

from .factories import known

RULE: Unstructured = {"validate": {"rules": [{"expression": "true", "message": "no"}]}}


class Stuck(ResultReconciler):
    """Steps of the namespace `mallory` never end."""

    async def _reconcile(self, ctx: Context, result: LifecycleResult) -> Result:
        del ctx
        if result.namespace == "mallory":
            await asyncio.Event().wait()
        return Done()


class Counting(ResultReconciler):
    """Counts the steps that run at the same time."""

    running = most = 0

    async def _reconcile(self, ctx: Context, result: LifecycleResult) -> Result:
        del ctx, result
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return Done()


def stuck_reconciler(client: FakeClient) -> Stuck:
    store = Store(policy_problem)
    return Stuck(store, Judge(store, Reservations(client, "system")), "system")


def result_in(namespace: str, number: int = 0) -> LifecycleResult:
    occurrence = Occurrence(
        hook="BeforeClusterCreate", namespace=namespace, cluster="demo", uid="1"
    )
    policy = known(hook="BeforeClusterCreate", action=RULE, namespace=namespace)
    return new_result(policy, f"result-{number}", occurrence, datetime(2026, 1, 1, tzinfo=UTC))


async def test_slow_steps_of_one_namespace_do_not_hold_up_others() -> None:
    client, recorder = FakeClient(), None
    reconciler = stuck_reconciler(client)
    ctx: Any = Context(client, logging.getLogger(__name__), recorder)  # type: ignore[arg-type]
    stuck = [
        asyncio.create_task(reconciler.reconcile(ctx, result_in("mallory", number)))
        for number in range(5)
    ]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(5):
            assert await reconciler.reconcile(ctx, result_in("alice")) == Done()
    finally:
        for task in stuck:
            task.cancel()


async def test_steps_of_many_namespaces_leave_time_for_hooks() -> None:
    client, recorder = FakeClient(), None
    store = Store(policy_problem)
    reconciler = Counting(store, Judge(store, Reservations(client, "system")), "system")
    ctx: Any = Context(client, logging.getLogger(__name__), recorder)  # type: ignore[arg-type]
    steps = (reconciler.reconcile(ctx, result_in(f"team-{number}")) for number in range(20))
    assert await asyncio.gather(*steps) == [Done()] * 20
    assert reconciler.most == 3


def test_workers_are_shared_by_namespaces() -> None:
    reconciler = stuck_reconciler(FakeClient())
    of_mallory = LifecycleResult.model_construct(metadata=ObjectMeta(name="a", namespace="mallory"))
    assert reconciler.group(of_mallory) == "mallory"
