"""Public Python names stay, and documents, examples and new projects import no others."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.public_names import MODULES, public_names, recorded_names

ROOT = Path(__file__).parents[2]
SCAFFOLDS = ROOT / "infra" / "src" / "capelin_cli" / "scaffold"
_GUIDES = ("providers", "extensions", "controllers", "testing", "writing")
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_no_public_name_has_disappeared() -> None:
    missing = sorted({*recorded_names()} - {*public_names()})
    assert not missing, (
        f"These public names are gone: {', '.join(missing)}. Others import them. Keep each one for"
        " a minor version, with a DeprecationWarning that names its successor, and write both into"
        " CHANGELOG.md. If it was deprecated long enough, or no release had it, run"
        " `python -m tools.public_names` and commit docs/reference/public-names.txt."
    )


def test_every_public_name_exists() -> None:
    for name in public_names():
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def sources() -> Iterator[tuple[str, str]]:
    """Code that others start from, with its place."""
    for guide in _GUIDES:
        page = ROOT / "docs" / f"{guide}.md"
        for block in _PYTHON.finditer(page.read_text()):
            yield f"{page.name}:{block.start()}", block[1]
    for file in sorted((ROOT / "examples").glob("*/*.py")):
        yield str(file.relative_to(ROOT)), file.read_text()
    for file in sorted(SCAFFOLDS.rglob("*.py.txt")):
        text = re.sub(r"\{\{(\w+)\}\}", r"\1", file.read_text())
        yield str(file.relative_to(SCAFFOLDS)), text


@pytest.mark.parametrize(("place", "text"), [pytest.param(*x, id=x[0]) for x in sources()])
def test_code_that_others_start_from_imports_public_names_only(place: str, text: str) -> None:
    imported = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("capelin")
        for alias in node.names
    }
    assert imported - {*public_names(), *MODULES} == set(), place
