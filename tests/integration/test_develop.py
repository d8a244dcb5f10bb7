"""`capelin dev` restarts a provider after a change of its code. The others keep running."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import capelin_machine_pool
import pytest
from capelin.testing.waiting import until

from .homes import Home, processes

pytestmark = pytest.mark.timeout(300)

CHANGED, OTHER = "infrastructure-capelin", "control-plane-capelin"


async def test_dev_restarts_a_provider_when_its_code_changes(
    home: Home, record_property: Callable[[str, object], None]
) -> None:
    environment = home.environment()
    develop = await home.start("dev", "--management-only")
    assert develop.stdout is not None
    lines: list[str] = []

    async def line_with(text: str) -> str:
        assert develop.stdout is not None
        while text not in (line := (await develop.stdout.readline()).decode()):
            assert line, "".join(lines)
            lines.append(line)
        return line

    try:
        await line_with("Watching the code of")
        before = processes(environment)
        os.utime(Path(capelin_machine_pool.__file__))
        assert (await line_with("Changed:")).strip() == f"Changed: {CHANGED}"
        record_property("output of dev", (await line_with("Running the new code")).strip())
        after = processes(environment)
        assert after[CHANGED] != before[CHANGED]
        assert after[OTHER] == before[OTHER]
    finally:
        develop.send_signal(signal.SIGINT)
        await asyncio.gather(develop.communicate())
    # The environment keeps running without it.
    assert develop.returncode == 130

    def as_before() -> bool:
        return processes(environment) == after

    await until(as_before, within=10)
