import os
import stat
from pathlib import Path

import pytest
from capelin_embedded.processes import state_dir
from capelin_embedded.processes.proc import Identity

RECORD = state_dir.Record("a", Identity(1, 2, "boot"), "hash", 7, ("b",), 3.0, ("/group",))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_record_survives_a_round_trip(folder: Path) -> None:
    state_dir.write_record(folder, RECORD)
    assert state_dir.read_record(folder, "a") == RECORD
    assert list(state_dir.recorded_names(folder)) == ["a"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"identity": {"pid": 1}}'])
def test_an_unreadable_record_reads_as_none(folder: Path, content: bytes) -> None:
    (folder / "a.process").write_bytes(content)
    assert state_dir.read_record(folder, "a") is None


def test_remove_record_is_idempotent(folder: Path) -> None:
    state_dir.write_record(folder, RECORD)
    state_dir.remove_record(folder, "a")
    state_dir.remove_record(folder, "a")
    assert list(state_dir.recorded_names(folder)) == []


def test_folders_and_files_are_private_with_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = state_dir.private_folder(tmp_path / "deep" / "state")
        state_dir.write_private(folder / "secret", b"s")
    finally:
        os.umask(before)
    assert mode(folder) == 0o700
    assert mode(folder / "secret") == 0o600


def test_private_folder_restricts_an_existing_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    state_dir.private_folder(tmp_path)
    assert mode(tmp_path) == 0o700


def test_folder_of_another_user_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        state_dir.private_folder(tmp_path)


def test_write_private_restricts_an_existing_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"old")
    file.chmod(0o644)
    state_dir.write_private(file, b"new")
    assert (mode(file), file.read_bytes()) == (0o600, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
