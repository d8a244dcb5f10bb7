"""Each fact about another project is a link to the version of a page that was read."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "project" / "comparison.md"
UNVERSIONED = ("https://vcluster.com/", "https://docs.okd.io/")
_PAGE_OF_A_REPOSITORY = re.compile(r"https://github\.com/[\w-]+/[\w-]+/(?:blob|tree)/([^/]+)/")
_PLACE_OF_A_REPOSITORY = re.compile(r"https://github\.com/[\w-]+/[\w-]+(?:/releases)?")


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_each_fact_about_another_project_has_a_link() -> None:
    table = rows("Hosted control planes")
    assert table
    for aspect, _, *others in table:
        assert [cell for cell in others if "](https://" not in cell] == [], aspect
    assert [row[0] for row in rows("Published numbers") if "](" not in row[1]] == []


def test_each_link_names_the_version_that_was_read() -> None:
    for link in re.findall(r"\]\((https://[^)]+)\)", PAGE.read_text()):
        if (page := _PAGE_OF_A_REPOSITORY.match(link)) is not None:
            assert re.fullmatch(r"[0-9a-f]{40}", page[1]), link
        else:
            assert link.startswith(UNVERSIONED) or _PLACE_OF_A_REPOSITORY.fullmatch(link), link
