"""A new user's first ten minutes on a terminal, step by step, with a picture of each step."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from capelin.testing.waiting import until
from capelin_embedded.addresses import free_port, is_listening
from capelin_embedded.binaries import TESTED_KUBERNETES

from tests.leftovers import mentioning

from .homes import Home
from .terminal import Terminal

PICTURES = "CAPELIN_PICTURES"
"""The variable that names the folder for the pictures of the tour."""
pytestmark = pytest.mark.timeout(900)

NEW = TESTED_KUBERNETES[-1]
SHOWN_URL = "https://localhost:9443"
"""The address of the extension in the tutorial, and in the pictures."""


@pytest.fixture
def terminal(home: Home, tmp_path: Path) -> Terminal:
    """A terminal of a user with a kubeconfig of their own."""
    pictures = Path(os.environ.get(PICTURES, tmp_path / "pictures"))
    variables = {**home.variables, "KUBECONFIG": str(tmp_path / "user" / "config")}
    shown = {str(tmp_path / "user"): "~/.kube", str(home.folder): "~/.local/state"}
    return Terminal(variables, pictures, shown)


async def step(terminal: Terminal, name: str, *arguments: str) -> str:
    """Run a command of the tour and save its picture."""
    running = await terminal.start(*arguments)
    text = await running.finish()
    terminal.picture(name, f"capelin {' '.join(arguments)}", running.screen)
    return text


@asynccontextmanager
async def extension(project: Path, certificates: Path) -> AsyncGenerator[str]:
    """The URL of the running extension that `capelin new` wrote."""
    port = free_port("127.0.0.1")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "my_hooks", "--host", "127.0.0.1", "--port", str(port)),
        *("--probes-port", str(free_port("127.0.0.1")), "--cert-dir", str(certificates)),
        *("--client-ca", str(certificates / "client-ca.crt")),
        env={**os.environ, "PYTHONPATH": str(project / "src")},
    )
    try:
        await until(lambda: is_listening("127.0.0.1", port))
        yield f"https://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def test_the_first_ten_minutes(home: Home, terminal: Terminal, tmp_path: Path) -> None:
    text = await step(terminal, "01-up", "up", "--workers", "1", "--kubernetes-version", "1.35")
    assert "machines are simulated" in text
    assert "capelin upgrade cluster demo" in text

    text = await step(terminal, "02-merge", "kubeconfig", "--merge")
    assert "capelin-default, capelin-default-demo" in text
    demo = ("kubectl", "--context", "capelin-default-demo")
    assert "Ready" in await step(terminal, "03-nodes", *demo, "get", "nodes")

    await terminal.run(*demo, "create", "deployment", "web", "--image=nginx")
    await terminal.run(
        *demo, "wait", "deployment/web", "--for=condition=Available", "--timeout=60s"
    )
    for refused in (
        ("logs", "deployment/web"),
        ("exec", "deployment/web", "--", "true"),
        ("port-forward", "deployment/web", ":80"),
    ):
        running = await terminal.start(*demo, *refused)
        await running.shows("simulated-by-capelin-nothing-runs-here")
    described = await step(terminal, "05-describe", "clusterctl", "describe", "cluster", "demo")
    assert "CapelinControlPlane default/demo" in described
    assert "New clusterctl version" not in described

    scale = ("scale", "demo", "--workers")
    assert "✔ cluster demo scaled" in await step(terminal, "06-scale", *scale, "2")
    assert "✔ cluster demo scaled" in await terminal.run(*scale, "1")

    certificates, project = tmp_path / "certificates", tmp_path / "my-hooks"
    await terminal.run("new", "extension", "my-hooks", "--folder", str(project))
    await terminal.run("hooks", "certificate", str(certificates))
    async with extension(project, certificates) as url:
        terminal = replace(terminal, shown={**terminal.shown, url: SHOWN_URL})
        register = ("hooks", "register", url, "--name", "my-hooks")
        assert "no-upgrades.my-hooks (BeforeClusterUpgrade)" in await step(
            terminal, "07-register", *register
        )
        annotate = ("kubectl", "annotate", "cluster", "demo")
        await terminal.run(*annotate, "my-hooks/no-upgrades=please")
        upgrade = await terminal.start("upgrade", "cluster", "demo")
        await upgrade.shows("forbids upgrades")
        terminal.picture("08-blocked", "capelin upgrade cluster demo", upgrade.screen)
        await terminal.run(*annotate, "my-hooks/no-upgrades-")
        assert f"upgraded to {NEW}" in await upgrade.finish()
        terminal.picture("09-upgraded", "capelin upgrade cluster demo", upgrade.screen)
        await terminal.run("hooks", "unregister", "my-hooks")
    assert NEW in await terminal.run(*demo, "get", "nodes")
    events = await terminal.run("kubectl", "get", "events")
    for reason in ("Initialized", "MachinesCreated", "ScalingDown", "RollingOut", "RolledOut"):
        assert reason in events

    assert "✔ environment default stopped" in await step(terminal, "10-stop", "stop")
    left = [line for line in mentioning(home.folder, "environ") if "kubectl" not in line]
    assert left == []
    assert "stopped" in await terminal.run("status")
    assert "✔ cluster demo" in await step(terminal, "11-start", "start")
    await terminal.run("status", "--exit-code")
    await step(terminal, "12-status", "status")
    await step(terminal, "13-down", "down", "--yes")
    user = yaml.safe_load((tmp_path / "user" / "config").read_text())
    assert user["contexts"] == []
    assert mentioning(home.folder, "environ") == []
