"""A Pulumi engine of its own for each test: the CLI, a state, the plugins on PATH."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from capelin_embedded.binaries import Binaries, Component, Project

from .kubernetes_plugin import kubernetes_plugin

Record = Callable[[str, object], None]
ROOT = Path(__file__).parents[2]
_EXECUTOR = Path("python", "cmd", "pulumi-language-python-exec")
_STAMPS = {"github.com/pulumi/pulumi/sdk/v3/go/common/version.Version": "{version}"}
_MODULES = Path(__file__).parent / "modules"
PULUMI = Component(
    "pulumi",
    Project("pulumi", "Pulumi", sources={}, stamps=_STAMPS, modules=_MODULES),
    "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
    version_arguments=("version",),
)
# Later versions of the host are in no Go module.
PULUMI_PYTHON = Component(
    "pulumi-language-python",
    Project(
        "pulumi-python",
        "Pulumi's host of Python programs",
        sources={"pulumi-python": "github.com/pulumi/pulumi/sdk/v3"},
        stamps=_STAMPS,
        modules=_MODULES,
    ),
    "github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python",
)


@dataclass(slots=True)
class Run:
    """Result of a command of the CLI."""

    status: int
    output: str
    seconds: float


@dataclass(slots=True)
class Bed:
    """The CLI and a folder with the state of the engine."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    async def create(cls, folder: Path) -> "Bed":
        """Install the CLI, the host of Python programs and the plugins."""
        binaries = Binaries()
        programs = await binaries.fetch([PULUMI, PULUMI_PYTHON])
        commands = folder / "bin"
        for name in ("state", "home", "bin", "xdg"):
            (folder / name).mkdir()
        for name, binary in programs.items():
            # The host searches its executor in its own folder, so a link is not enough.
            shutil.copy(binary.path, commands / name)
        source = await binaries.module_dir(PULUMI_PYTHON.project)
        # Files of modules lack the right mode.
        shutil.copy(source / _EXECUTOR, commands)
        (commands / _EXECUTOR.name).chmod(0o755)
        plugin = await kubernetes_plugin()
        (commands / plugin.name).symlink_to(plugin)
        script(
            commands / "pulumi-resource-capelin",
            f'exec {sys.executable} -c "from capelin_infra.plugin import main; main()" "$@"',
        )
        # As if no virtual environment was activated.
        scripts = Path(sys.executable).parent
        for name in ("python", "python3"):
            script(commands / name, f'exec {sys.executable} "$@"')
        paths = [path for path in os.environ["PATH"].split(":") if Path(path) != scripts]
        variables = {
            **os.environ,
            "PATH": ":".join([str(commands), *paths]),
            # The host asks pip for the packages of an environment, which may have none.
            "PYTHONPATH": str(Path(__file__).with_name("without_pip")),
            "PULUMI_HOME": str(folder / "home"),
            "PULUMI_BACKEND_URL": f"file://{folder / 'state'}",
            "PULUMI_CONFIG_PASSPHRASE": "test",
            "PULUMI_SKIP_UPDATE_CHECK": "1",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "1",
            "XDG_STATE_HOME": str(folder / "xdg"),
        }
        return cls(folder, variables)

    async def start(self, project: Path, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            self.folder / "bin" / "pulumi",
            *arguments,
            "--non-interactive",
            cwd=project,
            env=self.variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def run(self, project: Path, *arguments: str, fails: bool = False) -> Run:
        began = monotonic()
        return await _ended(await self.start(project, *arguments), began, fails=fails)

    async def shell(self, script: str, folder: Path) -> Run:
        began = monotonic()
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", script),
            cwd=folder,
            env=self.variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        return await _ended(process, began)

    async def json(self, project: Path, *arguments: str) -> Any:
        """The output of a command that prints JSON."""
        return json.loads((await self.run(project, *arguments)).output)

    async def outputs(self, project: Path) -> dict[str, Any]:
        """The outputs of the stack, secrets in plain text."""
        return await self.json(project, "stack", "output", "--json", "--show-secrets")

    async def resources(self, project: Path, *arguments: str) -> list[dict[str, Any]]:
        exported = await self.json(project, "stack", "export", *arguments)
        return exported["deployment"].get("resources", [])


async def _ended(process: asyncio.subprocess.Process, began: float, *, fails: bool = False) -> Run:
    output, _ = await process.communicate()
    text = output.decode(errors="replace")
    assert (process.returncode != 0) is fails, text
    return Run(process.returncode or 0, text, monotonic() - began)


def script(path: Path, line: str) -> None:
    """Write a shell script of one line."""
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


async def interrupted(process: asyncio.subprocess.Process) -> str:
    """Interrupt a command like Ctrl-C and return its output."""
    process.send_signal(signal.SIGINT)
    output, _ = await process.communicate()
    return output.decode(errors="replace")


def copied_project(source: Path, to: Path, changes: Sequence[tuple[str, str]] = ()) -> Path:
    """A copy of a project, since stacks write their settings to its folder."""
    shutil.copytree(source, to, ignore=shutil.ignore_patterns("Pulumi.*.yaml", "__pycache__"))
    for old, new in changes:
        file = to / "Pulumi.yaml"
        file.write_text(file.read_text().replace(old, new))
    return to
