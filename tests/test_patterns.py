"""No regular expression takes the square of a text's length: tenants choose the texts.

Each text repeats parts of an expression. Some are the worst for a search that begins again at each
character.
"""

import importlib
import pkgutil
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import capelin
import capelin_cli
import capelin_control_plane
import capelin_lifecycle
import capelin_machine_pool
import pytest

PACKAGES = (
    capelin,
    capelin_control_plane,
    capelin_cli,
    capelin_lifecycle,
    capelin_machine_pool,
)
SIZE = 16 << 10
SECONDS = 0.05
"""Of processor time. One that takes the square needs a second, and others a thousandth."""
CHARACTERS = "a0A -._/:=\n{\"'$[\\"
SYNTAX = re.compile(r"\(\?[\w!<=:P]*>?|\[\^?\]?[^\]]*\]|[|()?*+^$]|\\[a-zA-Z]|\{\d*,?\d*\}")
"""Splits an expression into the texts that it contains."""
CALL = r"\b{0}\.(\w+)\(|_(match)\({0}\b"
Pattern = re.Pattern[str] | re.Pattern[bytes]


def modules() -> Iterator[ModuleType]:
    for package in PACKAGES:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                yield importlib.import_module(found.name)


def patterns() -> dict[str, tuple[Pattern, str]]:
    """The expressions of all modules by their names, and whether a module searches or matches."""
    found: dict[str, tuple[Pattern, str]] = {}
    for module in modules():
        source = Path(module.__file__ or "").read_text()
        for name, value in vars(module).items():
            # Others import it.
            if isinstance(value, re.Pattern) and re.search(rf"^{name}\b", source, re.MULTILINE):
                methods = {"".join(call) for call in re.findall(CALL.format(name), source)}
                method = "match" if methods and methods <= {"match", "fullmatch"} else "findall"
                found[f"{module.__name__}.{name}"] = (value, method)
    return found


PATTERNS = patterns()


def parts(pattern: Pattern) -> list[str]:
    """Pieces of the texts that an expression matches."""
    source = pattern.pattern
    text = source.decode() if isinstance(source, bytes) else source
    return sorted({re.sub(r"\\(\W)", r"\1", it).strip("\n") for it in SYNTAX.split(text)} - {""})


def texts(pattern: Pattern) -> Iterator[str]:
    for part in ("", *parts(pattern)):
        for character in ("", *CHARACTERS):
            if repeated := part + character:
                yield repeated * (SIZE // len(repeated)) + "\0"
                yield part + character * SIZE + "\0"


def seconds_of(pattern: Pattern, method: str, text: str) -> float:
    content = text.encode() if isinstance(pattern.pattern, bytes) else text
    start = time.thread_time()
    getattr(pattern, method)(content)
    return time.thread_time() - start


def test_all_modules_have_expressions() -> None:
    assert len(PATTERNS) > 80
    assert "capelin.controller.logs._SECRETS" in PATTERNS
    assert parts(re.compile(r"(?i)--?[\w-]*token\{\s*(.*?)")) == ["--", ".", "token{"]


@pytest.mark.parametrize("name", PATTERNS)
def test_the_time_of_an_expression_grows_with_the_text(name: str) -> None:
    pattern, method = PATTERNS[name]
    for text in texts(pattern):
        # The collection of garbage can be part of one of them.
        seconds = min(seconds_of(pattern, method, text) for _ in range(2))
        assert seconds < SECONDS, f"{method} of {text[:40]!r}... took {seconds:.2f} s"
