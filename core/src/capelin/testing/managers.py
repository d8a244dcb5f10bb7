"""Runs reconcilers in the test's own event loop: once for an object, or during a block.

reconciled = await reconcile_once(Schools(), FakeClient(School), "a", namespace)
assert (reconciled.result, reconciled.events) == (Done(), [])

async with running(Schools(), config=Config.from_kubeconfig(kubeconfig), namespace=namespace):
    await client.create(School.of("a", namespace, spec=SchoolSpec(size=3)))
    await until(lambda: client.get(School, "a", namespace), has_three_fish)
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from inspect import isawaitable, iscoroutinefunction
from typing import Any, cast

from kopf import OperatorRegistry

from capelin.client import Client, Config
from capelin.controller import (
    Context,
    EventRecord,
    Manager,
    Options,
    Reconciler,
    Recorder,
    Result,
)


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The outcome of one reconcile."""

    result: Result
    events: list[EventRecord]
    """The events that it recorded, none of which was written."""


class _Events(Recorder):
    """Keeps events in a list."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, "test", "test", now=lambda: datetime.now(UTC))
        self.kept: list[EventRecord] = []

    def record(self, record: EventRecord) -> None:
        self.kept.append(record)


async def reconcile_once(
    reconciler: Reconciler[Any], client: Client, name: str, namespace: str | None = None
) -> Reconciled:
    """Read an object and reconcile it once like a manager, with a `FakeClient` or a real one.

    Raises:
        NotFound: The object does not exist.
        Exception: The reconcile raised it. A manager would log it and try again.
    """
    events = _Events(client)
    shared = Context(client, logging.getLogger(f"capelin.{reconciler.name}"), events)
    kind: Any = reconciler.main_watch.kind
    obj: Any = await client.get(kind, name, namespace)
    reconcile: Callable[..., Any] = reconciler.reconcile
    async with reconciler.lifespan(shared):
        context = shared.about(obj)
        if iscoroutinefunction(reconcile):
            result = await reconcile(context, obj)
        else:
            result = await context.call(reconcile, context, obj)
            result = await result if isawaitable(result) else result
    # A plain reconcile records its events through the event loop.
    await asyncio.sleep(0)
    return Reconciled(result, events.kept)


@asynccontextmanager
async def running(
    *reconcilers: Reconciler[Any],
    config: Config,
    name: str = "capelin-test",
    kopf: OperatorRegistry | None = None,
    **options: Any,
) -> AsyncGenerator[Manager]:
    """Run a manager during a block, and stop it at the end.

    It does not listen on ports unless `options`, the fields of `Options`, set them.

    Raises:
        Exception: The error that ended the manager before the end of the block. This also ends
            the block, which might wait for ever.
    """
    quiet: dict[str, Any] = {"metrics_address": None, "health_address": None, "grace_period": 5}
    manager = Manager(name, reconcilers, Options(**(quiet | options)), config, kopf=kopf)
    work = asyncio.create_task(manager.run())
    block = cast("asyncio.Task[Any]", asyncio.current_task())
    inside, in_vain = True, False

    def look_at_its_end(_: object) -> None:
        nonlocal in_vain
        if inside and not work.cancelled() and work.exception() is not None:
            in_vain = block.cancel()

    work.add_done_callback(look_at_its_end)
    try:
        yield manager
    finally:
        inside = False
        if in_vain:
            block.uncancel()
        manager.stop()
        await work
