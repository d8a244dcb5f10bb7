"""Contexts that are put into the user's kubeconfig, and taken out again."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from capelin.embedded.management import Environment
from capelin.errors import BusyError, InvalidInputError
from capelin_infra.environments.user_kubeconfig import (
    merge_contexts,
    merged,
    remove_contexts,
    user_kubeconfig,
    without,
)


def kubeconfig(name: str, server: str = "https://127.64.0.1:6443") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "users": [{"name": name, "user": {"token": "secret"}}],
        "current-context": name,
    }


THEIRS = kubeconfig("prod")


def test_a_context_comes_beside_those_that_are_there_and_is_current() -> None:
    result = merged(THEIRS, [kubeconfig("capelin-default")], "capelin-default")
    assert [entry["name"] for entry in result["contexts"]] == ["prod", "capelin-default"]
    assert result["current-context"] == "capelin-default"


def test_merging_again_replaces_what_has_changed() -> None:
    first = merged(THEIRS, [kubeconfig("capelin-a")], "capelin-a")
    later = kubeconfig("capelin-a", "https://127.64.0.9:6443")
    second = merged(first, [later], "capelin-a")
    assert second == {**merged(THEIRS, [later], "capelin-a")}


def test_what_was_merged_goes_and_all_else_stays() -> None:
    both = merged(THEIRS, [kubeconfig("capelin-a"), kubeconfig("capelin-a-demo")], "prod")
    assert without(both, ["capelin-a", "capelin-a-demo"]) == THEIRS


def test_no_context_is_current_when_that_one_goes() -> None:
    both = merged(THEIRS, [kubeconfig("capelin-a")], "capelin-a")
    assert without(both, ["capelin-a"])["current-context"] == ""


def test_a_cluster_that_another_context_uses_stays() -> None:
    both = merged(THEIRS, [kubeconfig("capelin-a")], "capelin-a")
    both["contexts"].append(
        {"name": "mine", "context": {"cluster": "capelin-a", "user": "capelin-a"}}
    )
    assert [entry["name"] for entry in without(both, ["capelin-a"])["clusters"]] == [
        "prod",
        "capelin-a",
    ]


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    environment = Environment(tmp_path / "capelin" / "demo")
    environment.make_folders()
    return environment


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "home" / "config"
    monkeypatch.setenv("KUBECONFIG", f"{path}:/elsewhere")
    return path


def test_file_is_written_cleaned(environment: Environment, theirs: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text(yaml.safe_dump(kubeconfig("capelin-demo")))
    assert merge_contexts(environment, [own]) == (theirs, ["capelin-demo"])
    assert theirs.stat().st_mode & 0o077 == 0
    assert yaml.safe_load(theirs.read_text())["current-context"] == "capelin-demo"
    assert remove_contexts(environment) == [theirs]
    assert yaml.safe_load(theirs.read_text())["contexts"] == []
    assert remove_contexts(environment) == []


def test_other_files_are_kept(environment: Environment, theirs: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text(yaml.safe_dump(kubeconfig("capelin-demo")))
    theirs.parent.mkdir()
    theirs.write_text("- a\n- list\n")
    with pytest.raises(InvalidInputError, match="is not a kubeconfig"):
        merge_contexts(environment, [own])
    assert theirs.read_text() == "- a\n- list\n"


def test_concurrent_writers_wait(environment: Environment, theirs: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text(yaml.safe_dump(kubeconfig("capelin-demo")))
    theirs.parent.mkdir()
    theirs.with_name("config.lock").touch()
    with pytest.raises(BusyError, match=r"config\.lock exists"):
        merge_contexts(environment, [own])


def test_the_file_is_the_one_that_kubectl_would_write_to(tmp_path: Path) -> None:
    assert user_kubeconfig({"KUBECONFIG": f"{tmp_path}/a:{tmp_path}/b"}) == tmp_path / "a"
    assert user_kubeconfig({}).parts[-2:] == (".kube", "config")
