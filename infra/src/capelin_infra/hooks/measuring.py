"""How long a handler takes, asked again and again over several connections."""

import asyncio
import json as jsonlib
import time
from collections.abc import Sequence

from capelin.runtime.calling import CallingError
from rich.console import Console

from capelin_infra.hooks.calling import (
    ask,
    discovered,
    find_handler,
    hook_of,
    not_answered,
    request_of,
)
from capelin_infra.hooks.requests import Wanted
from capelin_infra.hooks.targets import Target


async def measure(
    target: Target,
    name: str,
    wanted: Wanted,
    *,
    seconds: float,
    connections: int,
    json: bool,
) -> None:
    """Call a handler for some seconds and print how it did.

    Raises:
        NotAnsweredError: a call failed.
    """
    config = await target.config()
    handler = find_handler(await discovered(target, config), name, config.metadata.name)
    request = await request_of(target, wanted, handler, config)
    address, hook = target.address(config), hook_of(handler, target)
    took: list[float] = []
    async with target.connections() as open_connections:

        async def calls(until: float) -> None:
            while time.perf_counter() < until:
                start = time.perf_counter()
                await ask(open_connections, address, handler, hook, request)
                took.append(time.perf_counter() - start)

        try:
            # The first opens a connection, which the figures are not about.
            await ask(open_connections, address, handler, hook, request)
            end = time.perf_counter() + seconds
            await asyncio.gather(*(calls(end) for _ in range(connections)))
        except CallingError as error:
            raise not_answered(target.which, error) from None
    figures = {
        "calls": len(took),
        "perSecond": round(len(took) / seconds, 1),
        **{f"p{part}Milliseconds": milliseconds(took, part) for part in (50, 90, 99)},
    }
    if json:
        print(jsonlib.dumps(figures, indent=2))  # noqa: T201
        return
    Console(highlight=False).print(
        f"{figures['calls']} calls, {figures['perSecond']} a second over {connections} "
        f"connections; half took at most {figures['p50Milliseconds']} ms, 90 % "
        f"{figures['p90Milliseconds']} ms, 99 % {figures['p99Milliseconds']} ms.",
        soft_wrap=True,
    )


def milliseconds(took: Sequence[float], part: int) -> float:
    """What that many percent of the calls took at most."""
    ordered = sorted(took)
    return round(ordered[min(len(ordered) * part // 100, len(ordered) - 1)] * 1000, 2)
