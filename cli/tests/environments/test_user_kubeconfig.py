"""Contexts that the command adds to the user's kubeconfig and removes again."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from capelin.errors import BusyError, InvalidInputError
from capelin_cli.environments.kubeconfigs import (
    merge_contexts,
    merged,
    remove_contexts,
    user_kubeconfig,
    without,
)
from capelin_embedded.management import Environment


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


def test_a_new_context_is_added_and_becomes_current() -> None:
    result = merged(THEIRS, [kubeconfig("capelin-default")], "capelin-default")
    assert [entry["name"] for entry in result["contexts"]] == ["prod", "capelin-default"]
    assert result["current-context"] == "capelin-default"


def test_a_repeated_merge_replaces_changed_entries() -> None:
    first = merged(THEIRS, [kubeconfig("capelin-a")], "capelin-a")
    later = kubeconfig("capelin-a", "https://127.64.0.9:6443")
    second = merged(first, [later], "capelin-a")
    assert second == {**merged(THEIRS, [later], "capelin-a")}


def test_only_merged_entries_are_removed() -> None:
    both = merged(THEIRS, [kubeconfig("capelin-a"), kubeconfig("capelin-a-demo")], "prod")
    assert without(both, ["capelin-a", "capelin-a-demo"]) == THEIRS


def test_no_context_is_current_after_the_current_one_is_removed() -> None:
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


def test_a_file_that_is_not_a_kubeconfig_is_unchanged(
    environment: Environment, theirs: Path, tmp_path: Path
) -> None:
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


def test_contexts_are_written_to_the_file_that_kubectl_would_use(tmp_path: Path) -> None:
    assert user_kubeconfig({"KUBECONFIG": f"{tmp_path}/a:{tmp_path}/b"}) == tmp_path / "a"
    assert user_kubeconfig({}).parts[-2:] == (".kube", "config")
