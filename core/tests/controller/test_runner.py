"""The runner with a fake client: its keys after each result of a reconciler."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
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
    Owns,
    Reconciler,
    Result,
    Watch,
    Watches,
)
from capelin.controller.diagnostics import Metrics
from capelin.controller.events import EventRecord
from capelin.controller.guard import PAYERS
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
    """A fake client with objects."""

    def __init__(self, *keys: ObjectKey) -> None:
        self.fish = {key: Fish.of(key.name, key.namespace, spec={}) for key in keys}

    async def find(self, _: type[Fish], name: str, namespace: str | None) -> Fish | None:
        return self.fish.get(ObjectKey(namespace or "", name))


class Angler(Reconciler[Fish]):
    """Runs the function of the test for each object."""

    watches = (For(Fish),)

    def __init__(self, do: Callable[[Fish], Any]) -> None:
        self.caught: list[str] = []
        self.missing: list[ObjectKey] = []
        self.do = do

    async def reconcile(self, _: Context, fish: Fish, /) -> Result:
        self.caught.append(fish.name)
        result = self.do(fish)
        return await result if asyncio.iscoroutine(result) else result

    async def on_missing(self, _: Context, key: ObjectKey, /) -> None:
        self.missing.append(key)


class CachedAngler(Angler):
    """Reads from the cache."""

    cached_reads = True


class Mirrored(Pond):
    """A fake client whose cache contains other fish."""

    def __init__(self, *keys: ObjectKey, cached: Pond) -> None:
        super().__init__(*keys)
        self.cached = cached


class Murky(Pond):
    """A fake client with an unreadable object."""

    def __init__(self) -> None:
        super().__init__(B)
        self.unreadable = UnreadableLog()

    async def find(self, _: type[Fish], name: str, namespace: str | None) -> Fish | None:
        if name == A.name:
            unreadable = UnreadableObject(Fish.resource, "sea", name, "1", "7", "it is too deep")
            raise Unreadable("Fish cannot be read", unreadable)
        return await super().find(_, name, namespace)


class Notes:
    """Stores recorded events."""

    def __init__(self) -> None:
        self.records: list[EventRecord] = []

    def record(self, record: EventRecord) -> None:
        self.records.append(record)


class Setup:
    """A runner, its queue and a clock that the test controls."""

    def __init__(
        self,
        do: Callable[[Fish], Any],
        pond: Pond | None = None,
        *,
        concurrency: int = 2,
        labels: Labels | None = None,
        clock: Callable[[], float] | None = None,
        notes: Notes | None = None,
        angler: type[Angler] = Angler,
    ) -> None:
        self.now = 0.0
        self.metrics = Metrics()
        # Longer than any test: the real clock only wakes the runner.
        self.queue = Queue(Timing(LATER, LATER, LATER), Random(0))  # noqa: S311
        self.angler = angler(do)
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
        """Reconcile these keys once."""
        self.runner.start()
        for key in keys:
            self.runner.add(key)
        await self.quiet()
        await self.runner.stop(0)

    async def quiet(self) -> None:
        """Wait until no key runs or waits."""
        await until(lambda: not self.queue.depth and not self.queue.running_for(0))

    def ended(self, result: str) -> float | None:
        return self.metrics.registry.get_sample_value(
            "controller_runtime_reconcile_total", {"controller": "fish", "result": result}
        )


async def test_a_successful_key_stays_in_the_queue() -> None:
    setup = Setup(lambda _: Done())
    await setup.run(A)
    assert setup.ended("success") == 1
    assert setup.queue.keys == {A}


async def test_after_delays_the_next_reconcile() -> None:
    setup = Setup(lambda _: After(7))
    await setup.run(A)
    assert setup.ended("requeue_after") == 1
    assert setup.queue.next_due() == 7


async def test_a_deleted_object_calls_on_missing_instead_of_reconcile() -> None:
    setup = Setup(lambda _: Done(), Pond(B))
    await setup.run(A, B)
    assert setup.queue.keys == {B}
    assert setup.angler.caught == ["b"]
    assert setup.angler.missing == [A]


@pytest.mark.parametrize(("angler", "caught"), [(Angler, []), (CachedAngler, ["a"])])
async def test_reconciler_decides_whether_its_objects_are_read_from_the_cache(
    angler: type[Angler], caught: list[str]
) -> None:
    setup = Setup(lambda _: Done(), Mirrored(cached=Pond(A)), angler=angler)
    await setup.run(A)
    assert setup.angler.caught == caught


async def test_object_that_is_being_deleted_is_read_from_the_api_server() -> None:
    cached = Pond(A)
    cached.fish[A].metadata.deletion_timestamp = datetime(2026, 1, 1, tzinfo=UTC)
    setup = Setup(lambda _: Done(), Mirrored(cached=cached), angler=CachedAngler)
    await setup.run(A)
    assert (setup.angler.caught, setup.angler.missing) == ([], [A])


async def test_an_object_without_the_label_is_dropped_without_a_reconcile() -> None:
    setup = Setup(lambda _: Done(), labels={"watched": None})
    await setup.run(A)
    assert setup.queue.keys == set()
    assert setup.angler.caught == []


async def test_the_next_run_starts_no_earlier_than_due() -> None:
    setup = Setup(lambda _: After(0.05), clock=asyncio.get_running_loop().time)
    began = asyncio.get_running_loop().time()
    setup.runner.start()
    setup.runner.add(A)
    await until(lambda: len(setup.angler.caught) >= 3)
    await setup.runner.stop(1)
    assert asyncio.get_running_loop().time() - began >= 0.1


@pytest.mark.parametrize(
    ("error", "level", "message"),
    [
        (RuntimeError("no net"), logging.ERROR, "The reconcile failed: RuntimeError: no net"),
        (Unreachable("API server does not answer"), logging.ERROR, "API server does not answer"),
        (
            Conflict(409, "Conflict", "another client wrote"),
            logging.INFO,
            "another client wrote. Trying again",
        ),
    ],
)
async def test_a_failure_is_logged_counted_and_retried(
    caplog: pytest.LogCaptureFixture, error: Exception, level: int, message: str
) -> None:
    def fail(_: Fish) -> Result:
        raise error

    setup = Setup(fail)
    with caplog.at_level(logging.INFO):
        await setup.run(A)
    assert setup.ended("error") == 1
    assert setup.queue.retries == 1
    assert (level, message) in [(record.levelno, record.getMessage()) for record in caplog.records]
    surprising = isinstance(error, RuntimeError)
    assert any(record.exc_info for record in caplog.records) is surprising


async def test_an_unreadable_object_gets_an_event(
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


async def test_an_unreadable_watched_object_is_logged_once_and_skipped(
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


def config_map(name: str, *, uid: str = "1", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "sea", "uid": uid, "labels": {"kept": "yes"}}
    return {"metadata": metadata, "data": {"size": "1"}, **more}


def fish_of(config_map: ConfigMap) -> list[ObjectKey]:
    return [ObjectKey("sea", config_map.name)]


SIZES = Watches(
    ConfigMap,
    to=fish_of,
    labels={"kept": "yes"},
    when_changed=lambda config_map: config_map.data.get("size"),
)
UNLABELLED = {"name": "a", "namespace": "sea", "uid": "1"}
DELETION: dict[str, Any] = {"deleted": True}


@pytest.mark.parametrize(
    ("event", "options", "counts"),
    [
        (config_map("a"), {}, False),
        (config_map("a", data={"size": "1", "colour": "red"}), {}, False),
        (config_map("a", data={"size": "2"}), {}, True),
        (config_map("a", data={}), {}, True),
        (config_map("a", uid="2"), {}, True),
        (config_map("a"), DELETION, True),
    ],
    ids=["same", "other field", "changed", "removed", "another object", "deleted"],
)
async def test_a_watch_can_skip_changes_of_other_fields(
    event: dict[str, Any], options: dict[str, Any], counts: bool
) -> None:
    setup = Setup(lambda _: Done())
    setup.runner.changed(SIZES, config_map("a"))
    assert setup.queue.depth == 1
    await setup.run()
    setup.runner.changed(SIZES, event, **options)
    assert setup.queue.depth == counts


@pytest.mark.parametrize(
    ("between", "options"),
    [(config_map("a"), DELETION), ({"metadata": UNLABELLED, "data": {"size": "1"}}, {})],
    ids=["deleted", "not selected"],
)
async def test_an_object_that_returns_counts_again(
    between: dict[str, Any], options: dict[str, Any]
) -> None:
    setup = Setup(lambda _: Done())
    setup.runner.changed(SIZES, config_map("a"))
    setup.runner.changed(SIZES, between, **options)
    await setup.run()
    setup.runner.changed(SIZES, config_map("a"))
    assert setup.queue.depth == 1


async def test_an_unreadable_object_counts_again_when_it_is_readable() -> None:
    setup = Setup(lambda _: Done(), Murky())
    for data in ({"size": "1"}, ["not", "a", "mapping"]):
        setup.runner.changed(SIZES, config_map("a", data=data))
    await setup.run()
    setup.runner.changed(SIZES, config_map("a"))
    assert setup.queue.depth == 1


def owned(*owners: str, uid: str = "1", **metadata: Any) -> dict[str, Any]:
    references = [
        {"apiVersion": "runner.test/v1", "kind": "Fish", "name": owner, "uid": owner}
        for owner in owners
    ]
    named = {"name": "m", "namespace": "sea", "uid": uid, "ownerReferences": references}
    return {"metadata": {**named, **metadata}}


def by_label(config_map: ConfigMap) -> list[ObjectKey]:
    return [ObjectKey("sea", config_map.metadata.labels["fish"])]


async def slowly(_: Context, config_map: ConfigMap) -> list[ObjectKey]:
    await asyncio.sleep(0)
    return by_label(config_map)


OWNS, LABELLED = Owns(ConfigMap), Owns(ConfigMap, labels={"kept": None})
QUIET = Owns(ConfigMap, when_changed=lambda config_map: config_map.metadata.labels.get("x"))
TO, SLOW = (Watches(ConfigMap, to, metadata_only=True) for to in (by_label, slowly))


@pytest.mark.parametrize(
    ("watch", "before", "after"),
    [
        (OWNS, owned("a"), owned("b")),
        (OWNS, owned("a", "b"), owned()),
        (QUIET, owned("a"), owned("b")),
        (LABELLED, owned("a", "b", labels={"kept": "1"}), owned("a", "b")),
        (TO, owned(labels={"fish": "a"}), owned(labels={"fish": "b"})),
        (SLOW, owned(labels={"fish": "a"}), owned(labels={"fish": "b"})),
    ],
    ids=["another owner", "no owner", "unchanged value", "no label", "mapper", "slow mapper"],
)
async def test_change_concerns_the_former_keys_too(
    watch: Watch, before: dict[str, Any], after: dict[str, Any]
) -> None:
    setup = Setup(lambda _: Done())
    setup.runner.changed(watch, before)
    await until(lambda: setup.queue.depth > 0)
    await setup.run()
    assert setup.queue.depth == 0
    setup.runner.changed(watch, after)
    await until(lambda: setup.queue.depth == 2)


async def test_last_mapping_of_a_deleted_object_is_complete() -> None:
    setup = Setup(lambda _: Done())
    for name in ("a", "b"):
        setup.runner.changed(SLOW, owned(labels={"fish": name}), deleted=name == "b")
    await until(lambda: setup.queue.depth == 2)
    assert len(setup.runner.changes) == 0


async def test_objects_that_a_list_lacks_are_deleted_and_forgotten() -> None:
    setup = Setup(lambda _: Done(), Pond(A))
    main = setup.angler.main_watch
    setup.runner.changed(main, owned(uid="fish", name="a"))
    setup.runner.changed(main, owned(uid="gone", name="b"))
    for number in range(1000):
        setup.runner.changed(OWNS, owned("a", uid=str(number)))
    await setup.run()
    setup.angler.caught.clear()
    setup.runner.listed(OWNS, {"1"})
    setup.runner.listed(main, {"fish"})
    assert len(setup.runner.changes) == 2
    await setup.run()
    assert setup.angler.caught == ["a"]


async def test_cancelled_mapper_leaves_nothing_behind() -> None:
    setup = Setup(lambda _: Done())
    setup.runner.changed(SLOW, owned(labels={"fish": "a"}))
    await setup.runner.stop(0)
    assert setup.queue.depth == 0


async def test_a_missing_result_is_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup(lambda _: None)
    await setup.run(A)
    assert setup.ended("error") == 1
    assert "Angler.reconcile returned None instead of Done() or After(seconds)" in (caplog.text)


async def test_concurrency_limits_parallel_reconciles() -> None:
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


async def test_no_reconcile_starts_before_start_or_after_stop() -> None:
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


async def test_an_uncancellable_reconcile_does_not_delay_stop(
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


async def test_retry_soon_runs_failed_keys_again() -> None:
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


async def test_add_all_reconciles_every_key() -> None:
    setup = Setup(lambda _: Done())
    setup.runner.start()
    setup.runner.add(A)
    setup.runner.add(B)
    await setup.quiet()
    setup.runner.add_all()
    await setup.quiet()
    await setup.runner.stop(0)
    assert sorted(setup.angler.caught) == ["a", "a", "b", "b"]


async def test_metrics_describe_queue_and_workers() -> None:
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


async def test_key_that_held_the_loop_pauses_although_it_changed_meanwhile() -> None:
    def hold(fish: Fish) -> Result:
        task = asyncio.current_task()
        if fish.name == A.name and task is not None:
            setup.runner.add(A)
            # As the guard: its timer is due when the step ends.
            asyncio.get_running_loop().call_later(0, PAYERS[task], 30.0)
        return Done()

    setup = Setup(hold, notes=Notes())
    await setup.run(A, B)
    assert setup.angler.caught == ["a", "b"]
