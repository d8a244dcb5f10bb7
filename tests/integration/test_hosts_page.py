"""The commands of the page about hosts, typed as they are, with hosts in namespaces."""

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest
from capelin.client import Client, Config
from capelin.testing.waiting import until
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_machine_pool.hosts.api import CapelinHost

from tests.e2e.install_page import Shell, sections
from tests.support.sandbox import Sandbox, sandbox
from tests.support.sshd import Server, new_key, sshd

from .homes import Home
from .test_operator_pages import variables

__all__ = ["variables"]

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "hosts.md").read_text()
COMMANDS = {section.title: section.commands for section in sections(PAGE)}
VERSION = TESTED_KUBERNETES[-1]
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
NAMES = ("rack-1", "rack-2")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.needs_programs("etcd", "kubectl", *(f"{name}@{VERSION}" for name in SERVERS)),
]


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncGenerator[dict[str, tuple[Sandbox, Server]]]:
    """Two hosts with the same user's key."""
    user = new_key()
    async with (
        sandbox(tmp_path, "rack-1") as first,
        sandbox(tmp_path, "rack-2") as second,
        sshd(first, user=user) as one,
        sshd(second, user=user) as two,
    ):
        yield {"rack-1": (first, one), "rack-2": (second, two)}


def block(language: str, title: str) -> str:
    """The first block of a language below a title of the page."""
    section = PAGE.partition(f"## {title}\n")[2]
    return section.partition(f"```{language}\n")[2].partition("```")[0]


async def test_hosts_become_nodes_and_return_with_the_commands_of_the_page(
    home: Home,
    variables: Mapping[str, str],
    hosts: dict[str, tuple[Sandbox, Server]],
    tmp_path: Path,
) -> None:
    ended = await home.capelin("up", "--workers", "0", "--kubernetes-version", VERSION)
    assert ended.code == 0, ended.err
    folder = tmp_path / "user"
    header, *rows = block("csv", "Register hosts").splitlines()
    assert [row.split(",")[0] for row in rows] == [*NAMES]
    lines = [header]
    for name, (_, server) in hosts.items():
        key = " ".join(server.host_key.split()[:2])
        lines.append(f"{name},{server.address},{server.port},root,{key},east,disk=ssd")
    (folder / "hosts.csv").write_text("\n".join(lines))
    (folder / "id_ed25519").write_text(next(iter(hosts.values()))[1].user_key)
    (folder / "pool.yaml").write_text(block("yaml", "Create a pool").replace("v1.36.3", VERSION))
    shell = Shell(folder, variables)

    listed = await shell.run(COMMANDS["Register hosts"])
    assert "2 hosts are valid" in listed
    assert "2 hosts imported" in listed
    checked = await shell.run(COMMANDS["Check hosts"])
    assert "the program kubelet is missing: install it" in checked
    assert "Ready" in await shell.run(COMMANDS["Create a pool"])
    for machine, _ in hosts.values():
        assert "join" in await machine.succeed("cat /var/log/joins")
    await shell.run(COMMANDS["Return hosts"])
    async with Client(
        Config.from_kubeconfig(home.environment().kubeconfig), manager="test"
    ) as client:

        async def phases() -> set[str | None]:
            found = (await client.list(CapelinHost, "default")).items
            return {host.status.phase if host.status else None for host in found}

        await until(phases, lambda found: "Free" in found, within=180)
        await shell.run("kubectl delete machinepool racks --wait=false")
        await until(phases, lambda found: found == {"Free"}, within=180)
        await shell.run(COMMANDS["Repair hosts"])
        await until(phases, lambda found: found == {"Free"}, within=60)
        await shell.run(COMMANDS["Remove hosts"])

        async def is_gone() -> bool:
            return await client.find(CapelinHost, "rack-2", "default") is None

        await until(is_gone)
