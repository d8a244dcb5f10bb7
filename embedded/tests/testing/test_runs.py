"""A test run leaves nothing behind."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from capelin.testing.waiting import wait_until
from capelin_embedded.apiserver import Settings
from capelin_embedded.processes import kill_all
from capelin_embedded.testing.run import needed

from tests.support.kernel import listening_ports

SUITE = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(4))
def test_api_server(number, api_server, namespace):
    file = pathlib.Path(os.environ["RECORDS"]) / f"{os.getpid()}-{number}"
    file.write_text(f"{api_server.listeners.address} {api_server.folder}")
    if os.environ.get("HANGS"):
        import time
        time.sleep(1000)
"""


class Run:
    """A pytest run with its own process and temporary files."""

    def __init__(self, folder: Path) -> None:
        self.base = folder / f"capelin-testing-{os.geteuid()}"
        self.records = folder / "records"
        self._folder = folder
        self.records.mkdir()
        (folder / "test_suite.py").write_text(SUITE)

    def start(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        return subprocess.Popen(
            [*command, "test_suite.py"],
            cwd=self._folder,
            env={
                **{key: value for key, value in os.environ.items() if "XDIST" not in key},
                "TMPDIR": str(self._folder),
                "RECORDS": str(self.records),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def servers(self) -> set[tuple[str, str]]:
        """Address and folder of each API server that a test used."""
        servers: set[tuple[str, str]] = set()
        for file in self.records.iterdir():
            address, _, folder = file.read_text().partition(" ")
            if folder:
                servers.add((address, folder))
        return servers

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
def test_workers_share_a_server_and_remove_the_server_of_a_killed_run(run: Run) -> None:
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
    assert 6443 in listening_ports(address), "a run that needs no API server must not stop one"

    for file in run.records.iterdir():
        file.unlink()
    following = run.start("-n2")
    output, _ = following.communicate()
    assert following.returncode == 0, output
    assert listening_ports(address) == []
    assert len({file.name.partition("-")[0] for file in run.records.iterdir()}) == 2
    [(shared, _)] = run.servers()
    assert listening_ports(shared) == []
    assert run.folders() == []


PREPARED = """
import pytest
from capelin_embedded.testing import run as programs

requested = []
programs.get = requested.append

def pytest_collection_modifyitems():
    assert not requested

@pytest.fixture
def fetched_programs():
    return requested

@pytest.fixture
def api_server():
    return "not a real one"
"""
MARKED = """
import pytest

@pytest.mark.needs_programs("kwok", "kubectl@v1.36.3")
def test_marked(fetched_programs):
    assert fetched_programs == EXPECTED

def test_with_a_server(fetched_programs, api_server):
    pass
"""


def test_needed_contains_only_required_programs() -> None:
    marked = ["kwok", "kubectl@v1.36.3"]
    assert needed({"request"}, marked) == ["kubectl@v1.36.3", "kwok"]
    assert needed({"api_server"}, marked) == sorted([*Settings().programs, *marked])


def test_binaries_are_fetched_before_the_first_test(run: Run, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PREPARED)
    expected = sorted([*Settings().programs, "kubectl@v1.36.3", "kwok"])
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
from capelin_embedded.binaries import BinariesError
from capelin_embedded.testing import run as programs

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


def test_the_plugin_imports_only_capelin_modules() -> None:
    script = (
        "import sys, pytest; before = {*sys.modules}; import capelin_embedded.testing.plugin; "
        "print({name.partition('.')[0] for name in {*sys.modules} - before})"
    )
    output = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert output == "{'capelin_embedded'}\n"
