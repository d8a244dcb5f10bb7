"""Runs the default tests in many circumstances, to find those that are red by chance.

python -m tests.shake 10 --seed 1 -- PATH...

A round differs from `nox -s all_tests` in its order, in the number of workers, in the signals that
the shell ignores, in the user, in HOME, TMPDIR and the locale, in the load of the machine, or in
Python's version. The seed decides. In the last round, each of some files runs alone.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
_LOCALES: Final = ("C", "C.UTF-8", "POSIX")
_IGNORED: Final = ((), (signal.SIGINT,), (signal.SIGINT, signal.SIGPIPE, signal.SIGQUIT))
_ALONE: Final = 40
"""Files that run alone in the last round."""
_SUMMARY: Final = re.compile(r"(\d+) (passed|failed|error)")
_RED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Round:
    """The circumstances of one run."""

    seed: int
    python: str
    workers: int
    ignored: tuple[signal.Signals, ...]
    locale: str
    moved: bool
    """Whether HOME and TMPDIR are other folders."""
    other_user: bool
    busy: bool
    """Whether two busy loops run at the same time."""

    def __str__(self) -> str:
        words = [f"seed {self.seed}", f"Python {self.python}", f"{self.workers} workers"]
        words += [f"{number.name} ignored" for number in self.ignored]
        words += [self.locale]
        words += ["other HOME and TMPDIR"] if self.moved else []
        words += ["another user"] if self.other_user else []
        words += ["two busy loops"] if self.busy else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run."""

    what: str
    passed: int
    red: tuple[str, ...]
    seconds: float


def rounds(count: int, seed: int, pythons: Sequence[str], users: bool) -> list[Round]:
    """Rounds that differ. Each value of each circumstance occurs as early as possible."""
    random = Random(seed)  # noqa: S311
    return [
        Round(
            seed=random.randrange(10**6),
            python=pythons[number % len(pythons)],
            workers=(4, 4, 1)[number % 3],
            ignored=_IGNORED[(number + 1) % len(_IGNORED)],
            locale=_LOCALES[number % len(_LOCALES)],
            moved=number % 2 == 1,
            other_user=users and number % 4 == 3,
            busy=number % 3 == 1,
        )
        for number in range(count)
    ]


def installed_pythons() -> dict[str, str]:
    """The supported versions of Python on this machine, with their paths."""
    found: dict[str, str] = {}
    for version in _PYTHONS:
        command = ["uv", "python", "find", "--no-project", "--no-python-downloads", version]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found[version] = done.stdout.strip()
    return found


def environment_with(python: str, folder: Path) -> Path:
    """Install everything for a Python. Returns its interpreter."""
    folder = folder / python.strip("/").replace("/", "-")
    subprocess.run(
        [
            *("uv", "sync", "--locked", "--quiet", "--all-packages", "--all-extras"),
            *("--all-groups", f"--python={python}"),
        ],
        env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder)},
        cwd=ROOT,
        check=True,
    )
    return folder / "bin" / "python"


@contextmanager
def busy_loops(count: int) -> Generator[None]:
    """Processes that use a processor each."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def variables(here: Round, python: Path, folder: Path, cache: Path | None = None) -> dict[str, str]:
    """The environment of a round."""
    programs = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    values = {**os.environ, "PATH": programs, "LC_ALL": here.locale, "PYTHONWARNINGS": ""}
    values["PYTHONDONTWRITEBYTECODE"] = "1"
    values["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
    if here.moved or here.other_user:
        home, temporary = folder / "a home", folder / "t"
        for path in (home, temporary):
            path.mkdir(exist_ok=True)
        values |= {"HOME": str(home), "TMPDIR": str(temporary)}
        values["XDG_CACHE_HOME"] = str(cache or Path.home() / ".cache")
        values["GOPATH"] = os.environ.get("GOPATH", str(Path.home() / "go"))
        values["GOCACHE"] = os.environ.get("GOCACHE", str(Path.home() / ".cache" / "go-build"))
    return values


def command(here: Round, python: Path, paths: Sequence[str]) -> list[str]:
    """The command line of a round."""
    workers = ["-n", str(here.workers), "--dist=worksteal"] if here.workers > 1 else ["-n0"]
    order = ["-p", "tests.shuffle", f"--order-seed={here.seed}"]
    chosen = ["-m", "not integration", "-p", "no:cacheprovider", "-q", "-rfE", *workers]
    return [str(python), "-m", "pytest", *order, *chosen, *paths]


def run(
    what: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    ignored: Sequence[signal.Signals] = (),
    user: int | None = None,
) -> Outcome:
    """Run pytest, and read its result."""

    def prepare() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    start = time.monotonic()
    with log.open("w") as output:
        done = subprocess.run(
            arguments,
            env=environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Python ignores SIGPIPE, and restores it for its children.
            restore_signals=signal.SIGPIPE not in ignored,
            preexec_fn=prepare,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            check=False,
        )
    text = log.read_text(errors="replace")
    counts = {name: int(count) for count, name in _SUMMARY.findall(text[-2000:])}
    red = tuple(_RED.findall(text))
    if done.returncode and not red:
        red = (f"exit status {done.returncode}, see {log}",)
    return Outcome(what, counts.get("passed", 0), red, time.monotonic() - start)


def copied_cache(folder: Path, user: int) -> Path:
    """A copy of the binaries for another user."""
    cache = folder / "cache"
    if not cache.exists():
        shutil.copytree(Path.home() / ".cache" / "capelin", cache / "capelin", symlinks=True)
        subprocess.run(["chown", "-R", f"{user}:{user}", str(cache)], check=True)
    return cache


def readable_python(pythons: Mapping[str, str]) -> str | None:
    """A Python outside of the folders that only this user reads."""
    candidates = [*pythons.values(), *(f"/usr/bin/python{version}" for version in _PYTHONS)]
    for path in candidates:
        if Path(path).exists() and not Path(path).resolve().is_relative_to(Path.home()):
            return path
    return None


def main() -> int:
    """Run the rounds, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.shake")
    parser.add_argument("count", type=int, nargs="?", default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("paths", nargs="*")
    options = parser.parse_intermixed_args()
    pythons = installed_pythons()
    shared = readable_python(pythons) if os.geteuid() == 0 else None
    nobody = 65534
    folder = Path(tempfile.mkdtemp(prefix="capelin-shake-"))
    folder.chmod(0o755)
    outcomes: list[Outcome] = []
    for number, here in enumerate(rounds(options.count, options.seed, [*pythons], bool(shared))):
        print(f"{number + 1}: {here}", flush=True)  # noqa: T201
        private = folder / f"round-{number + 1}"
        private.mkdir()
        interpreter = shared if here.other_user and shared else pythons[here.python]
        python = environment_with(interpreter, folder)
        cache = copied_cache(folder, nobody) if here.other_user else None
        environment = variables(here, python, private, cache)
        if here.other_user:
            subprocess.run(["chown", "-R", f"{nobody}:{nobody}", str(private)], check=True)
        with ExitStack() as stack:
            if here.busy:
                stack.enter_context(busy_loops(2))
            outcomes.append(
                run(
                    str(here),
                    command(here, python, options.paths),
                    environment,
                    folder / f"round-{number + 1}.log",
                    ignored=here.ignored,
                    user=nobody if here.other_user else None,
                )
            )
        _print(outcomes[-1])
    outcomes += _each_alone(options.paths, options.seed, folder)
    print(f"| circumstances | passed | red | seconds |\n|---|---|---|---|")  # noqa: F541, T201
    for outcome in outcomes:
        print(f"| {outcome.what} | {outcome.passed} | {len(outcome.red)} | {outcome.seconds:.0f} |")  # noqa: T201
    print(f"The logs are in {folder}.")  # noqa: T201
    return 1 if any(outcome.red for outcome in outcomes) else 0


def _each_alone(paths: Sequence[str], seed: int, folder: Path) -> list[Outcome]:
    """Run some files alone, each in a process of its own."""
    files = sorted({file for path in paths for file in _test_files(Path(path))})
    random = Random(seed)  # noqa: S311
    chosen = random.sample(files, min(_ALONE, len(files)))
    passed, red, start = 0, list[str](), time.monotonic()
    for file in chosen:
        arguments = [sys.executable, "-m", "pytest", "-q", "-rfE", "-n0", "-p", "no:cacheprovider"]
        arguments += ["-m", "not integration", str(file)]
        outcome = run(str(file), arguments, os.environ, folder / "alone.log")
        # Exit status 5: the file has long tests only.
        red += [name for name in outcome.red if not name.startswith("exit status 5")]
        passed += outcome.passed
    summary = Outcome(f"{len(chosen)} files, each alone", passed, (*red,), time.monotonic() - start)
    _print(summary)
    return [summary]


def _test_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("test_*.py"))


def _print(outcome: Outcome) -> None:
    print(f"   {outcome.passed} passed, {len(outcome.red)} red, {outcome.seconds:.0f} s")  # noqa: T201
    for name in outcome.red:
        print(f"   {name}", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
