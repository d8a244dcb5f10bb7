"""The verb that checks providers, without an environment."""

import json
from pathlib import Path

import pytest
from capelin.yaml import write_yaml
from capelin_machine_pool.provider import provider

from .command import capelin

MACHINE = ("conformance", "infra-machine", "--kind", "CapelinMachine")


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    """The components of a provider, without a Deployment."""
    path = tmp_path / "components.yaml"
    path.write_text("---\n".join(write_yaml(obj) for obj in provider().components()))
    return path


def test_manifests_are_checked(manifests: Path, tmp_path: Path) -> None:
    result = capelin(*MACHINE, "--manifests", str(manifests), home=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("infra-machine: CapelinMachine\n")


def test_installed_package_is_checked(tmp_path: Path) -> None:
    label = provider().label
    result = capelin(*MACHINE, "--provider", label, "-o", "json", home=tmp_path)
    assert json.loads(result.stdout)["passed"] is True


def test_broken_rule_is_exit_code_1(manifests: Path, tmp_path: Path) -> None:
    text = manifests.read_text().replace("scope: Namespaced", "scope: Cluster")
    manifests.write_text(text)
    result = capelin(*MACHINE, "--manifests", str(manifests), "-o", "markdown", home=tmp_path)
    assert result.returncode == 1
    assert "| FAILED | [scope](" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), 2, "name --manifests or --provider"),
        (("--provider", "none"), 4, "No installed package has a provider none"),
        (("--provider", "capelin", "--manager", "./manager"), 2, "--manager needs"),
        (("--provider", "capelin", "--samples", __file__), 2, "--samples needs"),
        (("--provider", provider().label, "-e", "none"), 4, "Environment none does not exist"),
    ],
)
def test_invalid_input_is_rejected(
    arguments: tuple[str, ...], code: int, text: str, tmp_path: Path
) -> None:
    result = capelin(*MACHINE, *arguments, home=tmp_path)
    assert result.returncode == code
    assert text in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("contract", "sample", "text"),
    [
        ("clusterctl", "", "contract clusterctl cannot be checked"),
        ("infra-machine", "kind: Other\nmetadata: {}\n", "has no sample of CapelinMachine"),
    ],
)
def test_invalid_check_of_the_behaviour_is_rejected(
    contract: str, sample: str, text: str, manifests: Path, tmp_path: Path
) -> None:
    samples = tmp_path / "samples.yaml"
    samples.write_text(sample)
    arguments = ("--manifests", str(manifests), "-e", "none", "--samples", str(samples))
    kind = ("--kind", "CapelinMachine")
    result = capelin("conformance", contract, *kind, *arguments, home=tmp_path)
    assert result.returncode == 2
    assert text in " ".join(result.stderr.split())
