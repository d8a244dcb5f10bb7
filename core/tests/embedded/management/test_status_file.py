"""The report of a supervisor about an environment."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from capelin.embedded.management.status_file import Status, StatusFile, read_status
from capelin.embedded.processes import Phase, ProcessState

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def told(path: Path) -> Status:
    status = read_status(path)
    assert status is not None
    return status


def state(phase: Phase, reason: str = "") -> ProcessState:
    return ProcessState(phase, 7, reason, Path("/logs/etcd.log"))


def test_environment_is_up_when_all_steps_are_done(
    tmp_path: Path,
) -> None:
    path = tmp_path / "status.json"
    status_file = StatusFile(path, pid=1, now=NOW)
    status_file.processes_changed({"etcd": state(Phase.RUNNING)})
    assert not told(path).is_up
    for step in told(path).stages:
        status_file.stage_running(step.name, NOW)
        status_file.stage_done(step.name, NOW + timedelta(seconds=1.5))
    assert told(path).is_up
    assert [step.seconds for step in told(path).stages] == [1.5] * 4
    status_file.processes_changed({"etcd": state(Phase.BACKING_OFF, "was killed by SIGKILL")})
    assert not told(path).is_up
    assert told(path).processes[0].message == "was killed by SIGKILL"


def test_a_restart_of_unknown_cause_names_the_command_for_the_log(tmp_path: Path) -> None:
    path = tmp_path / "lab" / "status.json"
    path.parent.mkdir()
    ended = replace(state(Phase.RUNNING), restarts=1, last_end="ended, cause unknown")
    StatusFile(path, pid=1, now=NOW).processes_changed(
        {"etcd": ended, "kcm": replace(ended, last_end="exited with code 1: no disk")}
    )
    assert [process.last_end for process in told(path).processes] == [
        "ended, cause unknown (see capelin logs etcd -e lab)",
        "exited with code 1: no disk",
    ]


def test_a_step_that_does_not_work_says_why_until_it_does(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    status_file = StatusFile(path, pid=1, now=NOW)
    status_file.stage_running("api-server", NOW)
    status_file.stage_failing("api-server", "no answer")
    assert (told(path).stages[0].state, told(path).stages[0].message) == ("Failing", "no answer")
    status_file.stage_done("api-server", NOW)
    assert (told(path).stages[0].state, told(path).stages[0].message) == ("Done", "")


def test_a_step_says_what_it_waits_for_unless_it_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    status_file = StatusFile(path, pid=1, now=NOW)
    status_file.stage_running("installation", NOW)
    status_file.stage_waiting("installation", "kinds are sent")
    assert told(path).stages[1].message == "kinds are sent"
    status_file.stage_failing("installation", "no answer")
    status_file.stage_waiting("installation", "kinds are sent")
    assert told(path).stages[1].message == "no answer"
    status_file.stage_done("installation", NOW)
    assert told(path).stages[1].message == ""


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    status_file = StatusFile(path, pid=1, now=NOW)
    status_file.processes_changed({"etcd": state(Phase.RUNNING)})
    path.unlink()
    status_file.processes_changed({"etcd": state(Phase.RUNNING)})
    assert not path.exists()


def test_a_status_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    assert read_status(path) is None
    path.write_text('{"supervisorPid": "x"')
    assert read_status(path) is None


def test_an_api_server_that_was_there_before_is_no_step(tmp_path: Path) -> None:
    status_file = StatusFile(tmp_path / "status.json", pid=1, now=NOW, stages=["installation"])
    status_file.stage_running("installation", NOW)
    assert [step.name for step in told(tmp_path / "status.json").stages] == ["installation"]


def test_a_status_that_cannot_be_written_is_written_later(tmp_path: Path) -> None:
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
