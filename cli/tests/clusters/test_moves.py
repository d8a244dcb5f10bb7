"""The command requests a move."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest
from capelin.api.capi import Cluster
from capelin.contract import ASLEEP, PAUSED, ConditionSpec, update_conditions
from capelin.errors import InvalidInputError, NotReadyError, UserError, WaitTimeoutError
from capelin.testing.fake_client import FakeClient
from capelin.testing.waiting import until
from capelin_cli.clusters import operations
from capelin_cli.clusters.operations import ControlPlaneOperation, find_control_plane, request_move
from capelin_cli.environments.connection import ClusterName
from capelin_cli.terminal.checklist import Checklist
from capelin_control_plane.api import BackendName, CapelinControlPlane, Spec, Status
from capelin_control_plane.desired.control_plane import MOVE_ANNOTATION
from capelin_control_plane.operations.move_phases import MOVABLE, not_requested
from rich.console import Console

from ..command import capelin  # noqa: TID252 - a folder without a name

NOW = datetime(2026, 3, 29, 12, 0, tzinfo=UTC)


class Provider(FakeClient):
    """A management cluster whose provider reports a condition for requests, if it runs."""

    accepts: ConditionSpec | None = None

    async def patch(self, *args: Any, **options: Any) -> Any:
        written = await super().patch(*args, **options)
        if self.accepts is not None:
            request = written.metadata.annotations.get(MOVE_ANNOTATION)
            condition = not_requested() if request is None else self.accepts
            accepted = request if condition.status == "True" else None
            path = CapelinControlPlane.resource.path("default", "demo-x")
            body = {"status": {**status_of(condition), "acceptedMove": accepted}}
            await self.request(
                "PATCH", f"{path}/status", body=body, content_type="application/merge-patch+json"
            )
        return written


def status_of(*conditions: ConditionSpec) -> dict[str, Any]:
    return Status(conditions=update_conditions([], conditions, now=NOW, generation=1)).dump()


def client(
    status: Literal["True", "False"],
    reason: str,
    backend: BackendName = "Pods",
    *others: str,
    runs: bool = True,
) -> Provider:
    made = Provider(CapelinControlPlane)
    resource = CapelinControlPlane.resource
    reference = {"apiGroup": resource.group, "kind": resource.kind, "name": "demo-x"}
    metadata = {"name": "demo", "namespace": "default"}
    made.add(Cluster.read({"metadata": metadata, "spec": {"controlPlaneRef": reference}}))
    mine = CapelinControlPlane.of(
        "demo-x", "default", spec=Spec(version="v1.34.4", backend=backend)
    )
    condition = ConditionSpec(MOVABLE, status, reason, "its endpoint stays")
    conditions = [condition, *(ConditionSpec(other, "True", other) for other in others)]
    mine.status = Status.read(status_of(*conditions))
    made.add(mine)
    made.accepts = condition if runs else None
    return made


async def request(made: FakeClient, *, check_only: bool = False, within: float = 5) -> str | None:
    """Request a move. Returns the annotation."""
    try:
        which, checklist = ClusterName("demo"), Checklist(Console(quiet=True))
        control_plane = await find_control_plane(made, which)
        move = ControlPlaneOperation(made, which, within, control_plane.name, checklist)
        await request_move(move, control_plane, check_only=check_only)
    finally:
        mine = await made.get(CapelinControlPlane, "demo-x", "default")
    return mine.metadata.annotations.get(MOVE_ANNOTATION)


async def test_an_accepted_request_stays() -> None:
    value = await request(client("True", "MoveRequested"))
    assert value is not None
    assert datetime.fromisoformat(value).tzinfo is not None


async def test_an_earlier_request_is_not_mistaken_for_the_new_one() -> None:
    made = client("True", "MoveRequested", runs=False)
    with pytest.raises(WaitTimeoutError, match="the provider's check"):
        await request(made, within=0.1)
    mine = await made.get(CapelinControlPlane, "demo-x", "default")
    assert MOVE_ANNOTATION not in mine.metadata.annotations


@pytest.mark.parametrize(
    ("condition", "hint"), [(ASLEEP, "capelin wake cluster demo"), (PAUSED, "clusterctl move")]
)
async def test_a_cluster_that_sleeps_or_is_paused_cannot_be_requested(
    condition: str, hint: str
) -> None:
    made = client("True", "MoveRequested", "Pods", condition)
    with pytest.raises(NotReadyError) as refused:
        await request(made)
    assert hint in (refused.value.hint or "")
    assert made.writes == []


async def test_a_check_leaves_no_request() -> None:
    assert await request(client("True", "MoveRequested"), check_only=True) is None


async def test_a_refused_request_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "FAILURE_SECONDS", 0.01)
    made = client("False", "MoveRefused")
    with pytest.raises(UserError, match="cannot move") as refused:
        await request(made)
    assert refused.value.reason == "its endpoint stays."
    mine = await made.get(CapelinControlPlane, "demo-x", "default")
    assert MOVE_ANNOTATION not in mine.metadata.annotations


async def test_the_command_waits_for_the_provider() -> None:
    made = client("False", "MoveNotRequested")
    with pytest.raises(WaitTimeoutError, match="the provider's check"):
        await request(made, within=0.1)
    mine = await made.get(CapelinControlPlane, "demo-x", "default")
    assert MOVE_ANNOTATION not in mine.metadata.annotations


async def test_an_interrupted_request_is_withdrawn() -> None:
    made = client("False", "MoveNotRequested")
    requesting = asyncio.create_task(request(made))
    await until(lambda: made.writes)
    requesting.cancel()
    await asyncio.gather(requesting, return_exceptions=True)
    mine = await made.get(CapelinControlPlane, "demo-x", "default")
    assert MOVE_ANNOTATION not in mine.metadata.annotations


async def test_control_planes_on_processes_need_no_request() -> None:
    with pytest.raises(InvalidInputError, match="does not run on pods"):
        await request(client("True", "MoveRequested", "Processes"))


def test_a_missing_environment_is_named(tmp_path: Path) -> None:
    ended = capelin("move", "cluster", "demo", home=tmp_path)
    assert ended.returncode == 4
    assert "Environment default does not exist" in ended.stderr
