"""Images of static programs, without a registry: archives as `docker save` writes them."""

import json
import tarfile
from collections.abc import Mapping
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, Final

_TEMPORARY: Final = "tmp"
"""The only folder that images have besides those of their programs."""


def program_image(reference: str, programs: Mapping[str, Path], **config: Any) -> bytes:
    """The archive of an image.

    Args:
        reference: Its name.
        programs: The files of its programs, by their paths in the image.
        config: Settings of its containers, such as `Entrypoint`.
    """
    layer = _layer(programs)
    image = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/bin"], **config},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]
    files = {
        "config.json": json.dumps(image).encode(),
        "layer.tar": layer,
        "manifest.json": json.dumps(manifest).encode(),
    }
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            _add(archive, name, content, 0o644)
    return buffer.getvalue()


def manager_image(program: Path, reference: str, to: Path, user: str = "65532") -> Path:
    """Write the archive of an image of a manager, `/manager`."""
    programs = {"manager": program}
    to.write_bytes(program_image(reference, programs, Entrypoint=["/manager"], User=user))
    return to


def _layer(programs: Mapping[str, Path]) -> bytes:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        temporary = tarfile.TarInfo(_TEMPORARY)
        temporary.type, temporary.mode = tarfile.DIRTYPE, 0o1777
        layer.addfile(temporary)
        for path, program in programs.items():
            _add(layer, path, program.read_bytes(), 0o755)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, BytesIO(content))
