"""The page about `capelin explain`."""

import re
from pathlib import Path
from typing import get_args

from capelin_cli.explain.model import Cause

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "explain.md"


def test_the_page_lists_all_causes() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    listed = [cause for row in rows for cause in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(listed) == sorted(get_args(Cause))
