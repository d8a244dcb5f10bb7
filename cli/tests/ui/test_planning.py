"""Plans for the page are processes."""

import asyncio
import sys
from pathlib import Path

import pytest
from capelin.errors import NotReadyError, UserError
from capelin.testing.waiting import until
from capelin_cli.ui.command import Planning, UiOptions, command_options

KEY = ("shop", "prod")


def script(text: str) -> Planning:
    return Planning((sys.executable, "-c", f"import os, sys, time\n{text}"))


async def test_a_plan_has_the_cluster_and_the_version() -> None:
    plan = await script("print(sys.argv[1:])").plan(KEY, "v1.34.4")
    wanted = ["prod", "--namespace=shop", "--version=v1.34.4", "--output=json"]
    assert plan.decode().strip() == str(wanted)


async def test_a_plan_that_replaces_machines_succeeds() -> None:
    assert await script("print('{}', flush=True); sys.exit(2)").plan(KEY, "v1.34.4") == b"{}\n"


async def test_the_problem_is_the_text_of_the_command() -> None:
    planning = script("print('The version is unknown.', file=sys.stderr); sys.exit(2)")
    with pytest.raises(UserError, match=r"^The version is unknown\.$"):
        await planning.plan(KEY, "v9.9.9")


async def test_one_plan_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "process"
    planning = script(f"open({str(file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)")
    first = asyncio.create_task(planning.plan(KEY, "v1.34.4"))
    process = await until(lambda: file.exists() and file.read_text(), within=30)
    with pytest.raises(NotReadyError, match="Another plan"):
        await planning.plan(KEY, "v1.34.4")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    entry = Path("/proc", str(process))
    await until(lambda: not entry.exists(), within=30)


def test_the_command_names_the_management_cluster() -> None:
    file = Path("management.kubeconfig")
    assert command_options(UiOptions("")) == ()
    assert command_options(UiOptions("two")) == ("--environment=two",)
    assert command_options(UiOptions("", file)) == ("--kubeconfig=management.kubeconfig",)
