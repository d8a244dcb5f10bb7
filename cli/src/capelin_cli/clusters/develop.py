"""`capelin dev`: an environment whose providers are restarted whenever their code changes."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from capelin.errors import UserError
from capelin_embedded.management import (
    UpRequest,
    code_digest,
    environment_named,
    provider_modules,
)
from rich.console import Console

from capelin_cli.clusters.up import UpOptions, bring_up
from capelin_cli.environments.bring_up import bring_up_environment
from capelin_cli.terminal.checklist import Checklist
from capelin_cli.terminal.waiting import Deadline

_POLL_SECONDS: Final = 0.3

Digests = Mapping[str, str]
"""Labels of providers, and a digest of the code of each."""


async def develop(options: UpOptions) -> None:
    """Bring an environment up, then bring it to the code as it is after each change."""
    console = Console()
    environment = environment_named(options.name)
    settings = environment.settings()
    requested = {*options.request.providers, *(settings.providers if settings else ())}
    modules = provider_modules(requested)

    def digests() -> Digests:
        return {label: code_digest(module) for label, module in modules.items()}

    before = digests()
    await bring_up(options, console)

    async def restart(labels: Sequence[str]) -> None:
        began = time.monotonic()
        _print(console, f"Changed: {', '.join(labels)}")
        try:
            with environment.locked("dev"), Checklist(console).shown() as checklist:
                deadline = Deadline(options.within)
                await bring_up_environment(environment, UpRequest(), checklist, deadline)
        except UserError as error:
            # Code in development is often broken. The previous processes keep running.
            _print(console, "\n  ".join(filter(None, (error.message, error.reason, error.hint))))
        else:
            _print(console, f"Running the new code after {time.monotonic() - began:.1f} s.")

    _print(console, f"\nWatching the code of {', '.join(modules)}. Ctrl-C ends it.")
    await follow_code(before, digests, restart)


async def follow_code(
    current: Digests,
    digests: Callable[[], Digests],
    restart: Callable[[Sequence[str]], Awaitable[None]],
    *,
    poll: float = _POLL_SECONDS,
) -> None:
    """Restart changed providers after each change. A change during a restart starts another one.

    Args:
        current: The digests of the running code.
        digests: Returns the digests of the code as it is now.
        restart: Gets the labels of changed providers.
        poll: Seconds between looks.
    """
    while True:
        previous, current = current, await _changed(digests, current, poll)
        labels = [label for label, digest in current.items() if digest != previous.get(label)]
        restarting = asyncio.ensure_future(restart(labels))
        try:
            while not restarting.done() and digests() == current:
                await asyncio.wait({restarting}, timeout=poll)
        finally:
            if not restarting.done():
                restarting.cancel()
            await asyncio.wait({restarting})
        if not restarting.cancelled():
            restarting.result()


async def _changed(digests: Callable[[], Digests], before: Digests, poll: float) -> Digests:
    """The digests after a change, once files have stopped changing: editors write several."""
    last = before
    while True:
        await asyncio.sleep(poll)
        latest = digests()
        if latest == last != before:
            return latest
        last = latest


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
