"""Archives with programs for hosts, as an administrator writes them."""

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

KUBELET = """\
#!/bin/sh
[ "$1" != --version ] || { echo Kubernetes VERSION; exit; }
while :; do sleep 1; done
"""


def add_archive(
    folder: Path, version: str, files: Mapping[str, bytes], architecture: str = "amd64"
) -> Path:
    """Write an archive of executable files, and its line in SHA256SUMS.

    It has the entries of `tar --create --directory FOLDER .` in a private folder of a user.
    """
    folder.mkdir(exist_ok=True)
    path = folder / f"kubernetes-{version}-linux-{architecture}.tar.gz"
    parents = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    with tarfile.open(path, "w:gz") as archive:
        for name in sorted(parents):
            entry = tarfile.TarInfo(name if name == "." else f"./{name}")
            entry.type, entry.mode, entry.uid = tarfile.DIRTYPE, 0o700, 1000
            archive.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size, entry.mode, entry.uid = len(content), 0o755, 1000
            archive.addfile(entry, io.BytesIO(content))
    with (folder / "SHA256SUMS").open("a") as sums:
        sums.write(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
    return path


def fake_programs(version: str) -> dict[str, bytes]:
    """A kubelet that reports a version. It comes first in the search path of hosts."""
    return {"usr/local/sbin/kubelet": KUBELET.replace("VERSION", version).encode()}
