"""Environments that a file describes."""

from pathlib import Path

import pytest
from capelin.errors import InvalidInputError
from capelin_infra.environment_file import options_from

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
    options = options_from(path, "default")
    assert (options.name, options.demo) == ("lab", None)
    assert options.request.providers == ("kubeadm",)
    blue, green = options.clusters
    assert (blue.name, blue.namespace, blue.options.workers) == ("blue", "default", 2)
    assert blue.options.version == "v1.34.4"
    assert blue.options.cluster.variables == {"machines": {"dies": 20}}
    assert (green.namespace, green.options.cluster_class) == ("team", "other")
    assert options_from(path, "mine").name == "mine"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cluster: []", "cluster: Extra inputs are not permitted"),
        ("clusters: [{workers: 2}]", "clusters.0.name: Field required"),
        ("clusters: [{name: a, workers: many}]", "clusters.0.workers: Input should be a valid int"),
        ("clusters: [{name: a, workers: -3}]", "clusters.0.workers: Input should be greater"),
        ("clusters: [{name: a, controlPlaneReplicas: 0}]", "Input should be greater than or equal"),
        ("clusters: [{name: a, namespace: No Way}]", "clusters.0.namespace: String should match"),
        ("clusters: [{name: a}, {name: a}]", "two clusters are called a in namespace default"),
        ("a: [", "It is not YAML"),
        ("- a", "Input should be a valid dictionary"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_the_field(
    text: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "capelin.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        options_from(path, "default")
    assert reason in caught.value.reason
    assert "clusters:" in caught.value.hint
