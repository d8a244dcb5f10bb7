"""Finds processes that still use a folder after a test."""

import os
from contextlib import suppress
from pathlib import Path


def mentioning(folder: Path, *files: str) -> list[str]:
    """Command lines of processes that mention a folder in these files of /proc."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            texts = [(entry / file).read_bytes() for file in ("cmdline", *files)]
            if any(str(folder).encode() in text for text in texts):
                found.append(texts[0].decode().replace("\0", " "))
    return found
