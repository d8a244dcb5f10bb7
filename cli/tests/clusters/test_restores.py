"""The command requests a restore, and withdraws a request that fails."""

import re

import pytest
from capelin.errors import UserError
from capelin.testing.fake_client import FakeClient
from capelin_cli.clusters.operations import ControlPlaneOperation
from capelin_cli.clusters.restores import RestorePlan, request_restore
from capelin_cli.environments.connection import ClusterName
from capelin_cli.terminal.checklist import Checklist
from capelin_control_plane.api import CapelinControlPlane, Spec
from capelin_control_plane.desired.control_plane import RESTORE_ANNOTATION
from rich.console import Console

BACKUP = "20260329T120000Z"
REQUEST = f"{BACKUP}@2026-03-29T12:30:00Z"
FINAL = "20260329T110000Z"
"""The final backup of a move, whose restore has failed."""
PLAN = RestorePlan(ClusterName("demo"), "demo-x", BACKUP, "")


def client(**annotations: str) -> FakeClient:
    made = FakeClient(CapelinControlPlane)
    mine = CapelinControlPlane.of("demo-x", "default", spec=Spec(version="v1.34.4"))
    mine.metadata.annotations = annotations
    made.add(mine)
    return made


def operation(made: FakeClient) -> ControlPlaneOperation:
    return ControlPlaneOperation(made, PLAN.which, 5, "demo-x", Checklist(Console(quiet=True)))


async def read(made: FakeClient) -> CapelinControlPlane:
    return await made.get(CapelinControlPlane, "demo-x", "default")


@pytest.mark.parametrize(
    ("previous", "hint"), [(None, "Nothing was changed"), (FINAL, f"continues with .*{FINAL}")]
)
async def test_a_failed_request_leaves_the_earlier_one(previous: str | None, hint: str) -> None:
    made = client(**({} if previous is None else {RESTORE_ANNOTATION: previous}))
    withdraw = await request_restore(operation(made), PLAN, REQUEST)
    assert (await read(made)).metadata.annotations[RESTORE_ANNOTATION] == REQUEST
    with pytest.raises(UserError) as failed:
        await withdraw(await read(made), "RestoreFailed: the bucket does not answer")
    failed.match("cannot be restored")
    assert failed.value.hint is not None
    assert re.search(hint, failed.value.hint)
    assert (await read(made)).metadata.annotations.get(RESTORE_ANNOTATION) == previous


async def test_a_newer_request_is_not_withdrawn() -> None:
    made = client(**{RESTORE_ANNOTATION: FINAL})
    withdraw = await request_restore(operation(made), PLAN, REQUEST)
    newer = f"{BACKUP}@2026-03-29T13:30:00Z"
    patch = {"metadata": {"annotations": {RESTORE_ANNOTATION: newer}}}
    await made.patch(CapelinControlPlane, "demo-x", "default", patch)
    with pytest.raises(UserError):
        await withdraw(await read(made), "RestoreFailed: the bucket does not answer")
    assert (await read(made)).metadata.annotations[RESTORE_ANNOTATION] == newer
