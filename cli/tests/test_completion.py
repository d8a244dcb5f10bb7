"""Completion in the shell, and the default environment."""

from pathlib import Path

import pytest
from capelin_cli.verbs import completion
from capelin_embedded.binaries import KNOWN_KUBERNETES
from capelin_embedded.management import Environment

from .command import capelin


def complete(line: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Completions of bash for the last word of a command line."""
    words = line.split(" ")
    monkeypatch.setenv("_CAPELIN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    return [line for line in capelin(home=home).stdout.splitlines() if line]


@pytest.fixture
def environments(tmp_path: Path) -> Path:
    for name in ("lab", "prod"):
        environment = Environment(tmp_path / "capelin" / name)
        environment.make_folders()
        environment.processes.mkdir()
        (environment.processes / f"etcd-of-{name}.log").touch()
    return tmp_path


def test_names_are_completed(environments: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete("capelin status -e ", environments, monkeypatch) == ["lab", "prod"]
    assert complete("capelin status -e p", environments, monkeypatch) == ["prod"]
    assert complete("capelin upgrade cluster demo v1.3", environments, monkeypatch) == [
        *KNOWN_KUBERNETES
    ]
    assert complete("capelin logs -e lab et", environments, monkeypatch) == ["etcd-of-lab"]
    assert "kubeadm" in complete("capelin up --with ", environments, monkeypatch)


def test_missing_word_is_accepted(environments: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for verb in ("upgrade", "wait"):
        assert complete(f"capelin {verb} ", environments, monkeypatch) == ["cluster"]
    assert "Error" not in "".join(complete("capelin upgrade demo ", environments, monkeypatch))


def test_stopped_environment(environments: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete("capelin scale -e lab d", environments, monkeypatch) == []


@pytest.mark.parametrize(
    ("names", "expected"),
    [([], "default"), (["lab"], "lab"), (["lab", "prod"], "default"), (["default"], "default")],
)
def test_the_only_environment_is_the_default(
    names: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in names:
        Environment(tmp_path / "capelin" / name).make_folders()
    assert completion.chosen_environment("") == expected
    assert completion.chosen_environment("named") == "named"
