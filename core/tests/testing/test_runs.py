"""What is left of a test run: nothing, however it ends."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from capelin.embedded.apiserver import Settings
from capelin.embedded.processes import kill_all
from capelin.testing.programs import needed
from capelin.testing.waiting import wait_until

from tests.support.kernel import listening_ports

SUITE = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(4))
def test_api_server(number, api_server, namespace):
    file = pathlib.Path(os.environ["SEEN"]) / f"{os.getpid()}-{number}"
    file.write_text(f"{api_server.listeners.address} {api_server.folder}")
    if os.environ.get("HANGS"):
        import time
        time.sleep(1000)
"""


class Run:
    """A pytest run in a process of its own, with temporary files of its own."""

    def __init__(self, folder: Path) -> None:
        self.base = folder / f"capelin-testing-{os.geteuid()}"
        self.seen = folder / "seen"
        self._folder = folder
        self.seen.mkdir()
        (folder / "test_suite.py").write_text(SUITE)

    def start(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        return subprocess.Popen(
            [*command, "test_suite.py"],
            cwd=self._folder,
            env={
                **{key: value for key, value in os.environ.items() if "XDIST" not in key},
                "TMPDIR": str(self._folder),
                "SEEN": str(self.seen),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def servers(self) -> set[tuple[str, str]]:
        """Address and folder of each API server that a test has seen."""
        found: set[tuple[str, str]] = set()
        for file in self.seen.iterdir():
            address, _, folder = file.read_text().partition(" ")
            if folder:
                found.add((address, folder))
        return found

    def folders(self) -> list[str]:
        return [path.name for path in self.base.iterdir() if path.is_dir()]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    for folder in run.base.glob("*/*/processes"):
        asyncio.run(kill_all(folder))


@pytest.mark.integration
@pytest.mark.representative
def test_workers_share_a_server_and_remove_that_of_a_killed_run(run: Run) -> None:
    killed = run.start(HANGS="yes")

    def a_test_has_begun() -> bool:
        assert killed.poll() is None, killed.communicate()[0]
        return bool(run.servers())

    wait_until(a_test_has_begun)
    killed.kill()
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    [(address, folder)] = run.servers()
    assert 6443 in listening_ports(address)
    assert Path(folder).exists()

    following = run.start("--collect-only")
    following.communicate()
    assert 6443 in listening_ports(address), "a run without an API server has no business with any"

    for file in run.seen.iterdir():
        file.unlink()
    following = run.start("-n2")
    output, _ = following.communicate()
    assert following.returncode == 0, output
    assert listening_ports(address) == []
    assert len({file.name.partition("-")[0] for file in run.seen.iterdir()}) == 2
    [(shared, _)] = run.servers()
    assert listening_ports(shared) == []
    assert run.folders() == []


PREPARED = """
import pytest
from capelin.testing import programs

got = []
programs.get = got.append

def pytest_collection_modifyitems():
    assert not got

@pytest.fixture
def programs_got():
    return got

@pytest.fixture
def api_server():
    return "not a real one"
"""
MARKED = """
import pytest

@pytest.mark.needs_programs("kwok", "kubectl@v1.34.4")
def test_marked(programs_got):
    assert programs_got == EXPECTED

def test_with_a_server(programs_got, api_server):
    pass
"""


def test_only_programs_that_are_needed_are_got() -> None:
    marked = ["kwok", "kubectl@v1.34.4"]
    assert needed({"request"}, marked) == ["kubectl@v1.34.4", "kwok"]
    assert needed({"api_server"}, marked) == sorted([*Settings().programs, *marked])


def test_programs_come_first(run: Run, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PREPARED)
    expected = sorted([*Settings().programs, "kubectl@v1.34.4", "kwok"])
    suite = MARKED.replace("EXPECTED", repr([expected]))
    (tmp_path / "test_suite.py").write_text(suite)
    process = run.start("--strict-markers")
    output, _ = process.communicate()
    assert process.returncode == 0, output


@pytest.mark.parametrize(
    ("problem", "status", "expected"),
    [
        ("None", 0, "All binaries are available."),
        ("BinariesError('no Go')", 1, "Binaries are missing: no Go"),
    ],
)
def test_fetch_binaries_runs_no_test(
    run: Run, tmp_path: Path, problem: str, status: int, expected: str
) -> None:
    fetched = f"""
from capelin.embedded.binaries import BinariesError
from capelin.testing import programs

programs.get = lambda names: {problem}
"""
    (tmp_path / "conftest.py").write_text(fetched)
    (tmp_path / "test_suite.py").write_text(
        "import pytest\n\n"
        "@pytest.mark.needs_programs('kwok')\ndef test_marked():\n    assert False\n"
    )
    process = run.start("--fetch-binaries")
    output, _ = process.communicate()
    assert process.returncode == status, output
    assert expected in output
    assert "failed" not in output


def test_the_plugin_imports_nothing_that_a_run_without_it_would_not() -> None:
    script = (
        "import sys, pytest; before = {*sys.modules}; import capelin.testing.plugin; "
        "print({name.partition('.')[0] for name in {*sys.modules} - before})"
    )
    output = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert output == "{'capelin'}\n"
