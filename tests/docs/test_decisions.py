"""The index of the decisions lists every one of them, and no link in the documents is broken."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
_LINK = re.compile(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)")


def row(page: Path) -> str:
    """A decision's row of the index, from the first lines of its page."""
    match = re.match(r"# (\d+)\. (.+)\n\nStatus: (.+)\nDate: (\d{4}-\d\d-\d\d)\n", page.read_text())
    assert match is not None, f"{page.name} begins with '# N. Title', Status: and Date:"
    number, title, status, date = match.groups()
    assert page.name.startswith(f"{int(number):04}-")
    return f"| [{page.name[:4]}]({page.name}) | {title} | {status} | {date} |"


def test_the_index_of_the_decisions_is_fresh() -> None:
    rows = [row(page) for page in sorted(DECISIONS.glob("[0-9]*.md"))]
    index = (DECISIONS / "README.md").read_text().splitlines()
    assert [line for line in index if line.startswith("| [")] == rows


def test_links_between_documents_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("[!.]*/**/*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        if not {"node_modules", "build", "dist"} & set(page.relative_to(ROOT).parts)
        for link in _LINK.findall(page.read_text())
        if not (page.parent / link).exists()
    ]
    assert broken == []
