"""Taking programs out of official images: manifest, layers, and the files in them."""

import shutil
import tarfile
import zlib
from asyncio import to_thread
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath

from capelin.embedded.binaries.cache import Workplace
from capelin.embedded.binaries.catalogue import Platform
from capelin.embedded.binaries.errors import WayFailedError
from capelin.embedded.binaries.registry import Reference, Repository
from capelin.embedded.binaries.web import Web

Advanced = Callable[[int, int], None]


async def pull(
    internet: Web,
    reference: Reference,
    files: Iterable[str],
    *,
    base: str,
    digest: str | None,
    platform: Platform,
    place: Workplace,
    advanced: Advanced,
) -> tuple[str, Mapping[str, Path]]:
    """Files of an image by their path in it, and the digest of the image that they come from.

    With `digest`, that content is pulled whatever the tag stands for by now.
    """
    repository = Repository(internet, base, reference.repository)
    found_digest, manifest = await repository.resolve(digest or reference.tag, platform)
    missing = set(files)
    found: dict[str, Path] = {}
    # Programs are the last thing that is put into an image, on a base that need not be pulled.
    for layer in reversed(manifest.layers):
        archive = place.partial / layer.sha256
        await repository.blob(layer, archive, lambda done, all_=layer.size: advanced(done, all_))
        try:
            found |= await to_thread(extract, archive, missing, place.folder)
        finally:
            archive.unlink()
        missing -= found.keys()
        if not missing:
            return found_digest, found
    raise WayFailedError(f"it holds no {' and no '.join('/' + each for each in sorted(missing))}")


def extract(archive: Path, files: Iterable[str], folder: Path) -> dict[str, Path]:
    """Those of some files that are in a layer, each under its last name in `folder`."""
    wanted = set(files)
    found: dict[str, Path] = {}
    try:
        with tarfile.open(archive) as layer:
            for member in layer:
                name = str(PurePosixPath("/", member.name)).lstrip("/")
                if name not in wanted:
                    continue
                content = layer.extractfile(member) if member.isreg() else None
                if content is None:
                    raise WayFailedError(f"/{name} is not a plain file in it")
                into = folder / PurePosixPath(name).name
                with content, into.open("wb") as file:
                    shutil.copyfileobj(content, file)
                found[name] = into
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise WayFailedError(f"one of its layers cannot be unpacked ({error})") from error
    return found
