"""The checksums of a release, as `sha256sum --check` reads them."""

import hashlib
from pathlib import Path

FILE = "SHA256SUMS"


def write_checksums(folder: Path) -> Path:
    """Write the SHA-256 of every file below a folder into SHA256SUMS there."""
    lines = [
        f"{_digest(file)}  {file.relative_to(folder)}\n"
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != FILE
    ]
    sums = folder / FILE
    sums.write_text("".join(lines))
    return sums


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
