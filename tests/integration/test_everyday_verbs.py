"""The command from an empty home to a demo cluster, and all verbs of a cluster's life."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from capelin.api.capi import Cluster, ClusterClass
from capelin.client import ApiError, Client, Config
from capelin_embedded.binaries import KNOWN_KUBERNETES, TESTED_KUBERNETES
from capelin_machine_pool.api import CapelinMachinePool

from tests.leftovers import mentioning

from .homes import Home

pytestmark = pytest.mark.timeout(900)

OLD, NEW = TESTED_KUBERNETES[0], TESTED_KUBERNETES[-1]
RunProgram = Callable[..., Awaitable[str]]


async def output_of(home: Home, *arguments: str) -> str:
    """Output of a successful command."""
    ended = await home.capelin(*arguments)
    assert ended.code == 0, ended.err
    return ended.out


async def clusters(home: Home) -> list[str]:
    config = Config.from_kubeconfig(home.environment().kubeconfig)
    async with Client(config) as client:
        return sorted(each.name for each in (await client.list(Cluster)).items)


async def set_version(home: Home, name: str, version: str) -> None:
    patch = {"spec": {"topology": {"version": version}}}
    async with Client(Config.from_kubeconfig(home.environment().kubeconfig)) as client:
        await client.patch(Cluster, name, "default", patch)


async def upgrade_and_resume(home: Home, name: str) -> None:
    """Upgrade a cluster without waiting, then wait for it with `upgrade` and `wait`."""
    # Without a version, upgrade uses the next minor version.
    begun = await output_of(home, "upgrade", "cluster", name, "--no-wait")
    assert f"Cluster API upgrades cluster {name} to {NEW}." in begun
    assert f"Wait for it with capelin wait cluster {name}." in begun
    # It waits for the running upgrade. After its end, it would begin the next one.
    resumed = await home.start("upgrade", "cluster", name)
    late = await home.capelin("wait", "cluster", name, "--within", "1")
    assert late.code == 6
    assert f"capelin explain cluster {name}" in late.err
    assert f"wait again with capelin wait cluster {name}." in late.err
    # On a busy machine, the upgrade may be done before this command has started.
    followed = await output_of(home, "upgrade", "cluster", name, NEW)
    done = (f"cluster {name} upgraded to {NEW}", f"Cluster {name} runs {NEW} already.")
    assert any(text in followed for text in done)
    assert await resumed.wait() == 0
    assert await output_of(home, "upgrade", "cluster", name, NEW) == (
        f"Cluster {name} runs {NEW} already.\n"
    )
    assert f"cluster {name} ready" in await output_of(home, "wait", "cluster", name)


@pytest.mark.representative
async def test_life_of_a_cluster_by_commands(home: Home, run_program: RunProgram) -> None:
    # A file and not $(...), so that KUBECONFIG is never empty.
    assert "kubeconfigs/default.demo" in await output_of(home, "up", "--workers", "1")
    status = json.loads(await output_of(home, "status", "-o", "json"))
    assert [each["state"] for each in status] == ["up"]

    unknown = await home.capelin("create", "cluster", "two", "--kubernetes-version", "v9.9.9")
    assert unknown.code == 2
    assert f"Known: {', '.join(KNOWN_KUBERNETES)}." in unknown.err
    late = await home.capelin("upgrade", "cluster", "demo", "v1.99.0")
    assert late.code == 2
    assert f"Known: {', '.join(KNOWN_KUBERNETES)}." in late.err

    # The admission policy also rejects it.
    with pytest.raises(ApiError, match=r"v1\.99\.0 is not a Kubernetes"):
        await set_version(home, "demo", "v1.99.0")

    # An upgrade takes longer than the start of the next command.
    slow = ("--set", "machines.startupSeconds=15")
    shape = ("--kubernetes-version", OLD, "--workers", "1", *slow)
    shown = cast(
        "dict[str, Any]",
        yaml.safe_load(await output_of(home, "create", "cluster", "two", *shape, "--dry-run")),
    )
    assert (shown["kind"], shown["metadata"]["name"]) == ("Cluster", "two")
    assert await clusters(home) == ["demo"]
    await output_of(home, "create", "cluster", "two", *shape)
    again = await home.capelin("create", "cluster", "two", *shape)
    assert again.code == 2
    assert "There is a cluster two" in again.err

    invalid = await home.capelin("create", "cluster", "three", "--set", "machines.dies=x")
    assert invalid.code == 2
    assert "machines.dies takes an integer from 0 to 100." in invalid.err
    assert await clusters(home) == ["demo", "two"]

    kubeconfig = Path((await output_of(home, "kubeconfig", "two")).strip())
    raw = yaml.safe_load(await output_of(home, "kubeconfig", "two", "--raw"))
    assert raw["current-context"] == "capelin-default-two"
    assert raw["clusters"][0]["cluster"]["server"].startswith("https://127.")
    versions = ("get", "nodes", "-o", "jsonpath={.items[*].status.nodeInfo.kubeletVersion}")
    assert await run_program(kubeconfig, "kubectl", *versions) == OLD

    await gives_a_user_access(home, kubeconfig, run_program)
    assert NEW in await output_of(home, "upgrade", "cluster", "two", NEW, "--dry-run")
    assert await run_program(kubeconfig, "kubectl", *versions) == OLD
    await upgrade_and_resume(home, "two")
    assert await run_program(kubeconfig, "kubectl", *versions) == NEW
    back = await home.capelin("upgrade", "cluster", "two", OLD)
    assert back.code == 2

    await output_of(home, "delete", "cluster", "two", "--yes", "--dry-run")
    assert await clusters(home) == ["demo", "two"]
    begun = await output_of(home, "delete", "cluster", "two", "--yes", "--no-wait")
    assert "Wait for it with capelin wait cluster two --deleted." in begun
    await output_of(home, "wait", "cluster", "two", "--deleted")
    assert await clusters(home) == ["demo"]

    await output_of(home, "down", "--all", "--yes")
    assert mentioning(home.folder, "environ") == []
    assert list((home.folder / "capelin").iterdir()) == []


async def gives_a_user_access(home: Home, administrator: Path, run_program: RunProgram) -> None:
    named = ("two", "--user", "alice", "--group", "dev", "--group", "ops", "--for", "20m")
    made = await home.capelin("kubeconfig", *named)
    assert "The certificate of alice is valid until" in made.err
    shown = await run_program(Path(made.out.strip()), "kubectl", "auth", "whoami", "-o", "json")
    person = json.loads(shown)["status"]["userInfo"]
    assert person["username"] == "alice"
    assert person["groups"] == ["dev", "ops", "system:authenticated"]
    assert await run_program(administrator, "kubectl", "get", "csr", "-o", "name") == ""


FILE = f"""
clusters:
  - name: described
    namespace: team
    kubernetesVersion: {OLD}
    workers: 1
    variables: {{machines: {{startupSeconds: 1}}}}
"""


MOTTO = {"name": "motto", "required": False, "schema": {"openAPIV3Schema": {"type": "string"}}}


async def test_create_installs_a_missing_class(home: Home, tmp_path: Path) -> None:
    await output_of(home, "up", "--management-only")
    kubeconfig = yaml.safe_load(await output_of(home, "kubeconfig", "--raw"))
    assert kubeconfig["current-context"] == "capelin-default"

    # A file creates its clusters and their namespaces.
    (tmp_path / "capelin.yaml").write_text(FILE)
    shown = await output_of(home, "up", "-f", str(tmp_path / "capelin.yaml"))
    assert "kubeconfigs/team.described" in shown
    assert "upgrade cluster described -n team" in shown
    config = Config.from_kubeconfig(home.environment().kubeconfig)
    async with Client(config, manager="somebody") as client:
        (pool,) = (await client.list(CapelinMachinePool, "team")).items
        add = {"op": "add", "path": "/spec/variables/-", "value": MOTTO}
        await client.patch(ClusterClass, "capelin", "team", [add], type="json")
    assert pool.spec.simulated.startup_seconds == 1

    # A repeated up keeps the changes of users.
    again = await output_of(home, "up", "-f", str(tmp_path / "capelin.yaml"))
    assert "ClusterClass capelin was changed by another user, and stays as it is." in again

    nowhere = await home.capelin("create", "cluster", "one", "--namespace", "nope")
    assert nowhere.code == 4
    assert "Namespace nope does not exist." in nowhere.err
    await output_of(home, "create", "cluster", "one", "--workers", "1")
    assert await clusters(home) == ["described", "one"]
    await output_of(home, "status", "--exit-code")
    await output_of(home, "scale", "one", "--control-plane-replicas", "2")
    status = json.loads(await output_of(home, "status", "-o", "json"))
    (cluster,) = [each for each in status[0]["clusters"] if each["object"] == "Cluster/one"]
    children = cluster["children"]
    replicas = {each["object"].partition("/")[0]: each.get("replicas") for each in children}
    assert replicas["CapelinControlPlane"] == "2/2"
