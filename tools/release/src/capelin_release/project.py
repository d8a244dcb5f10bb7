"""What a project says about its releases, in `[tool.capelin.release]` of its pyproject.toml."""

import tomllib
from pathlib import Path
from typing import Any

from capelin.errors import InvalidInputError
from pydantic import BaseModel, ConfigDict, ValidationError

from capelin_release.image import ARCHITECTURES, ImageSpec


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ReleasedImage(_Strict):
    """One image of a release."""

    name: str
    package: str
    module: str
    description: str
    programs: tuple[str, ...] = ()

    def spec(self) -> ImageSpec:
        """What it is made of."""
        return ImageSpec(**self.model_dump())


class ReleaseSettings(_Strict):
    """What a project releases."""

    registry: str
    """Where images and charts are published, as in `ghcr.io/example`."""
    source: str = ""
    """Where the source is."""
    architectures: tuple[str, ...] = ARCHITECTURES
    images: tuple[ReleasedImage, ...] = ()
    installation: str = ""
    """Function that describes what there is to install, as in `my_cloud.release:installation`."""


class Project:
    """A checked out project: its pyproject.toml, and those of its workspace's members."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._content = self._read(folder / "pyproject.toml")

    @property
    def version(self) -> str:
        """The version in its files, which is the next release's."""
        return str(self._content["project"]["version"])

    @property
    def files(self) -> list[Path]:
        """Every pyproject.toml that has the version."""
        workspace = self._content.get("tool", {}).get("uv", {}).get("workspace", {})
        members = [
            file
            for pattern in workspace.get("members", [])
            for file in sorted(self.folder.glob(f"{pattern}/pyproject.toml"))
        ]
        return [self.folder / "pyproject.toml", *members]

    @property
    def release(self) -> ReleaseSettings:
        """What it releases.

        Raises:
            InvalidInputError: It does not say, or not clearly.
        """
        settings = self._content.get("tool", {}).get("capelin", {}).get("release")
        if settings is None:
            raise InvalidInputError(
                f"{self.folder} has no release.", hint="Write [tool.capelin.release]."
            )
        try:
            return ReleaseSettings.model_validate(settings)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
                for problem in error.errors()
            )
            raise InvalidInputError(
                "[tool.capelin.release] is not valid.", reason=problems
            ) from error

    @staticmethod
    def _read(file: Path) -> dict[str, Any]:
        try:
            return tomllib.loads(file.read_text())
        except FileNotFoundError as error:
            raise InvalidInputError(f"{file} is not there.", hint="Run it in a project.") from error
