"""A program in YAML and the schema, from a virtual environment that is not activated."""

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.go_programs import GoModule

from .bed import Bed

pytestmark = pytest.mark.timeout(1800)

YAML = GoModule("github.com/pulumi/pulumi-yaml", "v1.25.0")
"""Pulumi's host of programs in YAML."""
SCRIPTS = Path(sys.executable).parent
PROJECT = """\
name: project
runtime: yaml
config:
  kubeconfig: {{type: string}}
plugins:
  providers:
    - name: capelin
      path: {folder}
resources:
  check:
    type: capelin:AdmissionCheck
    properties:
      kubeconfig: ${{kubeconfig}}
      manifest: '{manifest}'
outputs:
  accepted: ${{check.accepted}}
"""
METADATA = {"name": "settings", "namespace": "default"}
MANIFEST = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": METADATA}


@pytest.fixture
async def bed_without_plugin(bed: Bed) -> Bed:
    """An engine for programs in YAML, whose PATH does not have the plugin."""
    commands, name = bed.folder / "bin", "pulumi-language-yaml"
    (commands / "pulumi-resource-capelin").unlink()
    host = (await YAML.programs({name: f"./cmd/{name}"}))[name]
    (commands / name).symlink_to(host)
    return bed


@pytest.fixture
def credentials(kubeconfig: Path) -> str:
    """The kubeconfig of an API server."""
    return kubeconfig.read_text()


async def test_a_program_in_yaml_names_the_folder_of_the_plugin(
    bed_without_plugin: Bed, credentials: str, tmp_path: Path
) -> None:
    bed = bed_without_plugin
    project = tmp_path / "project"
    project.mkdir()
    text = PROJECT.format(folder=SCRIPTS, manifest=json.dumps(MANIFEST))
    (project / "Pulumi.yaml").write_text(text)
    await bed.run(project, "stack", "init", "dev")
    await bed.run(project, "config", "set", "--secret", "kubeconfig", credentials)
    await bed.run(project, "up", "--yes", "--skip-preview")
    assert await bed.outputs(project) == {"accepted": True}
    await bed.run(project, "destroy", "--yes", "--skip-preview")


async def test_a_schema_needs_only_the_path_of_the_plugin(
    bed_without_plugin: Bed, tmp_path: Path
) -> None:
    plugin = str(SCRIPTS / "pulumi-resource-capelin")
    schema = await bed_without_plugin.json(tmp_path, "package", "get-schema", plugin)
    assert "capelin:index:KindCluster" in schema["resources"]
