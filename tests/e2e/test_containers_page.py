"""The commands of the page about machines that run pods, typed as they are."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from time import monotonic

import pytest
from capelin.api.core import Node
from capelin.client import Client, Config
from capelin.testing.waiting import until
from capelin_embedded.binaries import Binaries

from tests.integration.homes import Home
from tests.leftovers import mentioning

from .install_page import Shell, sections, with_values
from .kind_cluster import IMAGE
from .machines import KUBECTL, docker, node_is_ready

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "containers.md").read_text()
COMMANDS = {section.title: section.commands for section in sections(PAGE)}
LABEL = "capelin.cluster.x-k8s.io/provider"
Record = Callable[[str, object], None]

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.needs_programs(
        "etcd",
        "cluster-api-controller",
        "kubeadm-bootstrap-controller",
        *(
            f"{program}@{KUBECTL}"
            for program in (
                *("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
                "kubectl",
            )
        ),
    ),
]


@pytest.fixture
async def home(tmp_path: Path) -> AsyncGenerator[Home]:
    """A home whose environment is always removed with its containers."""
    home = Home(tmp_path / "home")
    yield home
    if home.environment().exists:
        await home.capelin("down", "--yes")
    assert await containers(home) == []
    assert mentioning(tmp_path, "environ") == []


@pytest.fixture
async def shell(home: Home, tmp_path: Path) -> Shell:
    """A shell of a user with `capelin` and kubectl on the PATH."""
    programs, user = tmp_path / "programs", tmp_path / "user"
    programs.mkdir()
    user.mkdir()
    (programs / "kubectl").symlink_to(await Binaries().path("kubectl", KUBECTL))
    path = f"{programs}:{Path(sys.executable).parent}:{home.variables['PATH']}"
    return Shell(user, {**home.variables, "PATH": path, "CAPELIN_MACHINE_IMAGE": IMAGE})


async def containers(home: Home) -> list[str]:
    """The ids of the containers of an environment."""
    # One command, because a container can disappear between two.
    line = f'{{{{.ID}}}} {{{{.Label "{LABEL}"}}}}'
    listed = await docker(
        "ps", "--all", "--no-trunc", f"--filter=label={LABEL}", f"--format={line}"
    )
    folder = str(home.environment().workloads)
    return [each.split()[0] for each in listed.splitlines() if folder in each]


async def test_pods_run_with_the_commands_of_the_page(
    home: Home, shell: Shell, record_property: Record
) -> None:
    record_property("load before", os.getloadavg()[0])
    began = monotonic()
    started = await shell.run(COMMANDS["Start"])
    record_property("seconds: up with 2 Ready nodes", round(monotonic() - began, 1))
    assert "machines are containers in which pods run" in started
    assert len(await containers(home)) == 2

    first, *_ = await containers(home)
    images = json.loads(await docker("exec", first, "crictl", "images", "--output=json"))
    tags = [tag for image in images["images"] for tag in image["repoTags"]]
    helper = next(tag for tag in tags if "local-path-helper" in tag)
    began = monotonic()
    output = await shell.run(with_values(COMMANDS["Run a pod"], {"POD_IMAGE": helper}))
    record_property("seconds: a pod with a service", round(monotonic() - began, 1))
    assert "serving" in output
    assert output.endswith("hello\n")

    await shell.run(COMMANDS["Scale and stop"])
    config = await shell.run("cat $KUBECONFIG")
    async with Client(Config.from_kubeconfig(config.encode()), manager="e2e") as workload:

        async def ready() -> int:
            return sum(map(node_is_ready, (await workload.list(Node)).items))

        await until(ready, lambda count: count == 2, within=120)

    assert len((await shell.run(COMMANDS["Remove"])).splitlines()) > 1
    assert await containers(home) == []


async def test_killed_container_is_reported_and_replaced(home: Home, shell: Shell) -> None:
    await shell.run("capelin up --machines containers --workers 1")
    await shell.run("export KUBECONFIG=$(capelin kubeconfig)")
    (container,) = await containers(home)
    await docker("kill", container)
    reasons = "kubectl get capelinmachine -o jsonpath='{.items[0].status.conditions[*].reason}'"
    await until(lambda: shell.run(reasons), lambda text: "ContainerEnded" in text, within=60)
    await docker("rm", "--force", "--volumes", container)

    async def is_replaced() -> bool:
        found = await containers(home)
        return len(found) == 1 and container not in found

    await until(is_replaced, within=120)
    await asyncio.wait_for(shell.run("capelin wait cluster demo"), 300)


async def test_dead_machine_is_reported_and_replaced(home: Home, shell: Shell) -> None:
    started = await shell.run("capelin up --machines auto --workers 1")
    assert f"machines are containers of {IMAGE}" in started
    await shell.run("export KUBECONFIG=$(capelin kubeconfig)")
    before = set(await containers(home))
    names = "kubectl get cluster demo -o jsonpath='{.spec.topology.variables[*].name}'"
    path = f"/spec/topology/variables/{(await shell.run(names)).split().index('machines')}"
    patch = json.dumps([{"op": "add", "path": f"{path}/value/dies", "value": 100}])
    await shell.run(f"kubectl patch cluster demo --type=json -p '{patch}'")

    async def paused() -> list[str]:
        new = [one for one in await containers(home) if one not in before]
        listed = await docker("ps", "--no-trunc", "--quiet", "--filter=status=paused")
        return [one for one in new if one in listed]

    (container, *_) = await until(paused, within=300)
    name = (await docker("inspect", "--format={{.Config.Hostname}}", container)).strip()
    node = f"capelin kubectl -c demo get node {name} -o jsonpath='{{.status.conditions}}'"
    await until(lambda: shell.run(node), lambda text: "NodeStatusUnknown" in text, within=120)
    # The advice of the page.
    await shell.run(f"capelin kubectl delete machine {name} --wait=false")

    async def is_replaced() -> bool:
        found = set(await containers(home))
        return container not in found and bool(found - before)

    await until(is_replaced, within=180)
