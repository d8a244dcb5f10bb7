"""The lifecycle extension with another clock: the time is in the file that `$CLOCK` names.

Without such a file, it is the machine's.
"""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from capelin.client import Config
from capelin.runtime.server import serve
from capelin_lifecycle.__main__ import parse
from capelin_lifecycle.engine import Engine
from capelin_lifecycle.hooks import build

FILE = Path(os.environ["CLOCK"])


def clock() -> datetime:
    """The time that the test set."""
    try:
        return datetime.fromisoformat(FILE.read_text())
    except FileNotFoundError:
        return datetime.now(UTC)


if __name__ == "__main__":
    settings, others = parse(sys.argv[1:], os.environ)
    settings.apply()
    serve(build(Engine(Config.find, settings.engine, clock)), others)
