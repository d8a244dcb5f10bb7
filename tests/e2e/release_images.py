"""The images of the release in dist/, which the sessions `e2e` and `pulumi` build first."""

from pathlib import Path
from typing import Final

RELEASE: Final = Path(__file__).parents[2] / "dist"


def archive_of(name: str) -> Path:
    """The archive with the image of one of our programs."""
    found = [*RELEASE.glob(f"images/{name}-v*-linux-amd64.tar")]
    if len(found) != 1:
        raise RuntimeError(f"dist/ has no release with an image of {name}: run `nox -s release`")
    return found[0]


def image_of(name: str) -> str:
    """The name of that image."""
    return f"ghcr.io/capelin/{name}:{tag_of(archive_of(name))}"


def tag_of(archive: Path) -> str:
    """The tag of an image, from the name of its archive."""
    version = archive.name.removesuffix("-linux-amd64.tar").rpartition("-v")[2]
    return f"v{version}"
