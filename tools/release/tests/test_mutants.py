"""The mutants of a module, and the command that shows which of them no test notices."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tools.mutants import SETTINGS, kill_rate, read_settings, table
from tools.mutations import install, mutants_of, sample

ROOT = Path(__file__).parents[3]
MODULE = "module.py"
SOURCE = '''\
LIMIT = 3 + 4


def is_small(number: int, *others: int) -> bool:
    """Whether all are small."""
    if number > LIMIT or not others:
        return False
    return all(other < 5 for other in others if other)
'''


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / MODULE
    path.write_text(SOURCE)
    return path


def test_each_part_of_a_function_has_mutants(source: Path) -> None:
    changes = [(it.line, it.change) for it in mutants_of(source, source.parent)]
    assert changes == [
        (6, "[return early] is_small() runs -> return"),
        (
            6,
            "[negate condition] number > LIMIT or not others -> not (number > LIMIT or not others)",
        ),
        (6, "[exchange and/or] number > LIMIT or not others -> number > LIMIT and (not others)"),
        (6, "[drop operand] number > LIMIT or not others -> not others"),
        (6, "[drop operand] number > LIMIT or not others -> number > LIMIT"),
        (6, "[swap comparison] number > LIMIT -> number >= LIMIT"),
        (6, "[drop not] not others -> others"),
        (7, "[return None] return False -> return None"),
        (7, "[flip flag] False -> True"),
        (
            8,
            "[return None] return all((other < 5 for other in others if other)) -> return None",
        ),
        (8, "[exchange min/max] all( -> any("),
        (8, "[swap comparison] other < 5 -> other <= 5"),
        (8, "[off by one] 5 -> 6"),
        (8, "[negate condition] other -> not (other)"),
        (8, "[drop filter] if other -> no filter"),
    ]


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        ("x = 1 if a else 2", {"negate condition", "off by one"}),
        ("a.x = 1", {"remove statement", "off by one"}),
        ("raise ValueError", {"remove statement"}),
        ("return None", set[str]()),
        ("return a + 1", {"return None", "swap arithmetic", "off by one"}),
        ("match a:\n  case 1:\n   pass", {"skip case", "off by one"}),
        ("return min(a)", {"return None", "exchange min/max"}),
        ("def inner(b=1):\n  return b", {"return None"}),
    ],
)
def test_statements_have_these_mutants(source: Path, body: str, changes: set[str]) -> None:
    source.write_text(f"def function(a):\n {body}\n")
    found = {it.operator for it in mutants_of(source, source.parent)}
    assert found - {"return early"} == changes


def test_a_sample_is_the_same_for_the_same_seed(source: Path) -> None:
    mutants = mutants_of(source, source.parent)
    chosen = sample(mutants, 5, seed=1)
    assert len(chosen) == 5
    assert len({it.operator for it in chosen}) == 5
    assert chosen == sample(mutants, 5, seed=1)
    assert chosen != sample(mutants, 5, seed=2)
    assert sample(mutants, 0, seed=1) == mutants


def test_a_mutant_takes_effect_in_functions_that_exist(source: Path) -> None:
    module = ModuleType("module")
    exec(compile(SOURCE, str(source), "exec"), module.__dict__)  # noqa: S102 - our own text
    assert not module.is_small(8, 1)
    mutant = next(it for it in mutants_of(source, source.parent) if it.operator == "flip flag")
    assert install(mutant, source) == 1
    assert module.is_small(8, 1)


def test_the_table_leaves_equivalent_mutants_out_of_the_rate() -> None:
    results = ["killed"] * 6 + ["timeout", "equivalent", "survived", "uncovered"]
    rows = table([{"module": "a.py", "result": result} for result in results])
    assert rows[2:] == [
        "| `a.py` | 10 | 6 | 1 | 1 | 1 | 1 | 78% |",
        "| **all** | 10 | 6 | 1 | 1 | 1 | 1 | 78% |",
    ]
    assert kill_rate({}) == 1


def test_every_module_and_test_of_the_settings_exists() -> None:
    settings = read_settings(SETTINGS)
    paths = [path for group in settings.groups for path in (*group.modules, *group.tests)]
    assert [path for path in paths if not path.exists()] == []
    modules = {str(path.relative_to(ROOT)) for group in settings.groups for path in group.modules}
    assert {module for module, *_ in settings.equivalent} <= modules


TESTS = """\
from module import is_small

def test_a_small_number():
    assert is_small(1, 2)
"""


def test_the_command_shows_the_mutants_that_no_test_notices(source: Path) -> None:
    root = source.parent
    (root / "test_module.py").write_text(TESTS)
    settings = root / "tools" / "mutants.toml"
    settings.parent.mkdir()
    group = 'name = "all"\nfolder = ""\nmodules = ["module.py"]\ntests = ["test_module.py"]'
    settings.write_text(f"[[groups]]\n{group}\n")
    done = subprocess.run(
        [sys.executable, "-m", "tools.mutants", f"--settings={settings}", "--count=0"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert (
        f"survived   {source}:6 [swap comparison] number > LIMIT -> number >= LIMIT" in done.stdout
    )
    assert f"uncovered  {source}:7 [flip flag] False -> True" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("| **all** | 15 | 4 | 0 | 9 | 2 | 0 |")
