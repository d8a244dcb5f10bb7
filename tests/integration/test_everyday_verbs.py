"""The command from nothing to a demo cluster, and a cluster's whole life by its verbs."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from capelin.api.capi import Cluster
from capelin.client import ApiError, Client, Config
from capelin.embedded.binaries import KNOWN_KUBERNETES, TESTED_KUBERNETES

from tests.leftovers import mentioning

from .homes import Home

pytestmark = pytest.mark.timeout(900)

OLD, NEW = TESTED_KUBERNETES[0], TESTED_KUBERNETES[-1]
RunProgram = Callable[..., Awaitable[str]]


async def said(home: Home, *arguments: str) -> str:
    """What a command prints that does what it is told."""
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


async def test_a_cluster_goes_all_its_way_by_the_command(
    home: Home, run_program: RunProgram
) -> None:
    # A file, not $(...): KUBECONFIG is never left empty.
    assert "kubeconfigs/default.demo" in await said(home, "up", "--workers", "1")
    status = json.loads(await said(home, "status", "-o", "json"))
    assert [each["state"] for each in status] == ["up"]

    unknown = await home.capelin("create", "cluster", "two", "--kubernetes-version", "v9.9.9")
    assert unknown.code == 2
    assert f"Known: {', '.join(KNOWN_KUBERNETES)}." in unknown.err
    late = await home.capelin("upgrade", "cluster", "demo", "v1.99.0")
    assert late.code == 2
    assert f"Known: {', '.join(KNOWN_KUBERNETES)}." in late.err

    # Admission refuses it too, whoever asks.
    with pytest.raises(ApiError, match=r"v1\.99\.0 is not a Kubernetes"):
        await set_version(home, "demo", "v1.99.0")

    shape = ("--kubernetes-version", OLD, "--workers", "1")
    shown = cast(
        "dict[str, Any]",
        yaml.safe_load(await said(home, "create", "cluster", "two", *shape, "--dry-run")),
    )
    assert (shown["kind"], shown["metadata"]["name"]) == ("Cluster", "two")
    assert await clusters(home) == ["demo"]
    await said(home, "create", "cluster", "two", *shape)
    again = await home.capelin("create", "cluster", "two", *shape)
    assert again.code == 2
    assert "There is a cluster two" in again.err

    kubeconfig = Path((await said(home, "kubeconfig", "two")).strip())
    raw = yaml.safe_load(await said(home, "kubeconfig", "two", "--raw"))
    assert raw["current-context"] == "capelin-default-two"
    assert raw["clusters"][0]["cluster"]["server"].startswith("https://127.")
    versions = ("get", "nodes", "-o", "jsonpath={.items[*].status.nodeInfo.kubeletVersion}")
    assert await run_program(kubeconfig, "kubectl", *versions) == OLD

    assert NEW in await said(home, "upgrade", "cluster", "two", NEW, "--dry-run")
    assert await run_program(kubeconfig, "kubectl", *versions) == OLD
    # The next minor version is meant where none is named.
    await said(home, "upgrade", "cluster", "two")
    assert await run_program(kubeconfig, "kubectl", *versions) == NEW
    back = await home.capelin("upgrade", "cluster", "two", OLD)
    assert back.code == 2

    await said(home, "delete", "cluster", "two", "--yes", "--dry-run")
    assert await clusters(home) == ["demo", "two"]
    await said(home, "delete", "cluster", "two", "--yes")
    assert await clusters(home) == ["demo"]

    await said(home, "down", "--all", "--yes")
    assert mentioning(home.folder, "environ") == []
    assert list((home.folder / "capelin").iterdir()) == []


async def test_a_cluster_is_created_where_there_was_no_class_for_it(home: Home) -> None:
    await said(home, "up", "--management-only")
    config = yaml.safe_load(await said(home, "kubeconfig", "--raw"))
    assert config["current-context"] == "capelin-default"
    await said(home, "create", "cluster", "one", "--workers", "1")
    assert await clusters(home) == ["one"]
    await said(home, "status", "--exit-code")
    await said(home, "scale", "one", "--control-plane-replicas", "2")
    status = json.loads(await said(home, "status", "-o", "json"))
    children = status[0]["clusters"][0]["children"]
    replicas = {each["object"].partition("/")[0]: each.get("replicas") for each in children}
    assert replicas["CapelinControlPlane"] == "2/2"
