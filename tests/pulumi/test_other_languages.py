"""A program in YAML and the schema, from a virtual environment that is not activated."""

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.go_programs import GoModule

from .bed import ROOT, Bed

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
      path: {scripts}
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
def bed_without_plugin(bed: Bed) -> Bed:
    """An engine whose PATH does not have the plugin."""
    (bed.folder / "bin" / "pulumi-resource-capelin").unlink()
    return bed


@pytest.fixture
def credentials(kubeconfig: Path) -> str:
    """The kubeconfig of an API server."""
    return kubeconfig.read_text()


async def test_a_program_in_yaml_names_the_folder_of_the_plugin(
    bed_without_plugin: Bed, credentials: str, tmp_path: Path
) -> None:
    bed, name = bed_without_plugin, "pulumi-language-yaml"
    host = (await YAML.programs({name: f"./cmd/{name}"}))[name]
    (bed.folder / "bin" / name).symlink_to(host)
    project = tmp_path / "project"
    project.mkdir()
    text = PROJECT.format(scripts=SCRIPTS, manifest=json.dumps(MANIFEST))
    (project / "Pulumi.yaml").write_text(text)
    await bed.run(project, "stack", "init", "dev")
    await bed.run(project, "config", "set", "--secret", "kubeconfig", "--", credentials)
    await bed.run(project, "up", "--yes", "--skip-preview")
    assert await bed.outputs(project) == {"accepted": True}
    await bed.run(project, "destroy", "--yes", "--skip-preview")


@pytest.mark.parametrize("plugin", [SCRIPTS / "pulumi-resource-capelin", ROOT / "infra" / "plugin"])
async def test_the_plugin_is_a_program_and_a_folder(
    bed_without_plugin: Bed, tmp_path: Path, plugin: Path
) -> None:
    schema = await bed_without_plugin.json(tmp_path, "package", "get-schema", str(plugin))
    assert "capelin:index:KindCluster" in schema["resources"]
