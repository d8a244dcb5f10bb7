"""The examples of the guide work. Each section is a program with its test."""

import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

GUIDE = Path(__file__).parents[3] / "docs" / "extensions.md"
SECTIONS = re.split(r"^## ", GUIDE.read_text(), flags=re.MULTILINE)
SUBJECTS = (
    *("Timeouts", "Availability", "Blocking", "Side effects", "Idempotence", "Determinism"),
    *("Errors", "Deployment", "Routes of your own", "Hooks of your own"),
)


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)


def test_every_subject_has_a_section() -> None:
    assert tuple(section.partition("\n")[0] for section in SECTIONS[1:]) == SUBJECTS


@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.partition("\n")[0].strip("# "))
def test_the_code_of_a_section_passes_its_tests(section: str, tmp_path: Path) -> None:
    space: dict[str, Any] = {"__name__": "guide"}
    exec("\n".join(blocks(section, "python")), space)  # noqa: S102 - it is our own
    given: dict[str, object] = {"tmp_path": tmp_path}
    for manifest in blocks(section, "yaml"):
        given["manifest"] = yaml.safe_load(manifest)
    tests: list[Callable[..., Any]] = [v for k, v in space.items() if k.startswith("test_")]
    assert tests
    for test in tests:
        arguments = {name: given[name] for name in inspect.signature(test).parameters}
        result = test(**arguments)
        if inspect.iscoroutine(result):
            asyncio.run(result)
