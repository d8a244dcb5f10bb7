"""`capelin mirror`: pushes the bundle of a release into a registry, with crane."""

import asyncio
import hashlib
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from capelin.errors import InvalidInputError, UserError
from capelin.programs import run_program
from capelin_embedded.binaries import Binaries

from capelin_cli.binaries import CRANE

REFERENCE: Final = "org.opencontainers.image.ref.name"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._/-]*:[A-Za-z0-9_][A-Za-z0-9_.-]*")
_REGISTRY: Final = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9a-fA-F:]+\])(:\d+)?(/[a-z0-9][a-z0-9._/-]*)?"
)


class RegistryError(UserError):
    """A registry refuses a push, or does not answer."""


class DamagedBundleError(UserError):
    """A bundle holds other bytes than it names."""


async def mirror(bundle: Path, registry: str, report: Callable[[str], None]) -> None:
    """Push everything in a bundle into a registry, and report each name that is complete.

    Credentials are those of `docker login`. Blobs that the registry has are not sent again.
    """
    place = registry.removeprefix("oci://").rstrip("/")
    if not _REGISTRY.fullmatch(place):
        raise InvalidInputError(
            f"{registry} is not a path in a registry.",
            hint="Write it as registry.example.com/path.",
        )
    with tempfile.TemporaryDirectory() as folder:
        layout = Path(folder)
        entries = await asyncio.to_thread(unpack, bundle, layout)
        crane = shutil.which("crane") or str(await Binaries().path(CRANE))
        for name, entry in entries.items():
            # crane pushes a layout with one entry as an image or index of that digest.
            index = {"schemaVersion": 2, "manifests": [entry]}
            (layout / "index.json").write_text(json.dumps(index))
            reference = f"{place}/{name}"
            pushed = await run_program(crane, "push", layout, reference)
            if pushed.code:
                raise RegistryError(
                    f"{reference} cannot be pushed.",
                    # Before it come the names of blobs that were pushed.
                    reason=pushed.errors[pushed.errors.rfind("Error: ") :].removeprefix("Error: "),
                    hint="Check the address, and log in with docker login if the registry asks.",
                )
            report(reference)


def unpack(bundle: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Unpack a bundle and check each blob's digest. Returns the entries of its index by name."""
    try:
        with tarfile.open(bundle) as archive:
            archive.extractall(folder, filter="data")
        index = json.loads((folder / "index.json").read_bytes())
        entries = {entry["annotations"][REFERENCE]: entry for entry in index["manifests"]}
        digests = {blob.name: _digest(blob) for blob in (folder / "blobs" / "sha256").iterdir()}
    except (tarfile.TarError, OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(f"{bundle} is not a bundle.", reason=str(error)) from error
    for name in entries:
        if not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"{bundle} is not a bundle.", reason=f"It has an entry {name!r}."
            )
    for name, digest in digests.items():
        if digest != name:
            raise DamagedBundleError(
                f"{bundle} is damaged: blob {name} has digest {digest}.",
                hint="Download it again, and compare it with SHA256SUMS.",
            )
    return entries


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
