"""An extension with patches: its size, its patches, and its variable."""

import sys
from pathlib import Path

from capelin.testing.extensions import patches_of, response_of

sys.path.insert(0, str(Path(__file__).parents[1]))
from proxy import ext


def test_it_has_at_most_30_lines() -> None:
    text = Path(__file__).parents[1].joinpath("proxy.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) <= 30


async def test_machines_use_the_proxy_of_their_cluster() -> None:
    assert await patches_of(ext, "patches-v1") == {}
    patches = await patches_of(ext, "patches-v1", {"proxy": "http://proxy:3128/;x"})
    command = "export HTTPS_PROXY='http://proxy:3128/;x'"
    added = {
        template: [(step["op"], step["path"], step["value"]) for step in steps]
        for template, steps in patches.items()
    }
    assert added["KubeadmConfigTemplate of MachineDeployment"] == [
        ("add", "/spec/template/spec/preKubeadmCommands", [command])
    ]
    path = "/spec/template/spec/kubeadmConfigSpec/preKubeadmCommands"
    assert added["KubeadmControlPlaneTemplate of Cluster"] == [("add", path, [command])]


async def test_clusters_have_the_variable() -> None:
    (variable,) = (await response_of(ext, "variables-v1")).variables
    assert (variable["name"], variable["required"]) == ("proxy", False)
    assert variable["schema"]["openAPIV3Schema"]["type"] == "string"
