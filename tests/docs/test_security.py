"""Each test that the threat model or the conformance page names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FOLDERS = (
    "core",
    "embedded",
    "cli",
    "infra",
    "providers",
    "extensions",
    "examples",
    "tests",
    "tools",
)


def test_the_tests_in_the_threat_model_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    functions = set(re.findall(r"`(test_\w+)`", page))
    modules = set(re.findall(r"[\w-]+\.py", page))
    defined: set[str] = set()
    files: set[str] = set()
    for folder in _FOLDERS:
        for path in (ROOT / folder).rglob("test_*.py"):
            files.add(path.name)
            defined |= set(re.findall(r"def (test_\w+)\(", path.read_text()))
    assert functions
    assert functions - defined == set()
    assert modules - files == set()


def test_the_test_files_in_the_conformance_page_exist() -> None:
    page = (ROOT / "docs" / "project" / "conformance.md").read_text()
    named = set(re.findall(r"test_\w+\.py", page))
    files = {path.name for folder in _FOLDERS for path in (ROOT / folder).rglob("test_*.py")}
    assert named
    assert named - files == set()
