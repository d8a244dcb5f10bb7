"""kind clusters on a real engine and plugin, with stand-ins for `docker` and `kind`."""

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest
from capelin.api.core import ConfigMap
from capelin.client import Client, Config
from capelin_embedded.apiserver import ApiServer
from capelin_embedded.testing.run import own_api_server

from .bed import Bed

pytestmark = pytest.mark.timeout(600)

STAND_INS = Path(__file__).with_name("stand_ins")
PROGRAM = """
import json

import pulumi
import pulumi_kubernetes as kubernetes
from capelin_infra.resources import AdmissionCheck, KindCluster

kind = KindCluster(
    "kind",
    name="lab",
    image=pulumi.Config().require("image"),
    registry_mirrors={"docker.io": "https://robot:hunter2@mirror"},
)
server = kubernetes.Provider("server", kubeconfig=kind.kubeconfig, cluster_identifier=kind.uid)
metadata = {"name": "settings", "namespace": "default"}
settings = kubernetes.core.v1.ConfigMap(
    "settings",
    metadata=metadata,
    opts=pulumi.ResourceOptions(provider=server, deleted_with=kind),
)
manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
AdmissionCheck(
    "check",
    kubeconfig=kind.kubeconfig,
    cluster_uid=kind.uid,
    manifest=json.dumps(manifest),
    opts=pulumi.ResourceOptions(depends_on=[settings]),
)
"""


@pytest.fixture
def servers(capelin_test_run: Path) -> Generator[list[ApiServer]]:
    """API servers for two kind clusters."""
    with own_api_server(capelin_test_run) as first, own_api_server(capelin_test_run) as second:
        yield [first, second]


async def settings_of(server: ApiServer) -> ConfigMap | None:
    async with Client(Config.from_kubeconfig(server.kubeconfig)) as client:
        return await client.find(ConfigMap, "settings", "default")


async def test_a_cluster_is_renewed_and_replaced_with_its_content(
    bed: Bed, servers: list[ApiServer], tmp_path: Path
) -> None:
    state = tmp_path / "kind"
    (state / "clusters").mkdir(parents=True)
    (state / "waiting").mkdir()
    for number, server in enumerate(servers):
        shutil.copy(server.kubeconfig, state / "waiting" / str(number))
    bed.variables["STAND_INS"] = str(state)
    bed.variables["PATH"] = f"{STAND_INS}:{bed.variables['PATH']}"
    project = tmp_path / "project"
    project.mkdir()
    (project / "Pulumi.yaml").write_text("name: project\nruntime: python\n")
    (project / "__main__.py").write_text(PROGRAM)
    await bed.run(project, "stack", "init", "dev")
    await bed.run(project, "config", "set", "image", "one")
    await bed.run(project, "up", "--yes", "--skip-preview")
    assert await settings_of(servers[0]) is not None
    # A URL with a password is a secret in the state.
    assert "hunter2" not in (await bed.run(project, "stack", "export")).output

    # Renewed credentials reach the state of all resources that use them.
    file = state / "clusters" / "lab"
    file.write_text(f"{file.read_text()}# renewed\n")
    await bed.run(project, "up", "--yes", "--skip-preview", "--refresh")
    resources = await bed.resources(project, "--show-secrets")
    kubeconfigs = [str(it["outputs"]["kubeconfig"]) for it in resources if "kubeconfig" in str(it)]
    assert len(kubeconfigs) == 3
    assert all("# renewed" in kubeconfig for kubeconfig in kubeconfigs)
    await bed.run(project, "up", "--yes", "--skip-preview", "--expect-no-changes")

    # Another image is another cluster, and what lives in it is created again.
    await bed.run(project, "config", "set", "image", "two")
    planned = await bed.json(project, "preview", "--json")
    await bed.run(project, "up", "--yes", "--skip-preview")
    done = (await bed.json(project, "stack", "history", "--json"))[0]["resourceChanges"]
    assert planned["changeSummary"] == done == {"replace": 4, "same": 1}
    assert await settings_of(servers[1]) is not None
    await bed.run(project, "destroy", "--yes", "--skip-preview")
    assert not [*(state / "clusters").iterdir()]
