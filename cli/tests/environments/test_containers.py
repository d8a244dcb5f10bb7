"""Machines that are containers: suitable engines and images, and the settings of their cluster."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from capelin.errors import InvalidInputError, UnfitMachineError
from capelin_cli.clusters.demo import ClusterRequest, demo_class, node_addons, on_containers
from capelin_cli.clusters.topology import ClusterOptions, new_cluster
from capelin_cli.environments.containers import (
    ContainerMachines,
    Machines,
    engine_of,
    find_container_machines,
    pause_containers,
    remove_containers,
    version_for,
)
from capelin_cli.terminal.checklist import Checklist
from capelin_embedded.management import Environment, Settings
from capelin_machine_pool.containers.engine import PROVIDER_LABEL, Engine
from rich.console import Console

from tests.support.fake_engine import FakeEngine, fake_engine

IMAGE = "localhost/node:v1"
FILES = {
    "/kind/version": b"v1.34.4",
    "/kind/manifests/default-cni.yaml": b"subnet: {{ .PodSubnet }}",
    "/kind/manifests/default-storage.yaml": b"kind: StorageClass",
}
MACHINES = ContainerMachines(
    images=(IMAGE,),
    socket="/run/engine.sock",
    network="bridge",
    gateway="127.0.0.1",
    kubernetes_version="v1.34.4",
    manifests={Path(path).name: content.decode() for path, content in FILES.items()},
)


@pytest.fixture
def state() -> FakeEngine:
    return FakeEngine(images={IMAGE}, files={**FILES}, gateways={"bridge": "127.0.0.1"})


@pytest.fixture
async def engine(state: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Engine]:
    async with fake_engine(state) as client:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{client.socket}")
        yield client


async def find(machines: Machines, image: str = IMAGE) -> tuple[ContainerMachines | None, str]:
    """The machines, and the detail of the checklist."""
    checklist = Checklist(Console(quiet=True))
    found = await find_container_machines(machines, image, checklist)
    return found, checklist.lines[0].detail if checklist.lines else ""


@pytest.mark.parametrize("machines", ["containers", "auto"])
async def test_suitable_engine_is_used(engine: Engine, machines: Machines) -> None:
    found, detail = await find(machines)
    assert found == replace(
        MACHINES,
        socket=engine.socket,
        manifests={name: MACHINES.manifests[name] for name in sorted(MACHINES.manifests)[:2]},
    )
    assert detail == f"machines are containers of {IMAGE}"


async def test_images_of_later_versions_are_for_upgrades(engine: Engine, state: FakeEngine) -> None:
    later = "localhost/node:v1.35.4"
    state.images = {IMAGE, later}
    found, detail = await find("containers", f"{IMAGE},{later}")
    assert found is not None
    assert found.images == (IMAGE, later)
    assert found.variables({})["CAPELIN_CONTAINER_IMAGES"] == f"{IMAGE},{later}"
    assert detail == f"machines are containers of {IMAGE}, {later}"
    assert engine.socket == found.socket


async def test_simulated_machines_need_no_engine(state: FakeEngine) -> None:
    assert await find("simulated") == (None, "")
    assert state.requests == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"images": set[str]()}, f"the engine cannot pull {IMAGE}: pull access denied"),
        ({"gateways": dict[str, str]()}, "no default network with a gateway"),
        ({"gateways": {"bridge": "192.0.2.1"}}, "control planes cannot listen at 192.0.2.1"),
        ({"files": dict[str, bytes]()}, "is not a node image of kind: no /kind/version"),
    ],
)
@pytest.mark.usefixtures("engine")
async def test_unsuitable_engine_is_explained(
    state: FakeEngine, change: dict[str, Any], reason: str
) -> None:
    for name, value in change.items():
        setattr(state, name, value)
    found, detail = await find("auto")
    assert found is None
    assert detail.startswith("machines are simulated: ")
    assert reason in detail
    with pytest.raises(UnfitMachineError, match=reason):
        await find("containers")
    assert state.containers == {}


async def test_missing_engine_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2375")
    with pytest.raises(UnfitMachineError, match="no container engine answers at tcp:"):
        await find("containers")


@pytest.mark.parametrize(
    ("image", "requested", "version"),
    [
        ("v1.34.4", None, "v1.34.4"),
        ("v1.34.0", None, "v1.34.4"),
        ("v1.34.0", "v1.35.4", "v1.35.4"),
    ],
)
def test_cluster_has_the_version_of_its_image(
    image: str, requested: str | None, version: str
) -> None:
    assert version_for(image, requested) == version


@pytest.mark.parametrize(("image", "requested"), [("v1.34.4", "v1.33.13"), ("v1.99.0", None)])
def test_nodes_are_never_newer_than_their_control_plane(image: str, requested: str | None) -> None:
    with pytest.raises(InvalidInputError):
        version_for(image, requested)


def test_cluster_on_containers_has_an_endpoint_that_they_reach() -> None:
    request = on_containers(ClusterRequest("demo", "default", ClusterOptions()), MACHINES, None)
    cluster = new_cluster("demo", "default", "v1.34.4", request.options, demo_class())
    assert cluster["spec"]["controlPlaneEndpoint"]["host"] == "127.0.0.1"
    assert cluster["spec"]["topology"]["variables"] == [
        {"name": "containers", "value": {"image": IMAGE}}
    ]
    (label,) = cluster["metadata"]["labels"].items()
    config_map, resource_set = request.manifests
    assert resource_set["spec"]["clusterSelector"]["matchLabels"] == dict([label])
    assert resource_set["spec"]["resources"][0]["name"] == config_map["metadata"]["name"]


def test_addons_are_those_of_the_image_for_the_pod_network() -> None:
    config_map = node_addons("team", MACHINES.manifests)[0]
    assert config_map["data"] == {
        "default-cni.yaml": "subnet: 10.244.0.0/16",
        "default-storage.yaml": "kind: StorageClass",
    }


def test_managers_get_the_engine_the_image_and_the_endpoint() -> None:
    assert MACHINES.variables({"CAPELIN_ENDPOINT_NETWORKS": "192.0.2.0/24"}) == {
        "CAPELIN_CONTAINER_IMAGES": IMAGE,
        "CAPELIN_CONTAINER_ENGINE": "/run/engine.sock",
        "CAPELIN_CONTAINER_NETWORK": "bridge",
        "CAPELIN_ENDPOINT_NETWORKS": "127.0.0.1,192.0.2.0/24",
    }


async def test_only_the_containers_of_an_environment_are_paused_and_removed(
    engine: Engine, state: FakeEngine, tmp_path: Path
) -> None:
    environment = Environment(tmp_path / "demo")
    environment.make_folders()
    assert engine_of(environment) is None
    variables = replace(MACHINES, socket=engine.socket).variables({})
    environment.write_settings(Settings(kubernetes_version="v1.34.4", variables=variables))
    found = engine_of(environment)
    assert found is not None
    folders = {
        "own": environment.workloads / "machines",
        "other": tmp_path / "demo-2" / "workloads",
    }
    for name, folder in folders.items():
        await engine.start(await engine.create({"Labels": {PROVIDER_LABEL: str(folder)}}, name))
    await pause_containers(environment, found)
    states = {name: each["State"]["Status"] for name, each in state.containers.items()}
    assert states == {"own": "paused", "other": "running"}
    await remove_containers(environment, found)
    assert list(state.containers) == ["other"]
