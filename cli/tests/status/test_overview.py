"""The table of environments, once and with --watch."""

import asyncio
import io
import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin.client import Config, Server
from capelin.testing.fake_client import FakeClient, cluster
from capelin.testing.waiting import until
from capelin_cli.status.cluster_tree import Node
from capelin_cli.status.overview import EnvironmentOverview, observe_environments, rendered, show
from capelin_embedded.management import Environment, ProcessStatus, Settings, Status
from capelin_embedded.processes import Command, Phase, ProcessSpec, Supervisor
from rich.console import Console

from cli.tests.command import capelin


async def test_watch_shows_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system=None, width=100)
    watching = asyncio.create_task(show(None, watch=True, console=console))
    try:
        await until(lambda: "No environment exists." in screen.getvalue())
        environment = Environment(tmp_path / "capelin" / "lab")
        environment.make_folders()
        environment.write_settings(Settings(kubernetes_version="v1.34.4"))
        await until(lambda: "Environment lab  stopped" in screen.getvalue())
        assert not watching.done()
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


def test_watch_rejects_structured_output(tmp_path: Path) -> None:
    ended = capelin("status", "--watch", "--output", "json", home=tmp_path)
    assert ended.returncode == 2
    assert "--watch does not work with" in ended.stderr


def test_the_exit_code_reports_whether_everything_is_ready(tmp_path: Path) -> None:
    assert capelin("status", "--exit-code", home=tmp_path).returncode == 0
    environment = Environment(tmp_path / "capelin" / "lab")
    environment.make_folders()
    environment.write_settings(Settings(kubernetes_version="v1.34.4"))
    assert capelin("status", home=tmp_path).returncode == 0
    assert capelin("status", "--exit-code", home=tmp_path).returncode == 1


def test_environment_of_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lab", "prod"):
        environment = Environment(tmp_path / "capelin" / name)
        environment.make_folders()
        environment.write_settings(Settings(kubernetes_version="v1.34.4"))
    monkeypatch.setenv("CAPELIN_ENVIRONMENT", "lab")
    shown = capelin("status", home=tmp_path).stdout
    assert "Environment lab" in shown
    assert "prod" not in shown


async def test_no_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def client_of(_: Environment) -> FakeClient:
        client = FakeClient()
        client.add(cluster("demo"))
        return client

    monkeypatch.setattr("capelin_cli.status.overview.client_of", client_of)
    environment = Environment(tmp_path / "capelin" / "lab")
    environment.make_folders()
    environment.write_settings(Settings(kubernetes_version="v1.34.4"))
    status = {
        "supervisorPid": 1,
        "since": "2030-01-01T00:00:00Z",
        "stages": [],
        "processes": [
            {"name": "sleeper", "phase": "Running", "log": "l", "restarts": 3},
            {"name": "goner", "phase": "Running", "log": "l"},
        ],
    }
    environment.status_file.write_text(json.dumps(status))
    async with Supervisor(environment.processes) as supervisor:
        command = Command(arguments=("sleep", "60"), environment={})
        supervisor.declare(ProcessSpec(name="sleeper", command=command))
        await supervisor.ready()
        ended = await asyncio.to_thread(capelin, "status", home=tmp_path)
        data = await asyncio.to_thread(capelin, "status", "-o", "json", home=tmp_path)
        await supervisor.stop()
    assert "Environment lab  unsupervised" in ended.stdout
    assert "1 processes run, and nothing restarts them" in ended.stdout
    assert "Cluster/demo" in ended.stdout
    (shown,) = json.loads(data.stdout)
    assert [found["object"] for found in shown["clusters"]] == ["Cluster/demo"]
    phases = {process["name"]: process["phase"] for process in shown["processes"]}
    assert phases == {"sleeper": "Running", "goner": "Failed"}


async def test_no_api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    environment = Environment(tmp_path / "capelin" / "lab")
    environment.make_folders()
    environment.write_settings(Settings(kubernetes_version="v1.34.4"))
    environment.kubeconfig.write_bytes(Config(Server("https://127.64.0.9:1")).flattened())
    status = {
        "supervisorPid": 1,
        "since": "2030-01-01T00:00:00Z",
        "stages": [],
        "processes": [{"name": "sleeper", "phase": "Running", "log": "l"}],
    }
    environment.status_file.write_text(json.dumps(status))
    async with Supervisor(environment.processes) as supervisor:
        command = Command(arguments=("sleep", "60"), environment={})
        supervisor.declare(ProcessSpec(name="sleeper", command=command))
        await supervisor.ready()
        (overview,) = await observe_environments("lab")
        await supervisor.stop()
    assert overview.state == "unsupervised"
    assert "does not answer" in overview.trouble


def test_watch_counts_running_processes(tmp_path: Path) -> None:
    def process(name: str, phase: Phase, restarts: int = 0) -> ProcessStatus:
        end = "exited with code 1" if restarts else ""
        return ProcessStatus(name=name, phase=phase, log="", restarts=restarts, last_end=end)

    status = Status(
        supervisor_pid=1,
        since=datetime(2030, 1, 1, tzinfo=UTC),
        stages=[],
        processes=[
            process("etcd", Phase.RUNNING),
            process("kube-apiserver", Phase.RUNNING),
            process("cluster-api", Phase.RUNNING, restarts=2),
            process("kwok", Phase.STARTING),
        ],
    )
    overview = EnvironmentOverview(Environment(tmp_path / "lab"), status, "process", "v1.36.2", ())

    def screen(*, folded: bool) -> str:
        console = Console(file=io.StringIO(), width=100)
        with console.capture() as shown:
            console.print(rendered([overview], folded=folded))
        return shown.get()

    assert "2 processes run" in screen(folded=True)
    assert "etcd" not in screen(folded=True)
    assert "restarted 2 times: exited with code 1" in screen(folded=True)
    assert "kwok" in screen(folded=True)
    assert "etcd" in screen(folded=False)
    assert "2 processes run" not in screen(folded=False)


def test_messages_of_tenants_are_neither_markup_nor_control_characters(tmp_path: Path) -> None:
    node = Node("Cluster/demo", "waiting", message="[/x]\x1b[2J", version="\x1b]0;title\x07")
    status = Status(supervisor_pid=1, since=datetime.now(UTC), stages=[])
    overview = EnvironmentOverview(Environment(tmp_path), status, "process", "v1.34.4", [node])
    screen = io.StringIO()
    Console(file=screen, width=200).print(rendered([overview]))
    assert r"[/x]\x1b[2J" in screen.getvalue()
    assert "\x1b" not in screen.getvalue()
