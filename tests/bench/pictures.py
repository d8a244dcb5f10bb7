"""Records what `capelin up` and `capelin status` print, from a real run, as pictures.

python tests/bench/pictures.py
"""

import asyncio
import io
import os
import tempfile
from pathlib import Path
from typing import Final

from capelin.embedded.management import environment_named, remove_environment
from capelin_infra.status import show
from capelin_infra.up import UpOptions, bring_up
from rich.console import Console

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"
NAME: Final = "default"


def console() -> Console:
    """A console that nobody sees, and that remembers what was printed."""
    return Console(record=True, file=io.StringIO(), width=92)


def save(recorded: Console, verb: str) -> None:
    """Write a picture of what was printed."""
    recorded.save_svg(str(IMAGES / f"{verb.split()[1]}.svg"), title=verb)


async def main() -> None:
    """Bring up an environment in a home of its own, and take it down again."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_STATE_HOME"] = home
        try:
            up = console()
            await bring_up(UpOptions(NAME), up)
            save(up, "capelin up")
            status = console()
            await show(NAME, watch=False, console=status)
            save(status, "capelin status")
        finally:
            await remove_environment(environment_named(NAME))


if __name__ == "__main__":
    asyncio.run(main())
