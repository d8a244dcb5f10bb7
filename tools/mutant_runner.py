"""Runs tests against mutants, in one process that collects the tests once.

It runs all tests once with coverage for each test. Then it forks for every mutant: the child
replaces the code of the mutated functions, and runs the tests that execute the mutated line, the
fastest first, up to the first failure. A mutant costs what these tests cost. Nothing is written to
the sources.
"""

import ctypes
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast

import coverage
import pytest

from tools.mutations import Mutant, install

Result = Literal["killed", "timeout", "survived", "uncovered", "equivalent", "invalid"]
Tell = Callable[[object], None]

_PROGRAMS: Final = {"api_server", "own_api_server", "management_cluster", "kubeconfig"}
"""Fixtures that start downloaded or built programs."""
_SUBREAPER: Final = 36
_SPARE_SECONDS: Final = 15.0
_SLOWDOWN: Final = 5.0
"""A mutant that takes this much longer than its tests has no end."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A mutant and the result of its tests."""

    mutant: Mutant
    result: Result
    tests: int
    """How many tests execute the mutated line."""
    killed_by: str
    """The first test that failed."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The tests that judge the mutants."""

    slowest: float
    """Excludes slower tests, in seconds."""
    with_programs: bool
    """Whether tests that need an API server take part."""
    baseline_seconds: float = 1800.0


@dataclass(frozen=True, slots=True)
class _Baseline:
    """The run without a mutant."""

    failed: Sequence[str]
    seconds: Mapping[str, float]
    lines: Mapping[str, Mapping[str, Sequence[int]]]
    """The executed lines, by module and test."""


def judge(
    mutants: Mapping[Path, Sequence[Mutant]], tests: Sequence[str], choice: Choice, report: Tell
) -> list[Judged]:
    """Judge mutants by their tests. Call this once in a process.

    Args:
        mutants: The mutants of each module.
        tests: Test files or folders.
        choice: Which of their tests take part.
        report: Receives each judged mutant, and lines of text.

    Raises:
        RuntimeError: the tests cannot run without a mutant.
    """
    # Orphans of killed tests become children of this process.
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    temporary = tempfile.mkdtemp(prefix="mutants-")
    os.environ["PYTEST_DEBUG_TEMPROOT"] = temporary
    loop = _Loop(mutants, choice, report)
    options = ["-qq", "--no-header", "--no-summary", "--import-mode=importlib", "-o", "addopts="]
    options += ["-p", "no:cacheprovider", "-p", "no:xdist"]
    try:
        code = pytest.main([*options, *tests], plugins=[loop])
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if loop.problem or code not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        raise RuntimeError(loop.problem or f"pytest ended with code {code}")
    return loop.judged


class _Loop:
    """Replaces pytest's loop over the tests."""

    def __init__(
        self, mutants: Mapping[Path, Sequence[Mutant]], choice: Choice, report: Tell
    ) -> None:
        self._mutants = mutants
        self._choice = choice
        self._report = report
        self._shared: set[int] = set()
        """The processes of servers that all children use."""
        self.judged: list[Judged] = []
        self.problem = ""

    def pytest_collection(self) -> None:
        # pytest loads its plugins before anything else does.
        from hypothesis import Phase, settings  # noqa: PLC0415

        # Hypothesis only has to fail, and not to find the smallest example.
        phases = (Phase.explicit, Phase.reuse, Phase.generate)
        settings.register_profile("mutants", settings(), phases=phases)
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if not self._choice.with_programs:
            items[:] = [item for item in items if not _needs_programs(item)]
        items[:] = [item for item in items if item.get_closest_marker("integration") is None]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        with self._api_server(session.items):
            self._judge_all(session)
        return True

    @contextmanager
    def _api_server(self, items: Sequence[pytest.Item]) -> Generator[None]:
        """Start the API server of the test run once, for all children."""
        if not any(_fixtures(item) & _PROGRAMS for item in items):
            yield
            return
        from capelin_embedded.testing import plugin  # noqa: PLC0415
        from capelin_embedded.testing.run import held_run, shared_api_server  # noqa: PLC0415

        with held_run(plugin._RUN) as folder:  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            shared_api_server(folder)
            self._shared = _children()
            yield

    def _judge_all(self, session: pytest.Session) -> None:
        items = [*session.items]
        self._report(f"{len(items)} tests run once without a mutant")
        outcome, told = self._in_child(
            lambda _: _measured(session, items, [*self._mutants]), self._choice.baseline_seconds
        )
        if outcome != "done":
            self.problem = f"the tests cannot run without a mutant: {outcome}, {told[-1:]}"
            return
        baseline = _Baseline(**told[-1])
        usable = [
            item
            for item in items
            if item.nodeid not in baseline.failed
            and baseline.seconds.get(item.nodeid, 0) <= self._choice.slowest
        ]
        self._report(
            f"{len(usable)} of them pass within {self._choice.slowest:g} s. "
            f"Failed: {', '.join(baseline.failed) or 'none'}"
        )
        for path, mutants in self._mutants.items():
            for mutant in mutants:
                judged = self._judge(session, path, mutant, usable, baseline)
                self.judged.append(judged)
                self._report(judged)

    def _judge(
        self,
        session: pytest.Session,
        path: Path,
        mutant: Mutant,
        items: Sequence[pytest.Item],
        baseline: _Baseline,
    ) -> Judged:
        executed = baseline.lines.get(str(path), {})
        changed = {*range(mutant.line, mutant.end_line + 1)}
        seconds = {it.nodeid: baseline.seconds.get(it.nodeid, 0.0) for it in items}
        covering = [item for item in items if changed & {*executed.get(item.nodeid, ())}]
        covering.sort(key=lambda item: seconds[item.nodeid])
        if not covering:
            return Judged(mutant, "uncovered", 0, "")
        limit = _SPARE_SECONDS + _SLOWDOWN * sum(seconds[item.nodeid] for item in covering)

        def work(tell: Tell) -> object:
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 2))
            try:
                replaced = install(mutant, path)
            except ValueError:
                return {"result": "invalid"}
            if not replaced:
                # Python compiles both to the same code.
                return {"result": "equivalent"}
            return {"failed": _run(session, covering, stop=True, tell=tell).failed}

        outcome, told = self._in_child(work, limit)
        killers = [part for part in told if isinstance(part, str)]
        result: Result
        if killers or outcome == "died":
            result = "killed"
        elif outcome == "timeout":
            result = "timeout"
        elif "error" in told[-1]:
            raise RuntimeError(f"{mutant}: {told[-1]['error']}")
        else:
            result = told[-1].get("result", "survived")
        return Judged(mutant, result, len(covering), killers[0] if killers else "")

    def _in_child(
        self, work: Callable[[Tell], object], limit: float
    ) -> tuple[Literal["done", "timeout", "died"], list[Any]]:
        """Run in a forked process group, and return the messages of the child."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _be_child(work, writing)
        with suppress(OSError):
            os.setpgid(pid, pid)
        os.close(writing)
        content, in_time = _read(reading, limit)
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        os.close(reading)
        self._kill_orphans()
        told = [json.loads(line) for line in content.split(b"\n")[:-1]]
        if not in_time:
            return "timeout", told
        return ("done" if told and isinstance(told[-1], dict) else "died"), told

    def _kill_orphans(self) -> None:
        while left := _children() - self._shared:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def _fixtures(item: pytest.Item) -> set[str]:
    return {*cast("Sequence[str]", getattr(item, "fixturenames", ()))}


def _needs_programs(item: pytest.Item) -> bool:
    return (
        bool(_fixtures(item) & _PROGRAMS) or item.get_closest_marker("needs_programs") is not None
    )


def _be_child(work: Callable[[Tell], object], writing: int) -> None:
    """Do the work of a child, and end it without the clean-up of its parent."""
    os.setpgid(0, 0)

    def tell(part: object) -> None:
        view = memoryview(f"{json.dumps(part)}\n".encode())
        while view:
            view = view[os.write(writing, view) :]

    with suppress(OSError):
        try:
            tell(work(tell))
        except BaseException as error:  # noqa: BLE001 - the parent reports it
            tell({"error": f"{type(error).__name__}: {error}"})
    os._exit(0)


def _read(reading: int, limit: float) -> tuple[bytes, bool]:
    """All that a child writes, and whether it ended in time."""
    chunks: list[bytes] = []
    end = time.monotonic() + limit
    while (left := end - time.monotonic()) > 0:
        with suppress(ChildProcessError):
            # Like process 1, for the processes of tests that have ended.
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if select.select([reading], [], [], min(left, 0.2))[0]:
            if not (chunk := os.read(reading, 1 << 16)):
                return b"".join(chunks), True
            chunks.append(chunk)
    return b"".join(chunks), False


def _children() -> set[int]:
    """The children of this process."""
    found: set[int] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found


@dataclass
class _Reports:
    """Collects the reports of tests."""

    tell: Tell
    failed: list[str] = field(default_factory=list[str])
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)
            self.tell(report.nodeid)


def _run(
    session: pytest.Session,
    items: Sequence[pytest.Item],
    *,
    stop: bool,
    tell: Tell = lambda _: None,
    before: Callable[[str], object] = lambda _: None,
) -> _Reports:
    reports = _Reports(tell)
    plugins = session.config.pluginmanager
    plugins.unregister(plugins.getplugin("terminalreporter"))  # of this child
    plugins.register(reports)
    for item, following in zip(items, [*items[1:], None], strict=True):
        before(item.nodeid)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if stop and reports.failed:
            break
    return reports


def _measured(
    session: pytest.Session, items: Sequence[pytest.Item], modules: Sequence[Path]
) -> object:
    measured = coverage.Coverage(
        data_file=None, config_file=False, include=[*map(str, modules)], messages=False, branch=True
    )
    measured.start()
    reports = _run(session, items, stop=False, before=measured.switch_context)
    measured.stop()
    data = measured.get_data()
    lines: dict[str, dict[str, list[int]]] = {}
    for module in map(str, modules):
        tests = lines[module] = defaultdict[str, list[int]](list)
        for line, names in data.contexts_by_lineno(module).items():
            for name in filter(None, names):
                tests[name].append(line)
    return {"failed": reports.failed, "seconds": reports.seconds, "lines": lines}


def print_now(text: str) -> None:
    """Print a line where pytest does not capture it."""
    with suppress(OSError):
        os.write(_OUTPUT, f"{text}\n".encode())


_OUTPUT: Final = os.dup(sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
