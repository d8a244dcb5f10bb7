"""The README's example is valid and complete."""

from pathlib import Path

import yaml
from capelin.api.capi import Cluster
from capelin_control_plane.api import CapelinControlPlane
from capelin_embedded.binaries import KNOWN_KUBERNETES

README = Path(__file__).parents[1] / "README.md"


def test_the_example_is_valid_and_its_references_match() -> None:
    example = README.read_text().split("```yaml\n")[1].split("```")[0]
    first, infrastructure, second = yaml.safe_load_all(example)
    spec = Cluster.read(first).spec
    assert spec.control_plane_ref is not None
    assert spec.infrastructure_ref is not None
    references = [(ref.kind, ref.name) for ref in (spec.control_plane_ref, spec.infrastructure_ref)]
    objects = [(obj["kind"], obj["metadata"]["name"]) for obj in (second, infrastructure)]
    assert references == objects
    assert CapelinControlPlane.read(second).spec.version in KNOWN_KUBERNETES
