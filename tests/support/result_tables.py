"""Tables of results in the documents, which the command that measures them replaces."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_END: Final = "<!-- end of results -->"


@dataclass(frozen=True, slots=True)
class ResultTable:
    """The table of a command in a page, between two comments."""

    page: Path
    command: str

    @property
    def _begin(self) -> str:
        return f"<!-- results of {self.command} -->\n"

    def read(self) -> str:
        """The table that the page shows."""
        return self.page.read_text().partition(self._begin)[2].partition(_END)[0]

    def write(self, table: str) -> None:
        """Replace the table."""
        before, _, rest = self.page.read_text().partition(self._begin)
        self.page.write_text(f"{before}{self._begin}{table}{_END}{rest.partition(_END)[2]}")
