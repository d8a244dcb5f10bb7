"""The version of a release, and the files of its commit."""

import os
import subprocess
from pathlib import Path

import pytest
from capelin.errors import InvalidInputError
from capelin_release.build import build_release
from capelin_release.commit import Commit, set_version
from capelin_release.project import Project

PYPROJECT = """
[project]
name = "fish"
version = "0.1.0"
dependencies = ["frame[fast]==0.1.0", "other==0.1.0.1", "foreign==0.1.0"]

[tool.uv.workspace]
members = ["members/*"]

[tool.capelin.release]
registry = "example.com/fish"
images = [{ name = "fish", package = "fish", module = "fish", description = "A fish." }]
"""


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    git(folder, "add", ".")
    git(folder, "commit", "-m", "all", "--date=2026-01-01T00:00:00Z")
    return folder


@pytest.mark.parametrize("version", ["0.2.0", "1.0.0-rc.1", "1.0.0-alpha.12"])
def test_a_tag_names_a_version(repository: Path, version: str) -> None:
    for tag in ("unrelated", "v1.0", f"v{version}"):
        git(repository, "tag", tag)
    assert Commit.of(repository).version("0.1.0") == version


def test_a_commit_without_a_tag_is_a_development_version(repository: Path) -> None:
    commit = Commit.of(repository)
    assert commit.version("0.1.0") == f"0.1.0-dev.{commit.time}"


def test_ambiguous_tags_and_a_missing_repository_are_errors(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "tag", "v1.0.0")
    git(repository, "tag", "v2.0.0")
    with pytest.raises(InvalidInputError, match="several tags"):
        Commit.of(repository).version("0.1.0")
    with pytest.raises(InvalidInputError, match="not a git repository"):
        Commit.of(tmp_path)


def test_only_committed_files_are_exported(repository: Path, tmp_path: Path) -> None:
    (repository / "secret").write_text("x")
    (repository / "pyproject.toml").write_text("changed")
    Commit.of(repository).export(tmp_path / "tree")
    assert [file.name for file in (tmp_path / "tree").iterdir()] == ["pyproject.toml"]
    assert (tmp_path / "tree" / "pyproject.toml").read_text() == PYPROJECT


@pytest.mark.parametrize(
    ("version", "python"),
    [
        ("0.2.0-rc.1", "0.2.0rc1"),
        ("1.0.0-alpha.12", "1.0.0a12"),
        ("0.1.0-dev.1795000000", "0.1.0.dev1795000000"),
    ],
)
def test_the_build_sets_the_version_of_the_packages(
    tmp_path: Path, version: str, python: str
) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(PYPROJECT)
    set_version(file, "0.1.0", version, ["fish", "frame", "other"])
    text = file.read_text()
    assert f'version = "{python}"' in text
    assert f'"frame[fast]=={python}", "other==0.1.0.1", "foreign==0.1.0"' in text


def test_packages_are_built_into_the_release_folder(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(
        '#!/bin/sh\nfor option; do :; done\nmkdir -p "${option#--out-dir=}"\n'
        'touch "${option#--out-dir=}/fish-1.0-py3-none-any.whl"\n'
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    text = PYPROJECT.replace("images =", "# images =")
    (repository / "pyproject.toml").write_text(text)
    git(repository, "commit", "-a", "-m", "no images")
    lines: list[str] = []
    # `nox -s release` names the folder relatively.
    build_release(repository, Path("dist"), lines.append)
    assert lines[-1].startswith("fish-v0.1.0-dev.")
    assert [file.name for file in (tmp_path / "dist" / "python").iterdir()] == [
        "fish-1.0-py3-none-any.whl"
    ]


def test_the_project_file_configures_the_release(repository: Path) -> None:
    member = repository / "members" / "a"
    member.mkdir(parents=True)
    (member / "pyproject.toml").write_text("")
    project = Project(repository)
    assert project.version == "0.1.0"
    assert project.files == [repository / "pyproject.toml", member / "pyproject.toml"]
    assert [image.name for image in project.release.images] == ["fish"]

    (repository / "pyproject.toml").write_text(PYPROJECT.replace("registry", "register"))
    with pytest.raises(InvalidInputError, match="registry: Field required; register: Extra"):
        _ = Project(repository).release
    (repository / "pyproject.toml").write_text("[project]\nversion = '1'\n")
    with pytest.raises(InvalidInputError, match=r"Write \[tool.capelin.release\]"):
        _ = Project(repository).release
