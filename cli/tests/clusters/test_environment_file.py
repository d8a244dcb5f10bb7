"""Environments in a file."""

from pathlib import Path

import pytest
from capelin.errors import InvalidInputError
from capelin_cli.clusters.environment_file import NamedBy, chosen_name, options_from
from capelin_cli.clusters.up import UpOptions

from cli.tests.command import capelin

TEXT = """
name: lab
kubernetesVersion: "1.33"
with: [kubeadm]
clusters:
  - name: blue
    workers: 2
    kubernetesVersion: "1.34"
    variables: {machines: {dies: 20}}
  - name: green
    namespace: team
    class: other
"""


def test_a_file_describes_an_environment_and_its_clusters(tmp_path: Path) -> None:
    path = tmp_path / "capelin.yaml"
    path.write_text(TEXT)
    options = options_from(path, NamedBy())
    assert (options.name, options.demo) == ("lab", None)
    assert options.request.providers == ("kubeadm",)
    blue, green = options.clusters
    assert (blue.name, blue.namespace, blue.options.workers) == ("blue", "default", 2)
    assert blue.options.version == "v1.34.4"
    assert blue.options.variables == {"machines": {"dies": 20}}
    assert (green.namespace, green.options.cluster_class) == ("team", "other")


@pytest.mark.parametrize(
    ("file", "given", "name"),
    [
        (None, NamedBy(), "default"),
        (None, NamedBy(variable="shell"), "shell"),
        (None, NamedBy(option="mine"), "mine"),
        ("lab", NamedBy(), "lab"),
        ("lab", NamedBy(variable="shell"), "lab"),
        ("lab", NamedBy(option="lab"), "lab"),
    ],
)
def test_name_of_a_file_wins_over_the_variable(file: str | None, given: NamedBy, name: str) -> None:
    assert chosen_name(file, given, Path("capelin.yaml")) == name


@pytest.fixture
def brought_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the names of environments instead of starting them."""
    names: list[str] = []

    async def bring_up(options: UpOptions) -> None:
        names.append(options.name)

    monkeypatch.setattr("capelin_cli.clusters.up.bring_up", bring_up)
    return names


def test_contradicting_option_is_rejected(tmp_path: Path, brought_up: list[str]) -> None:
    path = tmp_path / "capelin.yaml"
    path.write_text("name: lab")
    ended = capelin("up", "-f", str(path), "-e", "default", home=tmp_path)
    assert (ended.returncode, brought_up) == (2, [])
    assert f"{path} describes environment lab, and -e names default." in ended.stderr


def test_a_variable_that_the_file_overrides_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brought_up: list[str]
) -> None:
    monkeypatch.setenv("CAPELIN_ENVIRONMENT", "shell")
    path = tmp_path / "capelin.yaml"
    path.write_text("name: lab")
    ended = capelin("up", "-f", str(path), home=tmp_path)
    assert (ended.returncode, brought_up) == (0, ["lab"])
    assert "CAPELIN_ENVIRONMENT names shell" in ended.stderr
    path.write_text("clusters: []")
    ended = capelin("up", "-f", str(path), home=tmp_path)
    assert (brought_up[-1], ended.stderr) == ("shell", "")


def test_interrupted_up_uses_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(_: UpOptions) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("capelin_cli.clusters.up.bring_up", interrupted)
    path = tmp_path / "capelin.yaml"
    path.write_text("name: lab")
    ended = capelin("up", "-f", str(path), home=tmp_path)
    assert ended.returncode == 130
    assert f"capelin up -f {path}, or remove it with capelin down -e lab." in ended.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cluster: []", "cluster: Extra inputs are not permitted"),
        ("clusters: [{workers: 2}]", "clusters.0.name: Field required"),
        ("clusters: [{name: a, workers: many}]", "clusters.0.workers: Input should be a valid int"),
        ("clusters: [{name: a, workers: -3}]", "clusters.0.workers: Input should be greater"),
        ("clusters: [{name: a, controlPlaneReplicas: 0}]", "Input should be greater than or equal"),
        ("clusters: [{name: a, namespace: No Way}]", "clusters.0.namespace: String should match"),
        ("clusters: [{name: a}, {name: a}]", "two clusters have the name a in namespace default"),
        ("a: [", "It is not YAML: line 1, column 5: expected the node content"),
        ("name: lab\nclusters: [{name: a]", "line 2, column 20: expected ',' or '}'"),
        ("name: \x00", "It is not YAML: unacceptable character #x0000"),
        ("- a", "Input should be a valid dictionary"),
    ],
)
def test_an_invalid_file_is_rejected_with_the_field(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "capelin.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        options_from(path, NamedBy())
    assert reason in caught.value.reason
    assert "clusters:" in caught.value.hint
