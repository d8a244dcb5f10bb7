"""The smallest provider of `examples/` with the real core: create, scale, delete."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from capelin.api.capi import Cluster, Machine, MachineDeployment
from capelin.api.core import Namespace
from capelin.client import Client, Config
from capelin.testing.managers import running
from capelin.testing.waiting import until
from capelin.yaml import read_all_yaml, write_yaml

from .homes import Home

EXAMPLE = Path(__file__).parents[2] / "examples/01-provider"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def paper() -> Any:
    sys.path.insert(0, str(EXAMPLE))
    import paper  # noqa: PLC0415 # pyright: ignore[reportMissingImports]

    sys.path.remove(str(EXAMPLE))
    return paper


@pytest.fixture
async def management(home: Home, paper: Any) -> AsyncGenerator[Client]:
    """An environment with the provider for one namespace."""
    up = await home.capelin("up", "--management-only", "--with", "kubeadm-bootstrap")
    assert up.code == 0, up.err
    config = Config.from_kubeconfig(home.environment().kubeconfig)
    async with Client(config) as client:
        for manifest in paper.provider().crds:
            await client.apply(manifest)
        await client.apply(Namespace.of("paper"))
        async with running(
            *(reconciler() for reconciler in paper.RECONCILERS),
            config=config,
            name="capelin-paper",
            namespace="paper",
        ):
            yield client


@pytest.mark.representative
async def test_life_of_a_deployment(management: Client, paper: Any) -> None:
    text = await asyncio.to_thread((EXAMPLE / "cluster.yaml").read_bytes)
    for manifest in read_all_yaml(text):
        manifest["metadata"]["namespace"] = "paper"
        await management.apply(manifest)

    def available(count: int) -> Any:
        async def ready() -> bool:
            found = await management.get(MachineDeployment, "paper", "paper")
            status = found.status
            return (status.replicas, status.available_replicas) == (count, count)

        return ready

    await until(available(2), within=240)
    machines = [one async for one in management.iterate(paper.PaperMachine, "paper")]
    assert {one.spec.provider_id for one in machines} == {
        f"paper:///paper/{one.name}" for one in machines
    }
    names = {
        one.status.node_ref.name
        async for one in management.iterate(Machine, "paper")
        if one.status.node_ref
    }
    assert names == {one.name for one in machines}
    for count in (3, 1):
        scale = {"spec": {"replicas": count}}
        await management.patch(MachineDeployment, "paper", "paper", scale)
        await until(available(count), within=120)
    await management.delete(Cluster, "paper", "paper")

    async def gone() -> bool:
        return await management.find(Cluster, "paper", "paper") is None

    await until(gone, within=180)
    assert [one async for one in management.iterate(paper.PaperMachine, "paper")] == []


async def test_example_passes_the_conformance_suite(
    home: Home, paper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPELIN_ALLOWED_NETWORKS", "127.0.0.0/8")
    await home.up()
    manifests = home.folder / "components.yaml"
    manifests.write_text("---\n".join(write_yaml(obj) for obj in paper.provider().components()))
    ended = await home.capelin(
        "conformance",
        "infra-machine",
        *("-e", "default", "--strict", "-o", "json"),
        *("--manifests", str(manifests)),
        *("--manager", f"env PYTHONPATH={EXAMPLE} {sys.executable} -m paper"),
    )
    assert ended.code == 0, ended.out + ended.err
    outcomes = {result["name"]: result["outcome"] for result in json.loads(ended.out)["results"]}
    assert outcomes["milestone"] == outcomes["quiet"] == "ok"
