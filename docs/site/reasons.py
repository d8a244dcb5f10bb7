"""Write the tables of reasons into the troubleshooting page: python docs/site/reasons.py."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from capelin.provider import FrameReason, Reasons
from capelin_control_plane.api.reasons import Reason as ControlPlaneReason
from capelin_lifecycle.reasons import Reason as PolicyReason
from capelin_machine_pool.reasons import Reason as MachineReason

PAGE: Final = Path(__file__).parents[1] / "troubleshooting.md"
REASONS: Final[dict[str, type[Reasons]]] = {
    "Of every provider's objects": FrameReason,
    "Of a CapelinControlPlane": ControlPlaneReason,
    "Of machines and pools": MachineReason,
    "Of a policy": PolicyReason,
}
"""The headings of the page, and the reasons that their tables list."""
_TABLE: Final = re.compile(r"\| reason \|.*\n(?:\|.*\n)+")


def with_tables(page: str) -> str:
    """The page with each table as the code has it."""
    for heading, reasons in REASONS.items():
        before, found, section = page.partition(f"\n## {heading}\n")
        table = _TABLE.search(section)
        if table is None:
            raise ValueError(f"{PAGE.name} has no heading {heading!r} with a table of reasons")
        rest = section[: table.start()] + _table(reasons) + section[table.end() :]
        page = before + found + rest
    return page


def _table(reasons: Iterable[Reasons]) -> str:
    rows = [f"| `{reason}` | {reason.meaning} | {reason.next_step} |" for reason in reasons]
    return "\n".join(["| reason | meaning | next step |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
