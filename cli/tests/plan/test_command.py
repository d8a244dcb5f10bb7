"""The command line of `capelin plan`."""

from pathlib import Path

import pytest
from capelin_cli.plan.command import PlanTarget

from ..command import capelin  # noqa: TID252 - a folder without a name

CLUSTER = ("plan", "cluster", "demo")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["plan", "-o", "json"], "give a file with -f"),
        (["plan", "-f", "missing.yaml"], "does not exist"),
        ([*CLUSTER], "give --version, --workers"),
        (["plan", "demo"], "Type capelin plan cluster demo"),
        ([*CLUSTER, "--set", "novalue"], "sets no variable"),
        ([*CLUSTER, "--workers", "2", "--watch", "--guard"], "approve one plan"),
        ([*CLUSTER, "--workers", "3", "--watch", "-o", "json"], "--watch does not work with"),
    ],
)
def test_an_invalid_command_line_has_no_output(
    tmp_path: Path, arguments: list[str], text: str
) -> None:
    found = capelin(*arguments, home=tmp_path)
    assert found.returncode == 2
    assert found.stdout == ""
    assert text in " ".join(found.stderr.split())


def test_an_invalid_file(tmp_path: Path) -> None:
    file = tmp_path / "change.yaml"
    file.write_text("kind: Cluster")
    found = capelin("plan", "-f", str(file), home=tmp_path)
    assert found.returncode == 2
    assert "no apiVersion, no kind or no name" in found.stderr


def test_a_missing_environment(tmp_path: Path) -> None:
    found = capelin(*CLUSTER, "--version", "v1.34.4", home=tmp_path)
    assert found.returncode == 4
    assert "Environment default does not exist" in found.stderr


def test_help(tmp_path: Path) -> None:
    text = " ".join(capelin("plan", "--help", home=tmp_path).stdout.split())
    assert "exit code is 2 if machines are replaced" in text
    assert "--filename" in text


def test_workload_clusters_of_an_environment_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hosted API servers are on loopback, which a kubeconfig from elsewhere does not reach."""
    monkeypatch.delenv("CAPELIN_ALLOWED_NETWORKS", raising=False)
    local = "127.64.0.2"
    assert PlanTarget().destinations.allows(local)
    assert not PlanTarget(kubeconfig=Path("management.kubeconfig")).destinations.allows(local)
