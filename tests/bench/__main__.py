"""Measures what the documents promise: `python -m tests.bench [NAME ...] [--json FILE]`.

A benchmark is a module in this folder with `async def measure() -> list[Row]`.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from capelin.client.destinations import VARIABLE
from rich.console import Console
from rich.table import Table

from tests.bench.rows import Row

BENCHMARKS = (
    "environment",
    "controller",
    "control_plane",
    "sizing",
    "fleet",
    "day_two",
    "machine_pool",
    "runtime_hooks",
    "lifecycle",
)


def machine() -> dict[str, Any]:
    """The machine of the measurement."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": [round(load, 1) for load in os.getloadavg()],
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def table(name: str, rows: list[Row]) -> Table:
    """A benchmark's rows in a table."""
    rendered = Table(
        "figure", "measured", "unit", "limit", "", "for comparison", title=name, title_style="bold"
    )
    rendered.columns[1].justify = "right"
    for row in rows:
        verdict = "" if not row.limit else "[green]ok[/]" if row.ok else "[red]not met[/]"
        rendered.add_row(
            row.name, f"{row.measured:.4g}", row.unit, row.limit, verdict, row.comparison
        )
    return rendered


def main() -> int:
    """Run the selected benchmarks, print them, and fail if a figure exceeds its limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    # All workload clusters of benchmarks are on this machine.
    os.environ.setdefault(VARIABLE, "127.0.0.0/8")
    console = Console(width=None if sys.stdout.isatty() else 120)
    facts = machine()
    console.print(" ".join(f"{key}={value}" for key, value in facts.items()), highlight=False)
    measured: dict[str, list[Row]] = {}
    for name in options.names or BENCHMARKS:
        measured[name] = asyncio.run(import_module(f"tests.bench.{name}").measure())
        console.print(table(name, measured[name]))
    if options.json is not None:
        figures = {
            name: [{**asdict(row), "ok": row.ok} for row in rows] for name, rows in measured.items()
        }
        options.json.write_text(json.dumps({"machine": facts, "figures": figures}, indent=2) + "\n")
    return 0 if all(row.ok for rows in measured.values() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
