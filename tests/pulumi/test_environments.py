"""The program `dev` on a real engine: up, repeat, drift, interrupt, destroy, import."""

import re
import sys
from pathlib import Path

import pytest
from capelin.client import Client, Config
from capelin.testing.waiting import until
from capelin_embedded.binaries import DEFAULT_KUBERNETES, KNOWN_KUBERNETES
from capelin_embedded.management import (
    Environment,
    all_environments,
    current_status,
    supervisor_process,
)
from capelin_embedded.processes import kill_all
from capelin_infra.plugin.clusters import FORGET

from tests.e2e import kind_cluster

from .bed import ROOT, Bed, Record, copied_project, interrupted

pytestmark = pytest.mark.timeout(1800)

DEV = ROOT / "infra" / "dev"
OLDER = KNOWN_KUBERNETES[-2]


async def test_life_of_an_environment(bed: Bed, tmp_path: Path, record_property: Record) -> None:
    project = copied_project(DEV, tmp_path / "project")
    await bed.run(project, "stack", "init", "dev")
    await bed.run(project, "config", "set", "workers", "2")
    await bed.run(project, "config", "set", "managementVersion", OLDER)

    # Interrupt it as soon as the next run has something to continue.
    process = await bed.start(project, "up", "--yes", "--skip-preview")

    def begun() -> bool:
        return any(current_status(environment) for environment in all_environments(bed.variables))

    await until(begun, within=300)
    assert "interrupted" in await interrupted(process)

    up = await bed.run(project, "up", "--yes", "--skip-preview")
    record_property("seconds of the up that continues", round(up.seconds, 1))
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

    # A later version upgrades the management cluster in place.
    await bed.run(project, "config", "set", "managementVersion", DEFAULT_KUBERNETES)
    planned = (await bed.json(project, "preview", "--json"))["changeSummary"]
    upgraded = await bed.run(project, "up", "--yes", "--skip-preview")
    record_property("seconds of an upgrade of the management cluster", round(upgraded.seconds, 1))
    done = (await bed.json(project, "stack", "history", "--json"))[0]["resourceChanges"]
    assert planned == done
    assert (done["update"], done.keys()) == (1, {"update", "same"})
    async with Client(Config.from_kubeconfig(outputs["kubeconfig"].encode())) as client:
        assert (await client.request("GET", "/version"))["gitVersion"] == DEFAULT_KUBERNETES

    # The supervisor stops without Pulumi: refresh detects that, and up starts it again.
    (environment,) = all_environments(bed.variables)
    supervisor = supervisor_process(environment)
    assert supervisor is not None
    await supervisor.stop(0)
    drift = await bed.run(project, "refresh", "--preview-only", "--expect-no-changes", fails=True)
    assert "running" in drift.output
    await bed.run(project, "up", "--yes", "--skip-preview", "--refresh")
    assert supervisor_process(environment) is not None

    await nothing_is_forgotten(bed, project, environment)

    down = await bed.run(project, "destroy", "--yes", "--skip-preview")
    record_property("seconds of destroy", round(down.seconds, 1))
    await nothing_is_left(bed, project)

    fresh = await bed.run(project, "up", "--yes", "--skip-preview")
    record_property("seconds of an up from nothing", round(fresh.seconds, 1))
    await bed.run(project, "destroy", "--yes", "--skip-preview")
    await nothing_is_left(bed, project)


async def nothing_is_forgotten(bed: Bed, project: Path, environment: Environment) -> None:
    """An outage is an error, unless the user gives the management cluster up."""
    for folder in (environment.supervisor, environment.processes):
        await kill_all(folder)
    names = [resource["urn"] for resource in await bed.resources(project)]
    for command in (("refresh",), ("destroy", "--skip-preview")):
        outage = await bed.run(project, *command, "--yes", fails=True)
        assert FORGET in outage.output
        assert [resource["urn"] for resource in await bed.resources(project)] == names
    bed.variables[FORGET] = "true"
    await bed.run(project, "up", "--yes", "--skip-preview", "--refresh")
    del bed.variables[FORGET]
    assert supervisor_process(environment) is not None


async def nothing_is_left(bed: Bed, project: Path) -> None:
    assert all_environments(bed.variables) == []
    assert await bed.resources(project) == []


async def test_up_restores_a_kind_cluster_that_was_deleted_by_hand(
    bed: Bed, tmp_path: Path, kind_name: str, record_property: Record
) -> None:
    project = copied_project(DEV, tmp_path / "project")
    await bed.run(project, "stack", "init", "dev")
    settings = {
        "target": "kind",
        "name": kind_name,
        "nodeImage": kind_cluster.IMAGE,
        "kubernetesVersion": DEFAULT_KUBERNETES,
        "workers": "2",
    }
    for name, value in settings.items():
        await bed.run(project, "config", "set", name, value)
    up = await bed.run(project, "up", "--yes", "--skip-preview")
    record_property("seconds of an up from nothing", round(up.seconds, 1))
    assert (await bed.outputs(project))["endpoint"]
    again = await bed.run(project, "up", "--yes", "--skip-preview", "--expect-no-changes")
    record_property("seconds of an up that changes nothing", round(again.seconds, 1))

    kind_cluster.delete(kind_name)
    refresh = ("refresh", "--preview-only", "--expect-no-changes")
    drift = await bed.run(project, *refresh, fails=True)
    record_property("seconds of a refresh", round(drift.seconds, 1))
    assert "management-kind" in drift.output
    bed.variables[FORGET] = "true"
    restored = await bed.run(project, "up", "--yes", "--skip-preview", "--refresh")
    del bed.variables[FORGET]
    record_property("seconds of an up that restores", round(restored.seconds, 1))
    assert (await bed.outputs(project))["endpoint"]
    await bed.run(project, *refresh)

    down = await bed.run(project, "destroy", "--yes", "--skip-preview")
    record_property("seconds of destroy", round(down.seconds, 1))
    await nothing_is_left(bed, project)
    assert kind_name not in kind_cluster.names()

    # Interrupt it as soon as the next run has something to continue.
    process = await bed.start(project, "up", "--yes", "--skip-preview")
    await until(lambda: kind_name in kind_cluster.names(), within=300)
    assert "interrupted" in await interrupted(process)
    continued = await bed.run(project, "up", "--yes", "--skip-preview")
    record_property("seconds of the up that continues", round(continued.seconds, 1))
    assert (await bed.outputs(project))["endpoint"]
    await bed.run(project, "destroy", "--yes", "--skip-preview")
    await nothing_is_left(bed, project)
    assert kind_name not in kind_cluster.names()


ADOPTING = """
from capelin_infra.resources import KindCluster

KindCluster("adopted", name="{name}", image="{image}")
"""


async def test_a_kind_cluster_is_imported(
    bed: Bed, tmp_path: Path, kind_name: str, record_property: Record
) -> None:
    project = tmp_path / "adopting"
    project.mkdir()
    (project / "Pulumi.yaml").write_text("name: adopting\nruntime: python\n")
    program = ADOPTING.format(name=kind_name, image=kind_cluster.IMAGE)
    (project / "__main__.py").write_text(program)
    await bed.run(project, "stack", "init", "dev")
    with kind_cluster.kind_cluster(kind_name, tmp_path):
        arguments = ("--yes", "--generate-code=false", "--protect=false")
        adopted = ("capelin:index:KindCluster", "adopted", kind_name)
        imported = await bed.run(project, "import", *arguments, *adopted)
        record_property("seconds of an import", round(imported.seconds, 1))
        await bed.run(project, "up", "--yes", "--skip-preview", "--expect-no-changes")
        await bed.run(project, "destroy", "--yes", "--skip-preview")
        assert kind_name not in kind_cluster.names()


GUIDE = ROOT / "docs" / "how-to" / "pulumi.md"


async def test_commands_of_the_guide(bed: Bed, tmp_path: Path, record_property: Record) -> None:
    """Runs the part before the chapter about kind in one shell, with the files of the page."""
    text = GUIDE.read_text().partition("\n## ")[0]
    (bed.folder / "bin" / "pulumi-resource-capelin").unlink()
    scripts = Path(sys.executable).parent
    script = [
        # The packages are already installed, in a virtual environment that is not activated.
        f'python() {{ test "$*" = "-m venv venv"; mkdir venv; ln -s {scripts} venv/bin; }}',
        "set -eux",
    ]
    files = iter(("Pulumi.yaml", "__main__.py"))
    for language, content in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL):
        if language == "sh":
            script.append(content.replace("venv/bin/pip install capelin-infra\n", ""))
        else:
            script.append(f"cat > {next(files)} <<'END'\n{content}END\n")
    assert next(files, None) is None
    run = await bed.shell("\n".join(script), tmp_path)
    record_property("seconds of the guide", round(run.seconds, 1))
    folder = tmp_path / "lab"
    for name in ("management.yaml", "workload.yaml"):
        Config.from_kubeconfig((folder / name).read_bytes())
    await nothing_is_left(bed, folder)
