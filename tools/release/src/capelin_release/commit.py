"""The commit that a release is built from: its version, its time, and its files on their own."""

import io
import re
import subprocess
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from capelin.errors import InvalidInputError
from packaging.version import Version

_TAG = re.compile(r"v\d+\.\d+\.\d+(-(alpha|beta|rc)\.\d+)?")


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a git repository."""

    repository: Path
    revision: str
    time: int
    """Seconds since 1970."""
    tags: tuple[str, ...]

    @classmethod
    def of(cls, repository: Path) -> "Commit":
        """The commit that is checked out."""
        revision, time = _git(repository, "log", "-1", "--format=%H %ct").decode().split()
        tags = _git(repository, "tag", "--points-at", "HEAD").decode().split()
        return cls(repository, revision, int(time), tuple(tags))

    def version(self, base: str) -> str:
        """The version of this commit, such as `0.2.0-rc.1`. `base` is the version in the project.

        A commit without a tag has a development version. Later commits have later versions.
        """
        versions = [tag.removeprefix("v") for tag in self.tags if _TAG.fullmatch(tag)]
        if len(versions) > 1:
            raise InvalidInputError(f"The commit has several tags: {', '.join(self.tags)}.")
        return versions[0] if versions else f"{base}-dev.{self.time}"

    def export(self, folder: Path) -> None:
        """Write the commit's files, and no others, into a folder."""
        archive = _git(self.repository, "archive", "--format=tar", self.revision)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")


def set_version(pyproject: Path, base: str, version: str, packages: Iterable[str]) -> None:
    """Write a version into a pyproject.toml, and into its requirements of the release's packages.

    Python packages write `0.2.0-rc.1` as `0.2.0rc1`.
    """
    own = "|".join(map(re.escape, packages))
    python = Version(version)
    text = pyproject.read_text()
    text = re.sub(
        rf'^version = "{re.escape(base)}"$',
        f'version = "{python}"',
        text,
        count=1,
        flags=re.MULTILINE,
    )
    required = rf"([\"'](?:{own})(?:\[[^]]*\])?)=={re.escape(base)}(?=[\"';])"
    pyproject.write_text(re.sub(required, rf"\g<1>=={python}", text))


def _git(repository: Path, *arguments: str) -> bytes:
    command = ("git", "-C", str(repository), *arguments)
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise InvalidInputError(
            f"{repository} is not a git repository with a commit.",
            reason=done.stderr.decode(errors="replace").strip(),
        )
    return done.stdout
