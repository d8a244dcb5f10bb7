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
    tag = archive_of(name).name.removeprefix(f"{name}-").removesuffix("-linux-amd64.tar")
    return f"ghcr.io/capelin/{name}:{tag}"
