"""The runner with a client that is not one: what happens to keys, whatever a reconciler does."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, cast

import pytest
from capelin.api import Object, kind
from capelin.api.core import ConfigMap
from capelin.client import (
    Client,
    Conflict,
    Unreachable,
    Unreadable,
    UnreadableLog,
    UnreadableObject,
)
from capelin.controller import (
    After,
    Context,
    Done,
    For,
    ObjectKey,
    Reconciler,
    Result,
    Watches,
)
from capelin.controller.diagnostics import Metrics
from capelin.controller.events import EventRecord
from capelin.controller.queue import Queue, Timing
from capelin.controller.reconciler import Labels
from capelin.controller.runner import Runner
from capelin.testing.waiting import until

A, B = ObjectKey("sea", "a"), ObjectKey("sea", "b")
LATER = 1e6


@kind(group="runner.test", version="v1")
class Fish(Object[dict[str, Any], dict[str, Any]]):
    """A kind."""


class Pond:
    """Holds objects as a client would."""

    def __init__(self, *keys: ObjectKey) -> None:
        self.fish = {key: Fish.of(key.name, key.namespace, spec={}) for key in keys}

    async def find(self, _: type[Fish], name: str, namespace: str | None) -> Fish | None:
        return self.fish.get(ObjectKey(namespace or "", name))


class Angler(Reconciler[Fish]):
    """Does what the test says with each object."""

    watches = (For(Fish),)

    def __init__(self, do: Callable[[Fish], Any]) -> None:
        self.caught: list[str] = []
        self.missed: list[ObjectKey] = []
        self.do = do

    async def reconcile(self, _: Context, fish: Fish, /) -> Result:
        self.caught.append(fish.name)
        result = self.do(fish)
        return await result if asyncio.iscoroutine(result) else result

    async def on_missing(self, _: Context, key: ObjectKey, /) -> None:
        self.missed.append(key)


class Murky(Pond):
    """Holds an object that cannot be read."""

    def __init__(self) -> None:
        super().__init__(B)
        self.unreadable = UnreadableLog()

    async def find(self, _: type[Fish], name: str, namespace: str | None) -> Fish | None:
        if name == A.name:
            unreadable = UnreadableObject(Fish.resource, "sea", name, "1", "7", "it is too deep")
            raise Unreadable("Fish cannot be read", unreadable)
        return await super().find(_, name, namespace)


class Notes:
    """Notes the events that are recorded."""

    def __init__(self) -> None:
        self.records: list[EventRecord] = []

    def record(self, record: EventRecord) -> None:
        self.records.append(record)


class Setup:
    """A runner, its queue and a clock that only the test moves."""

    def __init__(
        self,
        do: Callable[[Fish], Any],
        pond: Pond | None = None,
        *,
        concurrency: int = 2,
        labels: Labels | None = None,
        clock: Callable[[], float] | None = None,
        notes: Notes | None = None,
    ) -> None:
        self.now = 0.0
        self.metrics = Metrics()
        # Far beyond what a test lasts: the real clock only wakes the runner up.
        self.queue = Queue(Timing(LATER, LATER, LATER), Random(0))  # noqa: S311
        self.angler = Angler(do)
        context = Context(
            cast("Client", pond or Pond(A, B)), logging.getLogger("test"), cast("Any", notes)
        )
        self.runner = Runner(
            self.angler,
            self.queue,
            context,
            self.metrics,
            concurrency=concurrency,
            labels=labels or {},
            clock=clock or (lambda: self.now),
        )

    async def run(self, *keys: ObjectKey) -> None:
        """Have these keys reconciled once."""
        self.runner.start()
        for key in keys:
            self.runner.add(key)
        await self.quiet()
        await self.runner.stop(0)

    async def quiet(self) -> None:
        """Until nothing runs and nothing waits."""
        await until(lambda: not self.queue.depth and not self.queue.running_for(0))

    def ended(self, result: str) -> float | None:
        return self.metrics.registry.get_sample_value(
            "controller_runtime_reconcile_total", {"controller": "fish", "result": result}
        )


async def test_a_success_comes_again_at_the_resync() -> None:
    setup = Setup(lambda _: Done())
    await setup.run(A)
    assert setup.ended("success") == 1
    assert setup.queue.keys == {A}


async def test_later_is_later() -> None:
    setup = Setup(lambda _: After(7))
    await setup.run(A)
    assert setup.ended("requeue_after") == 1
    assert setup.queue.next_due() == 7


async def test_what_is_gone_is_told_and_forgotten_without_a_reconcile() -> None:
    setup = Setup(lambda _: Done(), Pond(B))
    await setup.run(A, B)
    assert setup.queue.keys == {B}
    assert setup.angler.caught == ["b"]
    assert setup.angler.missed == [A]


async def test_what_lost_its_label_is_forgotten_without_a_reconcile() -> None:
    setup = Setup(lambda _: Done(), labels={"watched": None})
    await setup.run(A)
    assert setup.queue.keys == set()
    assert setup.angler.caught == []


async def test_the_next_run_starts_when_it_is_due_and_not_before() -> None:
    setup = Setup(lambda _: After(0.05), clock=asyncio.get_running_loop().time)
    began = asyncio.get_running_loop().time()
    setup.runner.start()
    setup.runner.add(A)
    await until(lambda: len(setup.angler.caught) >= 3)
    await setup.runner.stop(1)
    assert asyncio.get_running_loop().time() - began >= 0.1


@pytest.mark.parametrize(
    ("error", "level", "told"),
    [
        (RuntimeError("no net"), logging.ERROR, "The reconcile failed: RuntimeError: no net"),
        (Unreachable("API server does not answer"), logging.ERROR, "API server does not answer"),
        (Conflict(409, "Conflict", "somebody wrote"), logging.INFO, "somebody wrote. Trying again"),
    ],
)
async def test_a_failure_is_told_counted_and_tried_again(
    caplog: pytest.LogCaptureFixture, error: Exception, level: int, told: str
) -> None:
    def fail(_: Fish) -> Result:
        raise error

    setup = Setup(fail)
    with caplog.at_level(logging.INFO):
        await setup.run(A)
    assert setup.ended("error") == 1
    assert setup.queue.retries == 1
    assert (level, told) in [(record.levelno, record.getMessage()) for record in caplog.records]
    surprising = isinstance(error, RuntimeError)
    assert any(record.exc_info for record in caplog.records) is surprising


async def test_unreadable_object_has_an_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notes = Notes()
    setup = Setup(lambda _: Done(), Murky(), notes=notes)
    await setup.run(A, B)
    setup.now = 10 * LATER
    setup.runner.start()
    await until(lambda: setup.ended("error") == 2)
    await setup.runner.stop(0)
    assert setup.angler.caught == ["b", "b"]
    assert [
        record.getMessage()
        for record in caplog.records
        if record.name == "capelin.client.unreadable"
    ] == ["Fish sea/a cannot be read and is skipped until it changes: it is too deep"]
    assert {(record.reason, record.uid, record.note) for record in notes.records} == {
        (
            "Unreadable",
            "1",
            "It is unreadable, and is not reconciled until it changes: it is too deep",
        )
    }


async def test_unreadable_object_affects_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fish_of(config_map: ConfigMap) -> list[ObjectKey]:
        return [ObjectKey("sea", config_map.name)]

    setup = Setup(lambda _: Done(), Murky())
    await setup.run(B)
    metadata = {"name": "m", "namespace": "sea", "uid": "m"}
    for _ in range(2):
        setup.runner.changed(
            Watches(ConfigMap, to=fish_of), {"metadata": metadata, "data": ["secret-value"]}
        )
    assert setup.queue.depth == 0
    assert [
        record.getMessage()
        for record in caplog.records
        if record.name == "capelin.client.unreadable"
    ] == [
        (
            "ConfigMap sea/m cannot be read and is skipped until it changes: "
            "data: Input should be a valid dictionary"
        )
    ]


async def test_missing_result_is_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup(lambda _: None)
    await setup.run(A)
    assert setup.ended("error") == 1
    assert "Angler.reconcile returned None instead of Done() or After(seconds)" in (caplog.text)


async def test_no_more_run_at_once_than_are_allowed() -> None:
    running: set[str] = set()
    most: list[int] = []

    async def wait(fish: Fish) -> Result:
        running.add(fish.name)
        most.append(len(running))
        await asyncio.sleep(0.01)
        running.remove(fish.name)
        return Done()

    keys = [ObjectKey("sea", str(number)) for number in range(20)]
    setup = Setup(wait, Pond(*keys), concurrency=3)
    await setup.run(*keys)
    assert sorted(setup.angler.caught, key=int) == [str(number) for number in range(20)]
    assert max(most) == 3


async def test_nothing_starts_before_the_start_nor_after_the_stop() -> None:
    setup = Setup(lambda _: Done())
    setup.runner.add(A)
    # A started runner reconciles well within this time.
    await asyncio.sleep(0.01)
    assert setup.angler.caught == []
    await setup.run()
    assert setup.angler.caught == ["a"]
    setup.runner.add(B)
    await asyncio.sleep(0.01)
    assert setup.angler.caught == ["a"]


async def test_a_reconcile_that_cannot_be_cancelled_does_not_hold_up_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capelin.controller.runner._CANCELLING", 0.01)
    released = asyncio.Event()

    async def deaf(_: Fish) -> Result:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()
        return Done()

    setup = Setup(deaf)
    setup.runner.start()
    setup.runner.add(A)
    await asyncio.sleep(0)
    await setup.runner.stop(0)
    assert "fish: reconcile of sea/a continues although it was cancelled" in caplog.text
    released.set()
    await setup.quiet()


async def test_after_the_recovery_of_the_api_server_failed_keys_are_tried_at_once() -> None:
    failures = [Unreachable("down")]

    def fail_once(_: Fish) -> Result:
        if failures:
            raise failures.pop()
        return Done()

    setup = Setup(fail_once)
    setup.runner.start()
    setup.runner.add(A)
    await setup.quiet()
    setup.now = 1
    setup.runner.retry_soon()
    setup.now = 3
    setup.runner.add(B)
    await setup.quiet()
    await setup.runner.stop(0)
    assert sorted(setup.angler.caught) == ["a", "a", "b"]


async def test_after_a_gap_in_the_events_every_key_is_looked_at() -> None:
    setup = Setup(lambda _: Done())
    setup.runner.start()
    setup.runner.add(A)
    setup.runner.add(B)
    await setup.quiet()
    setup.runner.add_all()
    await setup.quiet()
    await setup.runner.stop(0)
    assert sorted(setup.angler.caught) == ["a", "a", "b", "b"]


async def test_metrics_tell_of_queue_and_workers() -> None:
    hold = asyncio.Event()

    async def wait(_: Fish) -> Result:
        await hold.wait()
        return Done()

    setup = Setup(wait, concurrency=1)
    setup.runner.start()
    setup.runner.add(A)
    setup.runner.add(B)
    await asyncio.sleep(0)
    setup.now = 4
    read = setup.metrics.registry.get_sample_value
    queue = {"name": "fish", "controller": "fish"}
    assert read("workqueue_depth", queue) == 1
    assert read("workqueue_adds_total", queue) == 2
    assert read("workqueue_unfinished_work_seconds", queue) == 4
    assert read("workqueue_longest_running_processor_seconds", queue) == 4
    assert read("controller_runtime_active_workers", {"controller": "fish"}) == 1
    assert read("controller_runtime_max_concurrent_reconciles", {"controller": "fish"}) == 1
    hold.set()
    await setup.quiet()
    await setup.runner.stop(0)
    assert read("workqueue_depth", queue) == 0
    assert read("workqueue_queue_duration_seconds_sum", queue) == 4
    assert read("workqueue_work_duration_seconds_sum", queue) == 4
    assert read("controller_runtime_reconcile_time_seconds_count", {"controller": "fish"}) == 2
    assert read("workqueue_retries_total", queue) == 0
