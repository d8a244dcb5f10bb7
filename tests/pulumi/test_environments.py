"""The program `dev` on a real engine: up, again, drift, interrupted, destroyed."""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
from capelin.embedded.binaries import NotObtainableError
from capelin.embedded.management import (
    all_environments,
    current_status,
    remove_environment,
    supervisor_process,
)
from capelin.testing.waiting import until

from .bed import ROOT, Bed, copied_project, interrupted

pytestmark = pytest.mark.timeout(1800)

DEV = ROOT / "infra" / "dev"


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncGenerator[Bed]:
    try:
        bed = await Bed.made(tmp_path)
    except NotObtainableError as error:
        pytest.skip(f"the Pulumi CLI cannot be had: {error}")
    yield bed
    for environment in all_environments(bed.variables):
        await remove_environment(environment)


async def test_a_process_environment_from_nothing_to_nothing(
    bed: Bed, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    project = copied_project(DEV, tmp_path / "project")
    await bed.run(project, "stack", "init", "dev")
    await bed.run(project, "config", "set", "workers", "2")

    # Interrupted as soon as there is something to go on with.
    process = await bed.start(project, "up", "--yes", "--skip-preview")

    def begun() -> bool:
        return any(current_status(each) for each in all_environments(bed.variables))

    await until(begun, within=300)
    assert "interrupted" in await interrupted(process)

    up = await bed.run(project, "up", "--yes", "--skip-preview")
    record_property("seconds of the up that goes on", round(up.seconds, 1))
    outputs = await bed.outputs(project)
    assert outputs["endpoint"]
    assert (
        "BEGIN CERTIFICATE" in outputs["workloadKubeconfig"]
        or "certificate-authority-data" in (outputs["workloadKubeconfig"])
    )
    # Nothing secret is in the state in plain text.
    states = [file.read_text() for file in (bed.folder / "state").rglob("*.json")]
    assert states
    assert not any("client-key-data" in state for state in states)

    again = await bed.run(project, "up", "--yes", "--skip-preview", "--expect-no-changes")
    record_property("seconds of an up that changes nothing", round(again.seconds, 1))

    # The environment is stopped behind Pulumi's back: refresh sees it, up starts it again.
    (environment,) = all_environments(bed.variables)
    supervisor = supervisor_process(environment)
    assert supervisor is not None
    await supervisor.stop(0)
    drift = await bed.run(project, "refresh", "--preview-only", "--expect-no-changes", fails=True)
    assert "running" in drift.output or "update" in drift.output
    await bed.run(project, "up", "--yes", "--skip-preview", "--refresh")
    assert supervisor_process(environment) is not None

    down = await bed.run(project, "destroy", "--yes", "--skip-preview")
    record_property("seconds of destroy", round(down.seconds, 1))
    assert all_environments(bed.variables) == []
    assert await bed.resources(project) == []
