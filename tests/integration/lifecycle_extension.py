"""The lifecycle extension with another clock: the time is in the file that `$CLOCK` names.

Without such a file, it is the machine's.
"""

import os
from datetime import UTC, datetime
from pathlib import Path

from capelin.client import Config
from capelin.runtime.server import read_options, serve
from capelin_lifecycle.__main__ import LifecycleOptions
from capelin_lifecycle.engine import Engine
from capelin_lifecycle.hooks import NAME, build

FILE = Path(os.environ["CLOCK"])


def clock() -> datetime:
    """The time that the test set."""
    try:
        return datetime.fromisoformat(FILE.read_text())
    except FileNotFoundError:
        return datetime.now(UTC)


if __name__ == "__main__":
    options = read_options(LifecycleOptions, NAME)
    options.apply()
    serve(build(Engine(Config.find, options.engine, clock)), options)
