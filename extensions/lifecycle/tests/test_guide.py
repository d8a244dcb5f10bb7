"""Every manifest of the guide is one that the API server accepts."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from capelin.client import Client
from capelin.yaml import read_all_yaml
from capelin_lifecycle.api import GROUP, ClusterLifecyclePolicy, LifecyclePolicy
from capelin_lifecycle.policies import policy_problem

PAGES = [
    *sorted((Path(__file__).parents[3] / "docs" / "lifecycle").glob("*.md")),
    Path(__file__).parents[1] / "README.md",
]
_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def manifests() -> list[Any]:
    return [
        pytest.param(manifest, id=f"{page.stem}-{manifest['metadata']['name']}")
        for page in PAGES
        for block in _BLOCK.findall(page.read_text())
        for manifest in read_all_yaml(block)
        if manifest and "apiVersion" in manifest
    ]


@pytest.fixture(scope="session")
def cluster_classes(install_crds: Callable[..., None]) -> None:
    install_crds("clusterclasses.cluster.x-k8s.io")


@pytest.mark.usefixtures("provider_crds", "cluster_classes")
@pytest.mark.parametrize("manifest", manifests())
async def test_a_manifest_is_accepted(
    client: Client, namespace: str, manifest: dict[str, Any]
) -> None:
    metadata = dict(manifest["metadata"])
    if "namespace" in metadata:
        metadata["namespace"] = namespace
    wanted: dict[str, Any] = {**manifest, "metadata": metadata}
    made = await client.create(wanted, dry_run=True)
    if str(made["apiVersion"]).startswith(GROUP):
        kind = LifecyclePolicy if "namespace" in metadata else ClusterLifecyclePolicy
        assert policy_problem(kind.read(made)) is None


def test_each_story_has_a_page() -> None:
    actions = {
        action
        for page in PAGES
        for action in re.findall(r"^    (\w+):$", page.read_text(), re.MULTILINE)
    }
    assert {"approval", "quota", "apply", "job", "backup", "patches", "http", "validate"} <= actions
    assert "upgradePlan" in actions
