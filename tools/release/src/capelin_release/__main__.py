"""Builds a release: `python -m capelin_release --out dist`."""

import argparse
import sys
from functools import partial
from pathlib import Path

from capelin.errors import UserError

from capelin_release.build import build_release


def main() -> int:
    """Build the release of the commit that is checked out in this folder."""
    parser = argparse.ArgumentParser(prog="python -m capelin_release", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("dist"), help="(%(default)s)")
    options = parser.parse_args()
    try:
        build_release(Path.cwd(), options.out, partial(print, flush=True))
    except UserError as error:
        for line in filter(None, (error.message, error.reason, error.hint)):
            sys.stderr.write(f"{line}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
