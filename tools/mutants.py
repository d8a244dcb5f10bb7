"""Shows which small changes of the source no test notices: `python -m tools.mutants`.

    python -m tools.mutants                                  # the modules of mutants.toml
    python -m tools.mutants control-plane --module status.py # one module
    python -m tools.mutants client --module watch.py --line 161 --all

A mutant is killed if a test fails, or if it has no end. It survives if all tests pass that execute
its line, and is uncovered if no test does. A survivor is a missing test, unless the mutant does the
same as the original: `equivalent` in mutants.toml has those, each with the reason.

Exit status: 0 if enough mutants are killed in every group, 1 if not.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.mutant_runner import Choice, Judged, judge, print_now
from tools.mutations import Mutant, mutants_of, sample

ROOT: Final = Path(__file__).parents[1]
SETTINGS: Final = ROOT / "tools" / "mutants.toml"
_KILLED: Final = {"killed", "timeout"}
_COLUMNS: Final = ("killed", "timeout", "survived", "uncovered", "equivalent")


@dataclass(frozen=True, slots=True)
class Group:
    """Modules, and the tests that have to notice their mutants."""

    name: str
    modules: Sequence[Path]
    tests: Sequence[Path]
    programs: bool = False
    """Whether tests that need an API server take part."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The content of mutants.toml."""

    groups: Sequence[Group]
    equivalent: frozenset[tuple[str, str, str]]
    """Modules, functions and changes that no test can notice."""


def read_settings(path: Path) -> Settings:
    """The groups of a file, with paths from its folder's parent."""
    root, content = path.parents[1], tomllib.loads(path.read_text())
    groups = [
        Group(
            group["name"],
            [root / group["folder"] / module for module in group["modules"]],
            [root / group["folder"] / test for test in group["tests"]],
            group.get("programs", False),
        )
        for group in content["groups"]
    ]
    entries: list[Mapping[str, str]] = content.get("equivalent", [])
    return Settings(
        groups, frozenset((it["module"], it["function"], it["change"]) for it in entries)
    )


def table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row for each module, and one for all of them."""
    lines = [
        f"| module | mutants | {' | '.join(_COLUMNS)} | kill rate |",
        f"|---|{'---|' * (len(_COLUMNS) + 2)}",
    ]
    modules = dict.fromkeys(str(result["module"]) for result in results)
    for module in modules:
        counts = Counter(str(it["result"]) for it in results if it["module"] == module)
        lines.append(_row(f"`{module}`", counts))
    return [*lines, _row("**all**", Counter(str(result["result"]) for result in results))]


def kill_rate(counts: Mapping[str, int]) -> float:
    """The killed part of the mutants that a test can notice."""
    noticeable = sum(counts.values()) - counts.get("equivalent", 0)
    return sum(counts.get(name, 0) for name in _KILLED) / noticeable if noticeable else 1.0


def _row(name: str, counts: Mapping[str, int]) -> str:
    cells = [sum(counts.values()), *(counts.get(column, 0) for column in _COLUMNS)]
    return f"| {name} | {' | '.join(map(str, cells))} | {kill_rate(counts):.0%} |"


def run_group(
    group: Group, settings: Settings, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Judge the mutants of a group. Call this once in a process."""
    chosen: dict[Path, Sequence[Mutant]] = {}
    for module in group.modules:
        if not str(module).endswith(options.module):
            continue
        mutants = mutants_of(module, ROOT)
        if options.line:
            mutants = [it for it in mutants if it.line in options.line]
        chosen[module] = sample(mutants, options.count, options.seed)
    results: list[dict[str, Any]] = []

    def report(told: object) -> None:
        if not isinstance(told, Judged):
            print_now(f"{group.name}: {told}")
            return
        mutant, result = told.mutant, told.result
        key = (mutant.module, mutant.function, mutant.change)
        if key in settings.equivalent and result not in _KILLED:
            result = "equivalent"
        if result not in _KILLED or options.verbose:
            print_now(f"{result:10} {mutant} ({told.tests} tests) {told.killed_by}".rstrip())
        if result != "invalid":
            results.append({"module": mutant.module, "result": result})

    choice = Choice(options.slowest, group.programs and not options.without_programs)
    if any(chosen.values()):
        judge(chosen, [*map(str, group.tests)], choice, report)
    return results


def _in_processes(groups: Sequence[Group], arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Judge each group in a process of its own: pytest runs once in a process."""
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for group in groups:
            file = Path(folder, group.name)
            command = [sys.executable, "-m", "tools.mutants", *arguments]
            subprocess.run([*command, "--json", str(file), group.name], check=False, cwd=ROOT)
            if not file.exists():
                raise SystemExit(f"the mutants of {group.name} cannot be judged")
            results += json.loads(file.read_text())
    return results


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants")
    parser.add_argument("groups", nargs="*", help="of mutants.toml (all of them)")
    parser.add_argument("--module", default="", help="the end of a module's path (all modules)")
    parser.add_argument("--line", type=int, action="append", help="only mutants of this line")
    parser.add_argument("--count", type=int, default=25, help="mutants of a module (25; 0: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of mutants (1)")
    parser.add_argument("--slowest", type=float, default=5, help="leave out slower tests (5 s)")
    parser.add_argument("--without-programs", action="store_true", help="start no API server")
    parser.add_argument("--least", type=float, default=0.92, help="the kill rate to reach (0.92)")
    parser.add_argument("--verbose", action="store_true", help="show killed mutants as well")
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="instead of mutants.toml")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Judge the mutants of the groups, and print a table."""
    options = _options(arguments)
    settings = read_settings(options.settings.resolve())
    groups = [it for it in settings.groups if not options.groups or it.name in options.groups]
    if unknown := {*options.groups} - {group.name for group in groups}:
        raise SystemExit(f"mutants.toml has no group {', '.join(sorted(unknown))}")
    if options.json is not None:
        (group,) = groups
        options.json.write_text(json.dumps(run_group(group, settings, options)))
        return 0
    flags = [it for it in arguments if it not in options.groups]
    results = _in_processes(groups, flags)
    for line in table(results):
        print(line)  # noqa: T201 - asked for
    return 0 if kill_rate(Counter(it["result"] for it in results)) >= options.least else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
