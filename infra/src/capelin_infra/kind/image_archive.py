"""The digest of an image archive, read without a container engine."""

import hashlib
import json
import tarfile
from pathlib import Path

from capelin.errors import InvalidInputError


def archive_digest(path: Path) -> str:
    """A digest that changes with any layer or setting of an archive's images, whatever packs it.

    Raises:
        InvalidInputError: if the file is no image archive.
    """
    try:
        with tarfile.open(path) as archive:
            for name in ("index.json", "manifest.json"):
                try:
                    file = archive.extractfile(name)
                except KeyError:
                    continue
                if file is not None:
                    return _digest(json.load(file))
    except (OSError, tarfile.TarError, ValueError) as error:
        raise InvalidInputError(
            f"{path} cannot be read as an image archive.",
            reason=f"{error}.",
            hint="Name an OCI archive, or what `docker save` wrote.",
        ) from error
    raise InvalidInputError(
        f"{path} is no image archive.",
        reason="It has neither index.json nor manifest.json.",
        hint="Name an OCI archive, or what `docker save` wrote.",
    )


def _digest(index: object) -> str:
    """Both kinds of index name everything else in the archive by its digest."""
    text = json.dumps(index, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
