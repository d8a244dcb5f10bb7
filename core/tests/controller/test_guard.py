"""A manager whose event loop is blocked."""

import asyncio
import logging
import re
import runpy
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from annotated_types import Ge, Le
from capelin.api import Model, Object, kind
from capelin.client import Client
from capelin.controller import Context, Done, For, Reconciler, Result
from capelin.controller.guard import LoopGuard
from capelin.testing.waiting import until

SCRIPT = Path(__file__).parent / "blocking.py"
LEASE = 4


class Spec(Model):
    pass


class Status(Model):
    seconds: Annotated[int, Ge(0), Le(100)] = 0


@kind(group="guard.test", version="v1")
class Pebble(Object[Spec, Status]):
    """A kind."""


async def block(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - the test needs a blocked loop


async def test_the_guard_names_a_blocking_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with LoopGuard(limit=0.1, tick=0.02):
        await asyncio.create_task(block(0.5), name="reconcile of default/block")
        await until(lambda: "reconcile of default/block held the event loop for" in caplog.text)
    first = next(record.getMessage() for record in caplog.records)
    assert first.startswith("reconcile of default/block has held the event loop for")
    assert "test_guard.py" in first
    assert " in block. " in first


async def test_the_guard_does_not_report_a_waiting_loop(caplog: pytest.LogCaptureFixture) -> None:
    # A busy machine may stop this process for a part of the limit.
    with LoopGuard(limit=1, tick=0.02):
        await asyncio.sleep(1.5)
    assert not caplog.records


async def test_a_plain_reconcile_does_not_block_the_event_loop(
    client: Client,
    namespace: str,
    running: Any,
    install_crds: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    install_crds(Pebble)
    caplog.set_level(logging.INFO)
    released = threading.Event()

    class Pebbles(Reconciler[Pebble]):
        watches = (For(Pebble),)

        def reconcile(self, ctx: Context, pebble: Pebble, /) -> Result:
            if pebble.name == "slow":
                assert released.wait(60)
            current = ctx.wait(ctx.client.get(Pebble, pebble.name, pebble.namespace))
            ctx.wait(ctx.patch_status(current, Status(seconds=1)))
            ctx.event(pebble, "Normal", "Slept", "it slept")
            return Done()

    for name in ("slow", "quick"):
        await client.create(Pebble.of(name, namespace, spec=Spec()))
    async with running(Pebbles()):

        async def status(name: str) -> Status | None:
            return (await client.get(Pebble, name, namespace)).status

        await until(lambda: status("quick"))
        assert await status("slow") is None
        released.set()
        await until(lambda: status("slow"))
    assert "held the event loop" not in caplog.text


async def test_an_object_that_held_the_event_loop_waits_and_others_do_not(
    client: Client,
    namespace: str,
    running: Any,
    install_crds: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_crds(Pebble)
    monkeypatch.setattr(
        "capelin.controller.manager.LoopGuard", partial(LoopGuard, limit=0.1, tick=0.02)
    )
    runs: list[str] = []

    class Pebbles(Reconciler[Pebble]):
        watches = (For(Pebble),)

        async def reconcile(self, ctx: Context, pebble: Pebble, /) -> Result:
            del ctx
            if pebble.name == "heavy":
                await block(0.5)
            runs.append(pebble.name)
            return Done()

    await client.create(Pebble.of("heavy", namespace, spec=Spec()))
    async with running(Pebbles()):
        await until(lambda: runs == ["heavy"])
        note = {"metadata": {"labels": {"changed": "yes"}}}
        await client.patch(Pebble, "heavy", namespace, note)
        await client.create(Pebble.of("light", namespace, spec=Spec()))
        await until(lambda: "light" in runs)
    assert runs == ["heavy", "light"]


async def test_a_manager_without_its_lease_ends_before_another_starts(
    client: Client,
    kubeconfig: Path,
    namespace: str,
    install_crds: Callable[..., None],
    tmp_path: Path,
) -> None:
    stone: Any = runpy.run_path(str(SCRIPT))
    install_crds(stone["Stone"])
    spec = stone["Spec"](seconds=25)
    await client.create(stone["Stone"].of("block", namespace, spec=spec))

    async def start(name: str) -> asyncio.subprocess.Process:
        with (tmp_path / f"{name}.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, str(SCRIPT), f"--kubeconfig={kubeconfig}"),
                *(f"--namespace={namespace}", f"--leader-elect-namespace={namespace}"),
                *("--leader-elect", f"--leader-elect-lease-duration={LEASE}"),
                *("--leader-elect-renew-deadline=2", "--leader-elect-retry-period=0.2"),
                *("--metrics-address=0", "--health-address=0"),
                f"--journal={tmp_path / name}",
                stderr=log,
            )

    def lines(name: str) -> list[str]:
        file = tmp_path / name
        return file.read_text().splitlines() if file.exists() else []

    first = await start("first")
    await until(lambda: lines("first"))
    second = await start("second")
    try:
        assert await asyncio.wait_for(first.wait(), 60) == 1
        ended = time.time()
        (began,) = await until(lambda: lines("second"))
        assert float(began.split()[1]) >= ended - 0.5
        assert [line.split()[0] for line in lines("first")] == ["began"]
    finally:
        second.kill()
        await second.wait()
    log = (tmp_path / "first.log").read_text()
    assert re.search(rf"reconcile of {namespace}/block has held the event loop for \d s", log)
    assert "in reconcile" in log
