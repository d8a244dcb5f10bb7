import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capelin_embedded.binaries import Binaries, BinariesError, NotObtainableError

if TYPE_CHECKING:
    from .conftest import FakeGo, RecordedProgress

    Making = Callable[..., Binaries]

NEWEST = "v1.34.4"


def program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


async def test_a_given_folder_takes_precedence(
    tmp_path: Path, binaries: "Making", go: "FakeGo"
) -> None:
    file = program(tmp_path / "mine", "etcd", "")
    made = binaries(folders=(tmp_path / "mine",), go=go)
    assert await made.path("etcd") == file
    assert not go.builds()
    assert made.cache.entries() == []


@pytest.mark.parametrize("variable", ["CAPELIN_BINARIES", "KUBEBUILDER_ASSETS"])
async def test_a_variable_names_a_folder(variable: str, tmp_path: Path, binaries: "Making") -> None:
    file = program(tmp_path / "mine", "kube-apiserver", "")
    made = binaries(**{variable: str(tmp_path / "mine")})
    assert await made.path("kube-apiserver") == file


async def test_folders_are_searched_in_order(tmp_path: Path, binaries: "Making") -> None:
    files = {
        (folder, name): program(tmp_path / folder, name, "")
        for folder, names in {"a": "etcd", "b": "etcd etcdctl", "c": "etcd etcdctl kwok"}.items()
        for name in names.split()
    }
    made = binaries(
        folders=(tmp_path / "a",),
        CAPELIN_BINARIES=str(tmp_path / "b"),
        KUBEBUILDER_ASSETS=str(tmp_path / "c"),
    )
    assert await made.path("etcd") == files["a", "etcd"]
    assert await made.path("etcdctl") == files["b", "etcdctl"]
    assert await made.path("kwok") == files["c", "kwok"]


async def test_several_folders_serve_several_versions(tmp_path: Path, binaries: "Making") -> None:
    old = program(tmp_path / "old", "kube-apiserver", "echo Kubernetes v1.33.13")
    new = program(tmp_path / "new", "kube-apiserver", "echo Kubernetes v1.34.4")
    both = os.pathsep.join([str(tmp_path / "old"), str(tmp_path / "new")])
    made = binaries(CAPELIN_BINARIES=both)
    fetched = await made.fetch(["kube-apiserver@v1.33.13", "kube-apiserver@v1.34.4"])
    assert [binary.path for binary in fetched.values()] == [old, new]
    assert [binary.version for binary in fetched.values()] == ["v1.33.13", "v1.34.4"]


async def test_a_name_without_a_version_accepts_any_program(
    tmp_path: Path, binaries: "Making"
) -> None:
    file = program(tmp_path / "mine", "kube-apiserver", f"touch {tmp_path}/was-run; echo v1.30.0")
    fetched = await binaries(folders=(tmp_path / "mine",)).fetch(["kube-apiserver"])
    assert fetched["kube-apiserver"].path == file
    assert fetched["kube-apiserver"].version is None
    assert not (tmp_path / "was-run").exists()


async def test_a_program_without_a_version_is_accepted(tmp_path: Path, binaries: "Making") -> None:
    program(tmp_path / "mine", "capd-manager", "echo v0.0.1")
    program(tmp_path / "mine", "etcd", "echo built by hand")
    fetched = await binaries(folders=(tmp_path / "mine",)).fetch(
        ["capd-manager@v1.14.2", "etcd@v3.6.8"]
    )
    assert [binary.version for binary in fetched.values()] == [None, None]


@pytest.mark.parametrize(
    ("name", "output"),
    [
        (f"kube-apiserver@{NEWEST}", f"Kubernetes {NEWEST}"),
        (f"kubectl@{NEWEST}", f"Client Version: {NEWEST}\nKustomize Version: v5.7.1"),
        (f"kubeadm@{NEWEST}", f"{NEWEST}+vendor1"),
        ("etcd@v3.6.8", "etcd Version: 3.6.8\nGit SHA: Not provided\nGo Version: go1.26.8"),
        ("etcdctl@v3.6.8", "etcdctl version: 3.6.8\nAPI version: 3.6"),
        ("kwok@v0.7.0", "kwok version v0.7.0 go1.26.8 (linux/amd64)"),
    ],
)
async def test_the_version_is_read_from_the_output(
    name: str, output: str, tmp_path: Path, binaries: "Making"
) -> None:
    file = program(tmp_path / "mine", name.partition("@")[0], f"echo '{output}'")
    fetched = await binaries(folders=(tmp_path / "mine",)).fetch([name])
    assert fetched[name].path == file
    assert fetched[name].version == name.partition("@")[2]


async def test_a_name_with_a_version_does_not_use_another_version(
    tmp_path: Path, binaries: "Making", go: "FakeGo"
) -> None:
    file = program(tmp_path / "mine", "etcd", "echo 3.5.0")
    fetched = await binaries(folders=(tmp_path / "mine",), go=go).fetch(["etcd", "etcd@v3.6.8"])
    assert fetched["etcd"].path == file
    assert fetched["etcd@v3.6.8"].version == "v3.6.8"


async def test_another_version_is_reported_and_skipped(
    tmp_path: Path, binaries: "Making", go: "FakeGo", progress: "RecordedProgress"
) -> None:
    file = program(tmp_path / "mine", "kube-apiserver", "echo Kubernetes v1.30.1")
    made = binaries(folders=(tmp_path / "mine",), go=go)
    fetched = await made.path("kube-apiserver", NEWEST)
    assert fetched != file
    note = ("noted", f"kube-apiserver {NEWEST}", "folder", f"{file} is v1.30.1")
    assert progress.events[0] == note


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo Kubernetes v1.30.1", "mine/kube-apiserver is v1.30.1"),
        ("exit 3", "mine/kube-apiserver does not run (exit status 3)"),
        (None, "mine has no binary kube-apiserver"),
    ],
)
async def test_the_error_contains_the_reason_for_each_folder(
    script: str | None,
    reason: str,
    tmp_path: Path,
    binaries: "Making",
) -> None:
    (tmp_path / "mine").mkdir()
    if script is not None:
        program(tmp_path / "mine", "kube-apiserver", script)
    with pytest.raises(NotObtainableError) as failure:
        await binaries(folders=(tmp_path / "mine",)).path("kube-apiserver", NEWEST)
    assert ("folder", f"{tmp_path}/{reason}") in failure.value.attempts


async def test_a_hanging_program_fails(
    tmp_path: Path, binaries: "Making", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capelin_embedded.binaries.sources._VERSION_SECONDS", 0.1)
    file = program(tmp_path / "mine", "etcd", "exec /bin/sleep 60")
    with pytest.raises(NotObtainableError) as failure:
        await binaries(folders=(tmp_path / "mine",)).path("etcd", "v3.6.8")
    assert ("folder", f"{file} does not print its version in 0.1 s") in failure.value.attempts


async def test_a_broken_program_does_not_hide_later_folders(
    tmp_path: Path, binaries: "Making"
) -> None:
    program(tmp_path / "broken", "etcd", "exit 1")
    file = program(tmp_path / "whole", "etcd", "echo 3.6.8")
    made = binaries(folders=(tmp_path / "broken", tmp_path / "whole"))
    assert await made.path("etcd", "v3.6.8") == file


async def test_a_program_for_another_machine_fails(tmp_path: Path, binaries: "Making") -> None:
    file = program(tmp_path / "mine", "etcd", "")
    file.write_bytes(b"\x7fELF is not what this is")
    with pytest.raises(NotObtainableError) as failure:
        await binaries(folders=(tmp_path / "mine",)).path("etcd", "v3.6.8")
    assert ("folder", f"{file} cannot be run (Exec format error)") in failure.value.attempts


async def test_a_file_that_is_not_executable_is_skipped(
    tmp_path: Path, binaries: "Making", go: "FakeGo"
) -> None:
    file = program(tmp_path / "mine", "etcd", "")
    file.chmod(0o644)
    assert await binaries(folders=(tmp_path / "mine",), go=go).path("etcd") != file


def test_a_missing_folder_fails_at_once(tmp_path: Path, binaries: "Making") -> None:
    nowhere = tmp_path / "typo"
    with pytest.raises(BinariesError, match=re.escape(f"{nowhere} is not a folder with binaries.")):
        binaries(folders=(nowhere,))
    with pytest.raises(BinariesError, match=r"typo is not .* \(from CAPELIN_BINARIES\)"):
        binaries(CAPELIN_BINARIES=str(nowhere))


async def test_kubebuilder_assets_may_name_a_missing_folder(
    tmp_path: Path, binaries: "Making", go: "FakeGo"
) -> None:
    made = binaries(go=go, KUBEBUILDER_ASSETS=str(tmp_path / "gone"))
    assert (await made.path("etcd")).exists()


async def test_clusterctl_runs_without_its_update_check(tmp_path: Path, binaries: "Making") -> None:
    program(
        tmp_path / "mine", "clusterctl", 'test "$CLUSTERCTL_DISABLE_VERSIONCHECK" && echo v1.14.2'
    )
    fetched = await binaries(folders=(tmp_path / "mine",)).fetch(["clusterctl@v1.14.2"])
    assert fetched["clusterctl@v1.14.2"].version == "v1.14.2"
