"""`capelin explain` names the object and the responsible of real failures."""

import asyncio
import signal
from collections.abc import AsyncGenerator

import pytest
from capelin.api.capi import ExtensionConfig
from capelin.api.core import Namespace
from capelin.client import Client, Config, WorkloadClients
from capelin.testing.waiting import until
from capelin_cli.explain.model import Explanation
from capelin_cli.explain.reading import read_facts
from capelin_cli.explain.walk import explain
from capelin_embedded.management import (
    Environment,
    required_programs,
    workload_programs,
)
from capelin_embedded.processes import Process

from .failures import FAILURES, Failure, Scene
from .homes import management_environment
from .pools import VERSION

PROVIDERS = ("kubeadm-bootstrap", "lifecycle")
WITHIN = 120
AT_ONCE = 4
pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.needs_programs(*required_programs(VERSION, PROVIDERS), *workload_programs(VERSION)),
]
Scenes = dict[str, "asyncio.Task[Scene]"]


@pytest.fixture(scope="module")
async def environment(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Environment]:
    folder = tmp_path_factory.mktemp("explain")
    async with management_environment(folder, VERSION, PROVIDERS) as environment:
        yield environment


@pytest.fixture(scope="module")
async def client(environment: Environment) -> AsyncGenerator[Client]:
    async with Client(Config.from_kubeconfig(environment.kubeconfig)) as client:
        yield client


@pytest.fixture(scope="module")
async def scenes(client: Client, request: pytest.FixtureRequest) -> AsyncGenerator[Scenes]:
    """The failures of the selected tests, a few at a time."""
    selected = {item.name for item in request.session.items}
    slots, workloads = asyncio.Semaphore(AT_ONCE), WorkloadClients(client)

    async def made(failure: Failure) -> Scene:
        scene = Scene(client, workloads, failure.name)
        async with slots:
            await client.apply(Namespace.of(failure.name))
            await failure.make(scene)
        return scene

    tasks = {
        failure.name: asyncio.create_task(made(failure))
        for failure in FAILURES
        if f"test_explain_names_the_cause[{failure.name}]" in selected
    }
    yield tasks
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    await workloads.close()


async def settled_explanation(scene: Scene, failure: Failure) -> Explanation:
    """The explanation that names the failure, or the last one."""
    explanation = await scene.explanation()
    try:
        async with asyncio.timeout(WITHIN):
            while not failure.is_named(explanation):
                await asyncio.sleep(0.5)
                explanation = await scene.explanation()
    except TimeoutError:
        pass
    return explanation


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.name)
async def test_explain_names_the_cause(scenes: Scenes, failure: Failure) -> None:
    scene = await scenes[failure.name]
    explanation = await settled_explanation(scene, failure)
    assert failure.is_named(explanation), explanation.model_dump_json(indent=1)
    chain = explanation.chains[0]
    assert chain.links[0].object.kind == "Cluster"
    assert chain.command
    # Its processes are not needed any more.
    await scene.sleep()


async def test_explain_reports_nothing_about_a_ready_cluster(
    client: Client, scenes: Scenes, environment: Environment
) -> None:
    await asyncio.gather(*scenes.values())
    workloads = WorkloadClients(client)
    scene = Scene(client, workloads, "healthy")
    await client.apply(Namespace.of(scene.name))
    await scene.with_workers()
    facts = await read_facts(client, scene.name, scene.name, environment)
    assert facts is not None
    explanation = explain(facts)
    assert (explanation.state, explanation.chains) == ("Ready", [])
    await workloads.close()


async def test_explain_names_a_controller_that_crashes(
    client: Client, scenes: Scenes, environment: Environment
) -> None:
    await asyncio.gather(*scenes.values())
    label, name = "infrastructure-capelin", "crashing"
    expected = [("ControllerNotRunning", f"Process {label}")]

    def crash() -> None:
        process = Process.adopt(environment.processes, label)
        if process is not None:
            process.signal(signal.SIGKILL)

    async def is_named() -> bool:
        crash()
        facts = await read_facts(client, name, name, environment)
        assert facts is not None
        found = explain(facts).chains
        return [(chain.cause, str(chain.object)) for chain in found] == expected

    await client.apply(Namespace.of(name))
    crash()
    await Scene(client, WorkloadClients(client), name).create()
    await until(is_named, within=WITHIN)


async def test_explain_names_the_extension_that_blocks_the_start_of_core(
    client: Client, scenes: Scenes, environment: Environment
) -> None:
    await asyncio.gather(*scenes.values())
    name = "blocked-core"
    await client.apply(Namespace.of(name))
    workloads = WorkloadClients(client)
    # Without core, the API server accepts no Cluster.
    await Scene(client, workloads, name).create(leave_out="CapelinControlPlane")
    await client.apply(
        {
            "apiVersion": ExtensionConfig.resource.api_version,
            "kind": ExtensionConfig.resource.kind,
            "metadata": {"name": "silent"},
            "spec": {"clientConfig": {"url": "https://127.0.0.1:9", "caBundle": "YQ=="}},
        }
    )
    core = Process.adopt(environment.processes, "cluster-api")
    assert core is not None
    core.signal(signal.SIGKILL)

    async def is_named() -> bool:
        facts = await read_facts(client, name, name, environment)
        assert facts is not None
        found = [(chain.cause, str(chain.object)) for chain in explain(facts).chains]
        return found == [("ExtensionBlocksCore", "ExtensionConfig silent")]

    await until(is_named, within=WITHIN)
    await client.delete(ExtensionConfig, "silent")
    await workloads.close()
