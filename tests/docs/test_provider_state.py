"""The state folder of a provider is as docs/providers.md describes it."""

import os
import re
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from capelin.controller import Options, flag, parse
from capelin.provider import Provider
from capelin.testing.waiting import until
from capelin_embedded.management import Environment, Settings, remove_environment, stop_environment
from capelin_embedded.management.components import Placement, component_command
from capelin_embedded.management.providers import python_component
from capelin_embedded.processes import Command, ProcessSpec, Supervisor, kill_all

PAGE = Path(__file__).parents[2] / "docs" / "providers.md"
MANAGER = """
import os, pathlib, subprocess
state = pathlib.Path(os.environ["CAPELIN_STATE_FOLDER"])
state.mkdir(exist_ok=True)
program = subprocess.Popen(["/bin/sleep", "1000"])
(state / "disk").write_text(f"{program.pid}\\n")
program.wait()
"""


def variables_of(environment: Environment) -> dict[str, str]:
    """The environment variables of a provider's manager."""
    component = python_component(
        Provider("cloud", "InfrastructureProvider", version="v0.1.0", module="cloud")
    )
    placement = Placement(
        address="127.64.0.9",
        ports={"health": 31000},
        folder=environment.credentials / component.label,
        workloads=environment.workloads,
        authority=environment.authority,
    )
    return dict(component_command(component, placement).environment)


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncGenerator[Environment]:
    environment = Environment(tmp_path / "lab")
    environment.make_folders()
    yield environment
    await kill_all(environment.folder)


def test_options_of_a_provider_read_its_state_folder(environment: Environment) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (code,) = (block for block in blocks if "CloudOptions" in block)
    names: dict[str, Any] = {"Options": Options, "Path": Path, "dataclass": dataclass, "flag": flag}
    names["__name__"] = __name__
    exec(code, names)  # noqa: S102 - our own page
    options = parse(names["CloudOptions"], "cloud", "", [], variables_of(environment))
    assert options.state_folder == environment.folder / "workloads" / "infrastructure-cloud"


async def test_stop_keeps_the_state_of_a_provider_and_down_removes_it(
    environment: Environment,
) -> None:
    disk = Path(variables_of(environment)["CAPELIN_STATE_FOLDER"], "disk")
    command = Command((sys.executable, "-c", MANAGER), variables_of(environment))
    manager = ProcessSpec(name="infrastructure-cloud", command=command)

    async def start() -> str:
        """Start the manager, and return the pid of the program that it starts."""
        async with Supervisor(environment.processes) as supervisor:
            supervisor.declare(manager)
            return await until(lambda: text_of(disk).strip())

    program = await start()
    assert is_running(program)
    await stop_environment(environment)
    assert not is_running(program)
    assert text_of(disk) == f"{program}\n"

    environment.write_settings(Settings(kubernetes_version="v1.34.4"))
    os.truncate(disk, 0)
    program = await start()
    await remove_environment(environment)
    assert not is_running(program)
    assert not environment.exists


def text_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def is_running(pid: str) -> bool:
    """Whether a process runs: not if only its parent has not yet collected its end."""
    stat = text_of(Path("/proc", pid, "stat"))
    return stat != "" and stat.rpartition(")")[2].split()[0] != "Z"
