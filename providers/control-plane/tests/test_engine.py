"""Tasks of operations: their limits, their failures, and their end."""

import asyncio
import logging
from datetime import timedelta

import pytest
from capelin.client import Conflict
from capelin.contract import ConditionSpec
from capelin.controller import Context, EventRecord, ObjectKey, Recorder
from capelin.testing.fake_client import Clock, FakeClient
from capelin_control_plane.api import CapelinControlPlane, Spec
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backup.stores import StoreError
from capelin_control_plane.operations.engine import Declaration, Engine, Operation, Run

FAILED = ConditionSpec("Baking", "False", Reason.RESTORE_FAILED, "no flour")


class Baking(Engine[int]):
    operation = Declaration(
        name="a bread",
        excluded_as=Operation.BACKUP,
        condition="Baking",
        reason=Reason.RESTORE_FAILED,
        expected=(OSError,),
        warns=True,
        at_once=2,
        at_once_of_namespace=1,
        retry=timedelta(minutes=1),
    )


class PatientBaking(Baking):
    operation = Declaration(
        name="a bread", condition="Baking", reason=Reason.RESTORE_FAILED, repeats=True
    )


class Scene(Recorder):
    """An engine, the keys that it wakes, its events, and work that a test ends."""

    def __init__(self, kind: type[Baking] = Baking) -> None:
        self.client, self.clock = FakeClient(), Clock()
        super().__init__(self.client, "test", "test", now=self.clock)
        self.ctx = Context(self.client, logging.getLogger(), self)
        self.woken: list[ObjectKey] = []
        self.messages: list[str] = []
        self.engine = kind(self.woken.append)
        self.working, self.cancelled = list[str](), list[str]()
        self.failures: list[Exception] = []
        self.may_end = asyncio.Event()

    def record(self, record: EventRecord) -> None:
        self.messages.append(record.note)

    def start(
        self, name: str, namespace: str = "default", condition: ConditionSpec | None = None
    ) -> Run[int]:
        obj = CapelinControlPlane.of(name, namespace, spec=Spec(version="v1.34.4"))

        async def work() -> int:
            self.working.append(name)
            try:
                if self.failures:
                    raise self.failures.pop()
                await self.may_end.wait()
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
            return 7

        run = Run(0, self.clock(), condition=condition)
        return self.engine.start(self.ctx, obj, run, work)

    async def end(self, run: Run[int]) -> None:
        self.may_end.set()
        assert run.task is not None
        await run.task


async def test_a_task_runs_until_the_end_of_its_work() -> None:
    scene = Scene()
    run = scene.start("one")
    assert scene.engine.last(ObjectKey("default", "one")) is run
    assert scene.engine.last(ObjectKey("default", "two")) is None
    assert run.is_running
    await scene.end(run)
    assert (run.result, run.condition) == (7, None)
    assert scene.woken == [ObjectKey("default", "one")]


async def test_a_new_task_replaces_the_last_one_and_forget_stops_it() -> None:
    scene = Scene()
    scene.start("one")
    await asyncio.sleep(0)
    run = scene.start("one")
    await asyncio.sleep(0)
    other = scene.start("two", "other")
    await asyncio.sleep(0)
    assert scene.cancelled == ["one"]
    for _ in range(2):
        scene.engine.forget(ObjectKey("default", "one"))
    await asyncio.sleep(0)
    assert scene.cancelled == ["one", "one"]
    assert (run.is_running, other.is_running) == (False, True)
    await scene.engine.close()
    assert scene.cancelled == ["one", "one", "two"]


async def test_a_namespace_does_not_use_all_slots() -> None:
    scene = Scene()
    runs = [scene.start("one"), scene.start("two"), scene.start("three", "other")]
    runs.append(scene.start("four", "third"))
    for _ in range(4):
        await asyncio.sleep(0)
    assert scene.working == ["one", "three"]
    for run in runs:
        await scene.end(run)
    assert sorted(scene.working) == ["four", "one", "three", "two"]


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        (OSError(5, "no flour"), Reason.RESTORE_FAILED, "no flour"),
        (RuntimeError(), Reason.RESTORE_FAILED, "RuntimeError"),
        (StoreError("full", Reason.BACKUP_FAILED), Reason.RESTORE_FAILED, "full"),
        (StoreError("closed", Reason.BACKUP_DAMAGED), Reason.BACKUP_DAMAGED, "closed"),
    ],
)
async def test_a_failure_is_a_condition(
    error: Exception, reason: Reason, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene()
    monkeypatch.setattr(Context, "now", staticmethod(scene.clock))
    scene.failures = [error]
    run = scene.start("one")
    await scene.end(run)
    assert run.condition == ConditionSpec("Baking", "False", reason, message)
    assert (run.is_due(scene.clock()), run.result) == (False, 0)
    assert run.is_due(scene.clock() + timedelta(minutes=1))


async def test_only_a_new_failure_is_an_event() -> None:
    scene = Scene()
    for condition in (None, FAILED):
        scene.failures = [OSError(5, "no flour")]
        await scene.end(scene.start("one", condition=condition))
    assert scene.messages == ["no flour"]
    run = scene.start("one", condition=FAILED)
    await scene.end(run)
    assert run.condition is None


async def test_a_task_repeats_work_after_a_conflict() -> None:
    scene = Scene(PatientBaking)
    scene.failures = [RuntimeError("no flour"), Conflict(409, "Conflict", "changed")]
    run = scene.start("one")
    await scene.end(run)
    assert (run.result, scene.working) == (7, ["one", "one", "one"])
    assert run.condition == FAILED, "the work itself reports that it continues"


def test_the_table_of_exclusions_decides_whether_an_operation_waits() -> None:
    declared = Baking.operation
    assert declared.waits_for({Operation.SLEEP}) == "the end of a sleep"
    assert declared.waits_for((), "an oven") == "an oven"
    assert PatientBaking.operation.waits_for({Operation.SLEEP}) == ""
