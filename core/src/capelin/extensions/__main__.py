"""The program: `python -m capelin.extensions`."""

import sys

from capelin.controller import main
from capelin.extensions.controller import Extensions

if __name__ == "__main__":
    sys.exit(main("capelin-extensions", lambda _: [Extensions()]))
