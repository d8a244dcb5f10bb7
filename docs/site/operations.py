"""Write the table of operations into their page: python docs/site/operations.py."""

import re
from pathlib import Path
from typing import Final

from capelin_control_plane.operations.engine import RULES, Operation, Rule

PAGE: Final = Path(__file__).parents[1] / "concepts" / "operations.md"
_TABLE: Final = re.compile(r"\| in progress \|.*\n(?:\|.*\n)+")
_SHORT: Final = {
    Operation.ROTATION: "rotation 1, 2",
    Operation.CLIENTS: "rotation 3",
    Operation.ENCRYPTION: "encryption",
    Operation.REWRITE: "rewrite",
    Operation.ROLLOUT: "rollout",
    Operation.MEMBERS: "members",
    Operation.BACKUP: "backup",
    Operation.SPACE: "defragmentation",
    Operation.RESTORE: "restore",
    Operation.SLEEP: "sleep",
    Operation.MOVE: "move",
    Operation.PAUSE: "pause",
    Operation.DELETION: "deletion",
}
_CELLS: Final = {Rule.PARALLEL: "", Rule.WAITS: "waits", Rule.ENDS: "ends", Rule.JOINS: "-"}


def with_table(page: str) -> str:
    """The page with the table as the code has it."""
    if _TABLE.search(page) is None:
        raise ValueError(f"{PAGE.name} has no table of operations")
    header = ["in progress", *(_SHORT[operation] for operation in Operation)]
    rows = [
        [str(row), *(_CELLS[RULES[row, requested]] for requested in Operation)] for row in Operation
    ]
    lines = [header, ["---"] * len(header), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return _TABLE.sub(lambda _: table, page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
