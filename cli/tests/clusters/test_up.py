"""Output and changes of `capelin up`."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from capelin.api.capi import Cluster, ClusterClass
from capelin.api.core import Namespace
from capelin.errors import MissingError, WaitTimeoutError
from capelin.testing.fake_client import Clock, FakeClient
from capelin_cli.clusters import up
from capelin_cli.clusters.demo import (
    ClusterRequest,
    bring_up_cluster,
    changed_by_others,
    differences,
    find_class,
)
from capelin_cli.clusters.topology import ClusterOptions
from capelin_cli.environments import bring_up
from capelin_cli.environments.bring_up import waiting_for
from capelin_cli.terminal.checklist import Checklist
from capelin_cli.terminal.text import command_name
from capelin_cli.terminal.waiting import Deadline
from capelin_embedded.management import (
    Environment,
    FetchPrograms,
    Status,
    Step,
    UpRequest,
    UpView,
    WaitUntilUp,
)
from capelin_embedded.management.up_plan import Observed
from capelin_embedded.processes import Phase
from rich.console import Console

from cli.tests.command import capelin


def test_next_steps_show_the_command_that_the_user_typed() -> None:
    assert command_name({}) == "capelin"
    assert command_name({"UV_RUN_RECURSION_DEPTH": "1"}) == "uv run capelin"


def test_start_passes_over_a_cluster_that_makes_no_progress() -> None:
    clock = Clock()

    def seconds() -> float:
        return clock.now.timestamp()

    progress = up.Progress(seconds)
    assert progress.still("it starts") == "it starts"
    clock.advance(179)
    assert progress.still("2 of 3 machines run") == "2 of 3 machines run"
    clock.advance(180)
    assert progress.still("2 of 3 machines run") == "2 of 3 machines run"
    clock.advance(1)
    assert progress.still("2 of 3 machines run") is None
    assert progress.reason == "2 of 3 machines run", "it is shown"
    assert progress.still(None) is None
    assert progress.reason is None


def entry(manager: str, *fields: str, subresource: str = "") -> dict[str, Any]:
    fields_v1: dict[str, Any] = {f"f:{field}": {} for field in fields}
    return {"manager": manager, "fieldsV1": fields_v1, "subresource": subresource}


@pytest.mark.parametrize(
    ("entries", "changed"),
    [
        ([entry("capelin-cli", "spec")], False),
        # Cluster API's core owns references in the metadata, and the status.
        ([entry("capelin-cli", "spec"), entry("manager", "metadata")], False),
        ([entry("capelin-cli", "spec"), entry("manager", "spec", subresource="status")], False),
        ([entry("capelin-cli", "spec"), entry("kubectl-edit", "spec")], True),
        ([entry("capelin-cli", "metadata"), entry("kubectl-patch", "spec")], True),
    ],
)
def test_changed_object_is_reported(entries: list[dict[str, Any]], changed: bool) -> None:
    assert changed_by_others({"metadata": {"managedFields": entries}}) is changed


CLUSTER = Cluster.read(
    {
        "metadata": {"name": "demo"},
        "spec": {
            "topology": {
                "version": "v1.34.4",
                "controlPlane": {"replicas": 1},
                "workers": {"machinePools": [{"name": "a", "class": "a", "replicas": 4}]},
            }
        },
    }
)


def test_options_that_differ_from_the_existing_demo_cluster_are_reported() -> None:
    assert differences(CLUSTER, ClusterOptions(workers=1, control_plane_replicas=2)) == [
        "Cluster demo keeps its 4 workers. Change them with capelin scale demo --workers 1.",
        (
            "Cluster demo keeps its 1 control plane replicas. Change them "
            "with capelin scale demo --control-plane-replicas 2."
        ),
    ]


def test_hints_about_other_options_name_the_environment_and_the_namespace() -> None:
    in_team = CLUSTER.model_copy(deep=True)
    in_team.metadata.namespace = "team-a"
    notes = differences(in_team, ClusterOptions(workers=1, version="v1.35.4"), "lab")
    assert [note.partition("with ")[2] for note in notes] == [
        "capelin scale demo --workers 1 -n team-a -e lab.",
        "capelin upgrade cluster demo v1.35.4 -n team-a -e lab.",
    ]


@pytest.mark.parametrize(
    "options", [ClusterOptions(), ClusterOptions(workers=4, control_plane_replicas=1)]
)
def test_no_message_about_unchanged_options(
    options: ClusterOptions,
) -> None:
    assert differences(CLUSTER, options) == []


def process(name: str, phase: str, message: str = "") -> dict[str, Any]:
    return {"name": name, "phase": Phase(phase), "message": message, "log": f"/{name}.log"}


@pytest.mark.parametrize(
    ("processes", "text"),
    [
        ([], ""),
        ([process("etcd", "Running"), process("kcm", "Running", "was killed")], ""),
        ([process("etcd", "Starting"), process("kcm", "Failed", "exit 1")], "kcm: exit 1"),
        ([process("etcd", "Running"), process("kcm", "NotReady")], "kcm: NotReady"),
        ([process("etcd", "Starting"), process("kcm", "Starting")], "etcd: Starting"),
    ],
)
def test_wait_names_the_stopped_process(processes: list[dict[str, Any]], text: str) -> None:
    status = {"supervisorPid": 1, "since": datetime.now(UTC), "stages": [], "processes": processes}
    assert waiting_for(Status.model_validate(status)) == text
    assert waiting_for(None) == ""


def test_time_of_builds_does_not_count_as_waiting() -> None:
    now = [0.0]
    deadline = Deadline(900, clock=lambda: now[0])
    with deadline.paused():
        now[0] = 734.0
    now[0] += 100.0
    assert deadline.left == 800.0


async def test_downloads_have_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    left: list[float] = []

    async def slow_steps(_: Environment, steps: Sequence[Step], view: UpView) -> None:
        for step in steps:
            if isinstance(step, FetchPrograms):
                with view.fetching(step):
                    now[0] += 3600.0
            if isinstance(step, WaitUntilUp):
                left.append(deadline.left)

    async def nothing(*_: object) -> Observed:
        return Observed("lab")

    monkeypatch.setattr(bring_up, "carry_out", slow_steps)
    monkeypatch.setattr(bring_up, "observe", nothing)
    deadline = Deadline(900, clock=lambda: now[0])
    checklist = Checklist(Console(quiet=True))
    await bring_up.bring_up_environment(Environment(tmp_path), UpRequest(), checklist, deadline)
    assert left == [900.0]


async def test_a_missing_class_is_reported_in_the_form_of_the_request() -> None:
    client = FakeClient(ClusterClass, Cluster, Namespace)
    await client.create(Namespace.of("default"))
    with pytest.raises(MissingError, match="Name one of them with --class,"):
        await find_class(client, "other", "default")
    request = ClusterRequest("blue", "default", ClusterOptions(cluster_class="other"))
    with pytest.raises(MissingError, match="Name one of them as class: in the file,"):
        await bring_up_cluster(Checklist(Console()), client, "v1.34.4", request, Deadline(1))


async def _slow_up(
    environment: Environment, options: up.UpOptions, clusters: object, checklist: Checklist
) -> None:
    del environment, options, clusters
    line = checklist.begin("controllers")
    checklist.update(line, "core: Starting")
    checklist.end(line, seconds=1.5)


async def _failed_up(
    environment: Environment, options: up.UpOptions, clusters: object, checklist: Checklist
) -> None:
    await _slow_up(environment, options, clusters, checklist)
    raise WaitTimeoutError("Environment lab is not up.", reason="Too slow.", hint="")


def test_timings_of_each_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "_bring_up", _slow_up)
    command = ("up", "--management-only", "-e", "lab")
    assert "WAITED FOR" not in capelin(*command, home=tmp_path).stdout
    table = capelin(*command, "--timings", home=tmp_path).stdout
    assert "STAGE" in table
    assert "WAITED FOR" in table
    assert "Environment lab is up after" in table


@pytest.mark.parametrize(("work", "code"), [(_slow_up, 0), (_failed_up, 6)])
def test_timings_are_structured_output_even_if_up_fails(
    work: object, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "_bring_up", work)
    ended = capelin("up", "--management-only", "-e", "lab", "-o", "json", home=tmp_path)
    assert ended.returncode == code
    assert "controllers  1.5 s" in ended.stderr
    data = json.loads(ended.stdout)
    assert data["environment"] == "lab"
    assert data["kubeconfig"].startswith(str(tmp_path))
    (stage,) = data["stages"]
    assert (stage["stage"], stage["state"], stage["seconds"]) == ("controllers", "done", 1.5)
    assert [wait["reason"] for wait in stage["waitedFor"]] == ["core: Starting"]
