"""The example provider with a journal of the begin and end of each reconcile."""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from capelin.controller import Context, Options, Result, flag, main
from example import School, Schools


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions(Options):
    """The usual options and the path of the journal."""

    journal: Path = flag(Path("journal"), Path, "The file to append to.")


class JournaledSchools(Schools):
    """A line before and a line after each reconcile: `began s0001 3 123.456`."""

    def __init__(self, journal: Path) -> None:
        # Appended in one call, so that the lines of two processes do not mix.
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def reconcile(self, ctx: Context, school: School, /) -> Result:
        """Reconcile, between two lines."""
        self._note("began", school)
        try:
            return await super().reconcile(ctx, school)
        finally:
            self._note("ended", school)

    def _note(self, what: str, school: School) -> None:
        line = f"{what} {school.name} {school.metadata.generation} {time.monotonic()}\n"
        os.write(self._journal, line.encode())


def build(options: JournalOptions) -> list[Schools]:
    return [JournaledSchools(options.journal)]


if __name__ == "__main__":
    sys.exit(main("capelin-schools", build, JournalOptions))
