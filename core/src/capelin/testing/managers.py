"""Runs reconcilers in the test's own event loop, for as long as a block lasts.

async with running(Schools(), config=Config.from_kubeconfig(kubeconfig), namespace=namespace):
    await client.create(School.of("a", namespace, spec=SchoolSpec(size=3)))
    await until(lambda: client.get(School, "a", namespace), has_three_fish)
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

from capelin.client import Config
from capelin.controller import Manager, Options, Reconciler


@asynccontextmanager
async def running(
    *reconcilers: Reconciler[Any], config: Config, name: str = "capelin-test", **options: Any
) -> AsyncGenerator[Manager]:
    """Run a manager for a block, and stop it in the end.

    It listens nowhere unless `options`, which are those of `Options`, say otherwise.

    Raises:
        Exception: what ended the manager, if it did not last as long as the block. That is ended,
            too: what it waits for would never come.
    """
    quiet: dict[str, Any] = {"metrics_address": None, "health_address": None, "grace_period": 5}
    manager = Manager(name, reconcilers, Options(**(quiet | options)), config)
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
