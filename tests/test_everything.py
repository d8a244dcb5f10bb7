"""The run of all sessions, and which tests they have."""

import re
from pathlib import Path

import noxfile
from tests.everything import Outcome, outcome_of, page

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r'"(tests/[\w/.]+)"')
"""Folders and files that the menu names."""


def test_every_test_belongs_to_a_session() -> None:
    named = [*noxfile.folders_with_tests(), *noxfile.SHARED, *NAMED.findall(_menu())]
    places = [ROOT / name for name in named]
    roots = [ROOT / name for name in noxfile.CODE]
    files = [file for root in roots for file in root.rglob("test_*.py")]
    assert len(files) > 100
    alone = [file for file in files if not any(file.is_relative_to(place) for place in places)]
    assert alone == []


def test_a_run_counts_the_tests_of_a_session() -> None:
    output = (
        "===== 7 passed, 1 failed, 3 deselected in 12.10s =====\n"
        "the summary of a test: 99 passed\n"
        "===== 2 passed in 1721.71s (0:28:41) =====\n"
    )
    expected = Outcome("e2e", ok=False, passed=9, failed=1, skipped=0, minutes=2.5, load=1.0)
    assert outcome_of("e2e", 1, output, 2.46, 1.0) == expected


def test_the_page_shows_each_session() -> None:
    outcome = Outcome("ui", ok=True, passed=13, failed=0, skipped=0, minutes=3.0, load=1.5)
    text = page("0123456789abcdef", "2026-11-28", [outcome])
    assert "Commit `0123456789ab`" in text
    assert "| ui | green | 13 | 0 | 0 | 3.0 | 1.5 |" in text


def _menu() -> str:
    return (ROOT / "noxfile.py").read_text()
