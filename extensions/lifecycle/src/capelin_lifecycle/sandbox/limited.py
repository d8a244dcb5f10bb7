"""Replaces itself by a program whose CPU time, memory and files the kernel limits.

Called as `limited.py CPU_SECONDS MEMORY_BYTES PROGRAM ARGUMENT...`, with only the standard library.
"""

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

_FILES = 64


def main() -> None:
    """Set the limits, and run the program."""
    seconds, memory, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
        # Programs in Go reserve more addresses than they use.
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _FILES),
    ):
        resource.setrlimit(kind, (most, most))
    with suppress(OSError):
        # If the container lacks memory, the kernel ends this process before the extension.
        Path("/proc/self/oom_score_adj").write_text("1000")
    os.execv(program, sys.argv[3:])  # noqa: S606 - the program of the administrator


if __name__ == "__main__":
    main()
