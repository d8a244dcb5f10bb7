"""Patterns in CRDs have the same meaning in the API server (RE2) and in Python."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from capelin.api import Unstructured
from capelin.client import Client, Invalid
from capelin.yaml import read_all_yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import Annotated  # noqa: UP035

ROOT = Path(__file__).parents[2]
_CRDS = sorted((ROOT / "charts" / "capelin-crds" / "templates").glob("*-kinds.yaml"))
_CLASSES = re.compile(r"\\[sSwWdDbB]|\[:|\(\?[^:]|\\[pP]\b")
"""Differences between engines: RE2 as ASCII, pydantic as Unicode."""


def patterns() -> list[str]:
    """The patterns of all generated CRDs."""
    found: set[str] = set()
    for file in _CRDS:
        found.update(_patterns(list(read_all_yaml(_without_helm(file.read_text())))))
    return sorted(found)


def _without_helm(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "{{" not in line)


def _patterns(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        if isinstance(mapping.get("pattern"), str):
            yield mapping["pattern"]
        for child in mapping.values():
            yield from _patterns(child)
    elif isinstance(value, list):
        for child in cast("list[Any]", value):
            yield from _patterns(child)


def test_the_crds_contain_patterns() -> None:
    assert len(patterns()) > 10


@pytest.mark.parametrize("pattern", patterns())
def test_a_pattern_has_only_ascii_classes_and_is_valid_in_python(pattern: str) -> None:
    assert not _CLASSES.search(pattern), "write an ASCII class such as [!-~] or [0-9]"
    # In Python's re, `$` also matches before a newline at the end.
    assert TypeAdapter(Annotated[str, Field(pattern=pattern)])


def _texts(pattern: str) -> st.SearchStrategy[str]:
    """Matching texts, and similar texts with characters that engines treat differently."""
    matching = st.from_regex(re.compile(pattern, re.ASCII))
    odd = st.sampled_from(
        ["\u00a0", "\u2028", "\n", "\r", "\x0b", "\u0661", "\u00e9", "\u212a", ""]
    )
    return matching | st.tuples(matching, odd).map("".join) | st.tuples(odd, matching).map("".join)


def _crd(pattern: str, number: int) -> Unstructured:
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string", "pattern": pattern}},
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    names = {"plural": f"pattern{number}s", "kind": f"Pattern{number}"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.patterns.capelin.test"},
        "spec": {
            "group": "patterns.capelin.test",
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }


@pytest.fixture(scope="session")
def pattern_kinds(install_crds: Any) -> list[str]:
    known = patterns()
    install_crds(*(_crd(pattern, number) for number, pattern in enumerate(known)))
    return known


@pytest.mark.integration
@pytest.mark.parametrize("pattern", patterns())
async def test_the_api_server_and_python_agree_on_a_pattern(
    client: Client, namespace: str, pattern_kinds: list[str], pattern: str
) -> None:
    number = pattern_kinds.index(pattern)
    adapter = TypeAdapter(Annotated[str, Field(pattern=pattern)])

    async def admitted(text: str) -> bool:
        manifest = {
            "apiVersion": "patterns.capelin.test/v1",
            "kind": f"Pattern{number}",
            "metadata": {"name": "a", "namespace": namespace},
            "text": text,
        }
        try:
            await client.create(manifest, dry_run=True)
        except Invalid:
            return False
        return True

    def read(text: str) -> bool:
        try:
            adapter.validate_python(text)
        except ValidationError:
            return False
        return True

    texts: list[str] = []

    @settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
    @example("https://a.example/\u00a0")
    @example("0 22 * *\u00a0SAT")
    @given(_texts(pattern))
    def collect(text: str) -> None:
        texts.append(text)

    collect()
    differences = [text for text in set(texts) if await admitted(text) != read(text)]
    assert differences == []
