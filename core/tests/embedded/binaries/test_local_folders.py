import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capelin.embedded.binaries import Binaries, BinariesError, NotObtainableError

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


async def test_a_named_folder_comes_first(tmp_path: Path, binaries: "Making", go: "FakeGo") -> None:
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


async def test_order_of_folders(tmp_path: Path, binaries: "Making") -> None:
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
    found = await made.fetch(["kube-apiserver@v1.33.13", "kube-apiserver@v1.34.4"])
    assert [each.path for each in found.values()] == [old, new]
    assert [each.version for each in found.values()] == ["v1.33.13", "v1.34.4"]


async def test_any_version_matches_no_version(tmp_path: Path, binaries: "Making") -> None:
    file = program(tmp_path / "mine", "kube-apiserver", f"touch {tmp_path}/was-run; echo v1.30.0")
    found = await binaries(folders=(tmp_path / "mine",)).fetch(["kube-apiserver"])
    assert found["kube-apiserver"].path == file
    assert found["kube-apiserver"].version is None
    assert not (tmp_path / "was-run").exists()


async def test_program_without_a_version(tmp_path: Path, binaries: "Making") -> None:
    program(tmp_path / "mine", "capd-manager", "echo v0.0.1")
    program(tmp_path / "mine", "etcd", "echo built by hand")
    found = await binaries(folders=(tmp_path / "mine",)).fetch(
        ["capd-manager@v1.14.0", "etcd@v3.6.5"]
    )
    assert [each.version for each in found.values()] == [None, None]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"kube-apiserver@{NEWEST}", f"Kubernetes {NEWEST}"),
        (f"kubectl@{NEWEST}", f"Client Version: {NEWEST}\nKustomize Version: v5.7.1"),
        (f"kubeadm@{NEWEST}", f"{NEWEST}+vendor1"),
        ("etcd@v3.6.5", "etcd Version: 3.6.5\nGit SHA: Not provided\nGo Version: go1.26.8"),
        ("etcdctl@v3.6.5", "etcdctl version: 3.6.5\nAPI version: 3.6"),
        ("kwok@v0.7.0", "kwok version v0.7.0 go1.26.8 (linux/amd64)"),
    ],
)
async def test_version_of_output(name: str, said: str, tmp_path: Path, binaries: "Making") -> None:
    file = program(tmp_path / "mine", name.partition("@")[0], f"echo '{said}'")
    found = await binaries(folders=(tmp_path / "mine",)).fetch([name])
    assert found[name].path == file
    assert found[name].version == name.partition("@")[2]


async def test_names_with_a_version(tmp_path: Path, binaries: "Making", go: "FakeGo") -> None:
    file = program(tmp_path / "mine", "etcd", "echo 3.5.0")
    found = await binaries(folders=(tmp_path / "mine",), go=go).fetch(["etcd", "etcd@v3.6.5"])
    assert found["etcd"].path == file
    assert found["etcd@v3.6.5"].version == "v3.6.5"


async def test_another_version_than_asked_for_is_told_and_passed_over(
    tmp_path: Path, binaries: "Making", go: "FakeGo", progress: "RecordedProgress"
) -> None:
    file = program(tmp_path / "mine", "kube-apiserver", "echo Kubernetes v1.30.1")
    made = binaries(folders=(tmp_path / "mine",), go=go)
    found = await made.path("kube-apiserver", NEWEST)
    assert found != file
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
async def test_why_a_folder_did_not_do_is_part_of_the_error(
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


async def test_a_program_that_does_not_end_is_not_waited_for(
    tmp_path: Path, binaries: "Making", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capelin.embedded.binaries.sources._VERSION_SECONDS", 0.1)
    file = program(tmp_path / "mine", "etcd", "exec /bin/sleep 60")
    with pytest.raises(NotObtainableError) as failure:
        await binaries(folders=(tmp_path / "mine",)).path("etcd", "v3.6.5")
    assert ("folder", f"{file} does not print its version in 0.1 s") in failure.value.attempts


async def test_broken_program_hides_no_folder(tmp_path: Path, binaries: "Making") -> None:
    program(tmp_path / "broken", "etcd", "exit 1")
    file = program(tmp_path / "whole", "etcd", "echo 3.6.5")
    made = binaries(folders=(tmp_path / "broken", tmp_path / "whole"))
    assert await made.path("etcd", "v3.6.5") == file


async def test_program_of_another_machine(tmp_path: Path, binaries: "Making") -> None:
    file = program(tmp_path / "mine", "etcd", "")
    file.write_bytes(b"\x7fELF is not what this is")
    with pytest.raises(NotObtainableError) as failure:
        await binaries(folders=(tmp_path / "mine",)).path("etcd", "v3.6.5")
    assert ("folder", f"{file} cannot be run (Exec format error)") in failure.value.attempts


async def test_file_without_mode_x(tmp_path: Path, binaries: "Making", go: "FakeGo") -> None:
    file = program(tmp_path / "mine", "etcd", "")
    file.chmod(0o644)
    assert await binaries(folders=(tmp_path / "mine",), go=go).path("etcd") != file


def test_a_folder_that_is_not_there_is_refused_at_once(tmp_path: Path, binaries: "Making") -> None:
    nowhere = tmp_path / "typo"
    with pytest.raises(BinariesError, match=re.escape(f"{nowhere} is not a folder with binaries.")):
        binaries(folders=(nowhere,))
    with pytest.raises(BinariesError, match=r"typo is not .* \(from CAPELIN_BINARIES\)"):
        binaries(CAPELIN_BINARIES=str(nowhere))


async def test_stale_variable_is_ignored(tmp_path: Path, binaries: "Making", go: "FakeGo") -> None:
    made = binaries(go=go, KUBEBUILDER_ASSETS=str(tmp_path / "gone"))
    assert (await made.path("etcd")).exists()


async def test_clusterctl_looks_for_no_update(tmp_path: Path, binaries: "Making") -> None:
    program(
        tmp_path / "mine", "clusterctl", 'test "$CLUSTERCTL_DISABLE_VERSIONCHECK" && echo v1.14.0'
    )
    found = await binaries(folders=(tmp_path / "mine",)).fetch(["clusterctl@v1.14.0"])
    assert found["clusterctl@v1.14.0"].version == "v1.14.0"
