"""An image of one manager for Deployments of Cluster API's providers."""

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def manager_image(file: Path, reference: str, to: Path) -> Path:
    """Write an archive of an image of one static program, `/manager`, for user 65532."""
    layer = _tar([("manager", file.read_bytes(), 0o755)])
    config: dict[str, Any] = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/manager"], "User": "65532"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]
    files = [
        ("layer.tar", layer, 0o644),
        ("config.json", json.dumps(config).encode(), 0o644),
        ("manifest.json", json.dumps(manifest).encode(), 0o644),
    ]
    to.write_bytes(_tar(files))
    return to


def _tar(files: Sequence[tuple[str, bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content, mode in files:
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
