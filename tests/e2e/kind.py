"""Clusters made by kind, and images of single programs for them."""

import asyncio
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

IMAGE: Final = "CAPELIN_E2E_NODE_IMAGE"
"""The variable with the node image of kind; its default is kind's own."""


class CommandError(Exception):
    """A command failed; what it printed."""


def missing() -> str | None:
    """What this machine lacks for clusters of kind."""
    absent = [name for name in ("kind", "docker") if shutil.which(name) is None]
    return f"there is no {' and no '.join(absent)} on PATH" if absent else None


async def run(*command: object, environment: Mapping[str, str] | None = None) -> str:
    """Run a command; returns its standard output."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        env={**os.environ, **(environment or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    if process.returncode:
        raise CommandError(f"{command}\n{out.decode()}\n{err.decode()}")
    return out.decode()


@dataclass(frozen=True)
class Kind:
    """A cluster of kind."""

    name: str
    kubeconfig: Path

    async def create(self) -> None:
        image = os.environ.get(IMAGE)
        chosen = [f"--image={image}"] if image else []
        await run(
            *("kind", "create", "cluster", f"--name={self.name}", "--wait=10m"),
            *chosen,
            f"--kubeconfig={self.kubeconfig}",
        )

    async def load(self, *archives: Path) -> None:
        """Have nodes know images, from archives as `docker save` writes them."""
        for archive in archives:
            await run("kind", "load", "image-archive", archive, f"--name={self.name}")

    async def delete(self) -> None:
        await run(
            *("kind", "delete", "cluster", f"--name={self.name}"),
            f"--kubeconfig={self.kubeconfig}",
        )


def program_image(file: Path, reference: str, to: Path) -> Path:
    """Write an archive of an image of one static program, `/manager`, for user 65532."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        entry = tarfile.TarInfo("manager")
        entry.size, entry.mode = file.stat().st_size, 0o755
        with file.open("rb") as content:
            tar.addfile(entry, content)
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(folder)
    data = layer.getvalue()
    config: dict[str, Any] = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/manager"], "User": "65532"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]
    with tarfile.open(to, "w") as tar:
        for name, content in (
            ("layer.tar", data),
            ("config.json", json.dumps(config).encode()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return to
