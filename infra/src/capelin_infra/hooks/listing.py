"""Handlers for people: as tables."""

import json as jsonlib
from collections.abc import Iterable

from capelin.runtime.calling.discovery import SaidHandler
from rich.console import Console
from rich.table import Table

from capelin_infra.connection import client_of, the_environment
from capelin_infra.hooks.targets import registered


def handler_table(handlers: Iterable[SaidHandler]) -> Table:
    """The handlers of one extension."""
    table = Table("HANDLER", "HOOK", "VERSION", "TIMEOUT", "ON FAILURE", box=None)
    for one in handlers:
        table.add_row(
            one.name,
            one.request_hook.hook,
            one.request_hook.api_version,
            f"{10 if one.timeout_seconds is None else one.timeout_seconds} s",
            one.failure_policy or "Fail",
        )
    return table


async def show(environment: str, *, json: bool) -> None:
    """Print what the environment's ExtensionConfigs say."""
    async with client_of(the_environment(environment)) as client:
        configs = sorted(await registered(client), key=lambda config: config.metadata.name)
    if json:
        print(jsonlib.dumps([one.dump() for one in configs], indent=2))  # noqa: T201
        return
    table = Table("EXTENSION", "DISCOVERED", "HANDLER", "HOOK", "TIMEOUT", "ON FAILURE", box=None)
    for config in configs:
        found = [c for c in config.status.conditions if c.type == "Discovered"]
        state = f"{found[0].status}" if found else "Unknown"
        if found and found[0].status != "True":
            state = f"{found[0].status}: {found[0].message}"
        table.add_row(config.metadata.name, state)
        for handler in config.status.handlers:
            seconds = f"{handler.timeout_seconds or 10} s"
            hook = handler.request_hook.hook
            table.add_row("", "", handler.name, hook, seconds, handler.failure_policy or "Fail")
    console = Console()
    if configs:
        console.print(table)
    else:
        console.print("No ExtensionConfigs. Register one with kubectl apply.")
