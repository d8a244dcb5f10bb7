"""The status file of a supervisor."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from capelin_embedded.management.status_file import Status, StatusFile, read_status
from capelin_embedded.processes import Phase, ProcessState

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def status_of(path: Path) -> Status:
    status = read_status(path)
    assert status is not None
    return status


def state(phase: Phase, reason: str = "") -> ProcessState:
    return ProcessState(phase, 7, reason, Path("/logs/etcd.log"))


def test_an_environment_is_up_when_all_stages_are_done(
    tmp_path: Path,
) -> None:
    path = tmp_path / "status.json"
    status_file = StatusFile(path, pid=1, now=NOW)
    status_file.processes_changed({"etcd": state(Phase.RUNNING)})
    assert not status_of(path).is_up
    for step in status_of(path).stages:
        status_file.stage_running(step.name, NOW)
        status_file.stage_done(step.name, NOW + timedelta(seconds=1.5))
    assert status_of(path).is_up
    assert [step.seconds for step in status_of(path).stages] == [1.5] * 4
    status_file.processes_changed({"etcd": state(Phase.BACKING_OFF, "was killed by SIGKILL")})
    assert not status_of(path).is_up
    assert status_of(path).processes[0].message == "was killed by SIGKILL"


def test_an_unknown_cause_of_a_restart_names_the_command_for_logs(tmp_path: Path) -> None:
    path = tmp_path / "lab" / "status.json"
    path.parent.mkdir()
    ended = replace(state(Phase.RUNNING), restarts=1, last_end="ended, cause unknown")
    StatusFile(path, pid=1, now=NOW).processes_changed(
        {"etcd": ended, "kcm": replace(ended, last_end="exited with code 1: no disk")}
    )
    assert [process.last_end for process in status_of(path).processes] == [
        "ended, cause unknown (see capelin logs etcd -e lab)",
        "exited with code 1: no disk",
    ]


def test_a_failing_stage_has_a_message_until_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    status_file = StatusFile(path, pid=1, now=NOW)
    status_file.stage_running("api-server", NOW)
    status_file.stage_failing("api-server", "no answer")
    assert (status_of(path).stages[0].state, status_of(path).stages[0].message) == (
        "Failing",
        "no answer",
    )
    status_file.stage_done("api-server", NOW)
    assert (status_of(path).stages[0].state, status_of(path).stages[0].message) == ("Done", "")


def test_a_failure_replaces_the_waiting_message_of_a_stage(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    status_file = StatusFile(path, pid=1, now=NOW)
    status_file.stage_running("installation", NOW)
    status_file.stage_waiting("installation", "kinds are sent")
    assert status_of(path).stages[1].message == "kinds are sent"
    status_file.stage_failing("installation", "no answer")
    status_file.stage_waiting("installation", "kinds are sent")
    assert status_of(path).stages[1].message == "no answer"
    status_file.stage_done("installation", NOW)
    assert status_of(path).stages[1].message == ""


def test_an_unchanged_status_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    status_file = StatusFile(path, pid=1, now=NOW)
    status_file.processes_changed({"etcd": state(Phase.RUNNING)})
    path.unlink()
    status_file.processes_changed({"etcd": state(Phase.RUNNING)})
    assert not path.exists()


def test_an_unreadable_status_reads_as_none(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    assert read_status(path) is None
    path.write_text('{"supervisorPid": "x"')
    assert read_status(path) is None


def test_an_existing_api_server_has_no_stage(tmp_path: Path) -> None:
    status_file = StatusFile(tmp_path / "status.json", pid=1, now=NOW, stages=["installation"])
    status_file.stage_running("installation", NOW)
    assert [step.name for step in status_of(tmp_path / "status.json").stages] == ["installation"]


def test_a_failed_write_of_the_status_is_repeated(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.touch()
    status_file = StatusFile(folder / "status.json", pid=1, now=NOW)
    status_file.stage_running("api-server", NOW)
    folder.unlink()
    folder.mkdir()
    status_file.write()
    status = read_status(folder / "status.json")
    assert status is not None
    assert status.stages[0].state == "Running"
