"""A manager whose reconciles block the event loop for `spec.seconds`."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le
from capelin.api import Model, Object, kind
from capelin.controller import Context, Done, For, Options, Reconciler, Result, flag, main


class Spec(Model):
    seconds: Annotated[int, Ge(0), Le(100)] = 0


class Status(Model):
    pass


@kind(group="blocking.test", version="v1")
class Stone(Object[Spec, Status]):
    """A kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockingOptions(Options):
    journal: Path = flag(Path("journal"), Path, "Where to write what is reconciled.")


class Stones(Reconciler[Stone]):
    watches = (For(Stone),)

    def __init__(self, journal: Path) -> None:
        self._journal = journal

    async def reconcile(self, ctx: Context, stone: Stone, /) -> Result:
        ctx.log.info("Began")
        self._write("began")
        time.sleep(stone.spec.seconds)  # noqa: ASYNC251 - the test needs a blocked loop
        self._write("ended")
        return Done()

    def _write(self, what: str) -> None:
        with self._journal.open("a") as journal:
            journal.write(f"{what} {time.time()}\n")


if __name__ == "__main__":
    sys.exit(main("capelin-stones", lambda options: [Stones(options.journal)], BlockingOptions))
