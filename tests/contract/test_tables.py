"""The providers' tables of their contracts: complete, and pointing at code and tests that exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from capelin.conformance.contracts import (
    CONTROL_PLANE,
    INFRA_CLUSTER,
    INFRA_MACHINE,
    INFRA_MACHINE_POOL,
)
from capelin.conformance.contracts.rule import Contract

ROOT = Path(__file__).parents[2]
CONTROL_PLANES, MACHINE_POOLS = "providers/control-plane", "providers/machine-pool"
KINDS = [
    (CONTROL_PLANES, ("The contract",), CONTROL_PLANE),
    (MACHINE_POOLS, ("For every kind", "InfraCluster"), INFRA_CLUSTER),
    (MACHINE_POOLS, ("For every kind", "InfraMachine"), INFRA_MACHINE),
    (
        MACHINE_POOLS,
        ("For every kind", "InfraMachinePool", "MachinePool Machines"),
        INFRA_MACHINE_POOL,
    ),
]


class Row(NamedTuple):
    """What a table says of some rules."""

    provider: str
    heading: str
    rules: str
    where: str
    test: str

    @property
    def titles(self) -> set[str]:
        return {rule.partition(":")[0].strip() for rule in self.rules.split(";")}


def rows(provider: str) -> Iterator[Row]:
    heading, in_table = "", False
    for line in (ROOT / provider / "README.md").read_text().splitlines():
        if line.startswith("#"):
            heading = line.strip("# ")
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells == ["rule", "where", "test"]:
            in_table = True
        elif len(cells) != 3:
            in_table = False
        elif in_table and cells[0].strip("-"):
            yield Row(provider, heading, *cells)


ROWS = [row for provider in (CONTROL_PLANES, MACHINE_POOLS) for row in rows(provider)]


def code(provider: str) -> dict[str, str]:
    """The provider's modules by their paths in its package."""
    (package,) = (ROOT / provider / "src").iterdir()
    return {str(file.relative_to(package)): file.read_text() for file in package.rglob("*.py")}


CODE = {provider: code(provider) for provider in (CONTROL_PLANES, MACHINE_POOLS)}


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize(
    ("provider", "headings", "contract"), KINDS, ids=[contract.name for *_, contract in KINDS]
)
def test_every_rule_of_a_contract_has_a_row(
    provider: str, headings: tuple[str, ...], contract: Contract
) -> None:
    told = {
        title
        for row in ROWS
        if (row.provider, row.heading in headings) == (provider, True)
        for title in (*row.titles, row.heading)
    }
    assert [rule.title for rule in contract if rule.title not in told] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rules[:40])
def test_a_row_names_code_that_exists(row: Row) -> None:
    modules = CODE[row.provider]
    for name in named(row.where):
        if name.endswith((".py", "/")):
            assert [module for module in modules if module.startswith(name)], name
        elif re.fullmatch(r"(\w+\.)+_?[a-z_]+", name) and not name.startswith(("spec.", "capelin")):
            assert any(
                re.search(rf"\b{name.rpartition('.')[2]}\b", text) for text in modules.values()
            ), name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rules[:40])
def test_a_row_names_tests_that_exist_or_says_why_there_are_none(row: Row) -> None:
    places = (ROOT / row.provider / "tests", ROOT / row.provider, ROOT / "tests/integration", ROOT)
    tests = [name for name in named(row.test) if "test" in name]
    assert tests or row.where.startswith("no") or row.test, "no word of a test"
    for name in tests:
        (found, *_) = [place / name for place in places if (place / name).exists()] or [None]
        assert found, f"there is no {name}"
        texts = [file.read_text() for file in (found.rglob("*.py") if found.is_dir() else [found])]
        assert any(re.search(r"^(async )?def test_", text, re.MULTILINE) for text in texts), name
