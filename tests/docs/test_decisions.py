"""The index of the decisions lists every one of them, and no link in the documents is broken."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
_LINK = re.compile(r"\]\((?!\w+:)([^)\s]+)\)")
_FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_MARKUP = re.compile(r"[`*]|\]\([^)]*\)|\[")


def row(page: Path) -> str:
    """A decision's row of the index, from the first lines of its page."""
    match = re.match(r"# (\d+)\. (.+)\n\nStatus: (.+)\nDate: (\d{4}-\d\d-\d\d)\n", page.read_text())
    assert match is not None, f"{page.name} begins with '# N. Title', Status: and Date:"
    number, title, status, date = match.groups()
    assert page.name.startswith(f"{int(number):04}-")
    return f"| [{page.name[:4]}]({page.name}) | {title} | {status} | {date} |"


def test_the_index_of_the_decisions_is_current() -> None:
    rows = [row(page) for page in sorted(DECISIONS.glob("[0-9]*.md"))]
    index = (DECISIONS / "README.md").read_text().splitlines()
    assert [line for line in index if line.startswith("| [")] == rows


def pages() -> Iterator[Path]:
    """Every Markdown page of the repository."""
    for page in [*ROOT.glob("*.md"), *ROOT.glob("[!.]*/**/*.md")]:
        if not {"node_modules", "build", "dist"} & set(page.relative_to(ROOT).parts):
            yield page


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings that work both on GitHub and on the site."""
    text = _FENCE.sub("", page.read_text())
    plain = [_MARKUP.sub("", heading).strip().lower() for heading in _HEADING.findall(text)]
    words = [re.sub(r"[^\w\s-]", "", heading) for heading in plain]
    on_github = {re.sub(r"\s", "-", heading) for heading in words}
    on_the_site = {re.sub(r"[-\s]+", "-", heading) for heading in words}
    return frozenset(on_github & on_the_site)


def broken(page: Path, link: str) -> bool:
    """Whether the file or the heading that a link names is missing."""
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return not target.exists() or (bool(anchor) and anchor not in anchors(target))


def test_links_lead_to_existing_files_and_headings() -> None:
    assert [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages()
        for link in _LINK.findall(_FENCE.sub("", page.read_text()))
        if broken(page, link)
    ] == []


def test_a_link_to_a_missing_heading_is_broken(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n## `status`: the *command*\n\n```sh\n# no heading\n```\n")
    assert [
        link
        for link in (
            "page.md",
            "#a-page",
            "page.md#status-the-command",
            "page.md#no-heading",
            "#gone",
            "other.md",
            "picture.svg",
        )
        if broken(page, link)
    ] == ["page.md#no-heading", "#gone", "other.md", "picture.svg"]
