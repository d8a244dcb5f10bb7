"""The settings of a project's releases: `[tool.capelin.release]` of its pyproject.toml."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capelin.errors import InvalidInputError
from pydantic import BaseModel, ConfigDict, ValidationError

from capelin_release.commit import Commit
from capelin_release.oci import Store

ARCHITECTURES = ("amd64", "arm64")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ImageSpec(_Strict):
    """The contents of an image."""

    name: str
    """Such as `capelin-machine-pool`."""
    package: str
    """The Python package that uv.lock has under this name, with all that it needs."""
    module: str
    """The module that a container starts."""
    description: str
    programs: tuple[str, ...] = ()
    """Go programs that go with it, by their names in programs.lock."""


class ReleaseSettings(_Strict):
    """The settings of a project's releases."""

    name: str = ""
    """Begins the name of the bundle; by default that of the project."""
    registry: str
    """Where images and charts are published, such as `ghcr.io/example`."""
    source: str = ""
    """Where the source is."""
    architectures: tuple[str, ...] = ARCHITECTURES
    images: tuple[ImageSpec, ...] = ()
    installation: str = ""
    """Function that describes the installation, such as `my_cloud.release:installation`."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release in progress: its commit, its folder, and the store of its images."""

    version: str
    """The version of charts, images and component files: `0.2.0`, `0.2.0-rc.1`."""
    commit: Commit
    settings: ReleaseSettings
    tree: Path
    """The commit's files, with the version in them."""
    out: Path
    store: Store

    @property
    def tag(self) -> str:
        """The version of images and folders: `v0.2.0`."""
        return f"v{self.version}"


class Project:
    """A checked out project: its pyproject.toml, and those of its workspace's members."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        file = folder / "pyproject.toml"
        try:
            self._content: dict[str, Any] = tomllib.loads(file.read_text())
        except FileNotFoundError as error:
            raise InvalidInputError(
                f"{file} does not exist.", hint="Run this in a project."
            ) from error

    @property
    def name(self) -> str:
        """The name of its package or workspace."""
        return str(self._content["project"]["name"])

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
    def packages(self) -> list[str]:
        """The names of its packages."""
        contents = [tomllib.loads(file.read_text()) for file in self.files]
        return [str(content["project"]["name"]) for content in contents]

    @property
    def release(self) -> ReleaseSettings:
        """The settings of its releases.

        Raises:
            InvalidInputError: the settings are missing or invalid.
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
