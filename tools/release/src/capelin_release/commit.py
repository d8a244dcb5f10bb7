"""The commit that a release is built from: its version, its time, and its files on their own."""

import io
import re
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from capelin.errors import InvalidInputError

_TAG = re.compile(r"v(\d+\.\d+\.\d+)(?:-(alpha|beta|rc)\.(\d+))?")
_PYTHON_STAGES = {"alpha": "a", "beta": "b", "rc": "rc"}


@dataclass(frozen=True, slots=True)
class Version:
    """One version, in the two ways in which it is written."""

    semantic: str
    """As charts, images and component files have it: `0.2.0`, `0.2.0-rc.1`."""
    python: str
    """As Python packages have it: `0.2.0`, `0.2.0rc1`."""

    @classmethod
    def of_tag(cls, tag: str) -> "Version":
        """The version that a tag names.

        Raises:
            InvalidInputError: It names none.
        """
        match = _TAG.fullmatch(tag)
        if match is None:
            raise InvalidInputError(
                f"{tag} is no tag of a release.", hint="Use v1.2.3 or v1.2.3-rc.1 (alpha, beta)."
            )
        number, stage, count = match.groups()
        python = number if stage is None else f"{number}{_PYTHON_STAGES[stage]}{count}"
        return cls(tag.removeprefix("v"), python)

    @classmethod
    def of_development(cls, base: str, time: int) -> "Version":
        """The version of a commit without a tag; those of later commits are later."""
        return cls(f"{base}-dev.{time}", f"{base}.dev{time}")


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

    def version(self, base: str) -> Version:
        """The version of this commit; `base` is what the project's files have.

        Raises:
            InvalidInputError: The commit has tags of several releases.
        """
        versions = [Version.of_tag(tag) for tag in self.tags if _TAG.fullmatch(tag)]
        if len(versions) > 1:
            raise InvalidInputError(f"The commit has several tags: {', '.join(self.tags)}.")
        return versions[0] if versions else Version.of_development(base, self.time)

    def export(self, folder: Path) -> None:
        """Write the commit's files, and nothing that lies beside them, into a folder."""
        archive = _git(self.repository, "archive", "--format=tar", self.revision)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")


def set_version(pyproject: Path, base: str, version: Version) -> None:
    """Write a version into a pyproject.toml, and into what it needs of the same release."""
    text = pyproject.read_text()
    text = re.sub(
        rf'^version = "{re.escape(base)}"$',
        f'version = "{version.python}"',
        text,
        count=1,
        flags=re.MULTILINE,
    )
    pyproject.write_text(re.sub(rf"=={re.escape(base)}(?=[\"';])", f"=={version.python}", text))


def _git(repository: Path, *arguments: str) -> bytes:
    command = ("git", "-C", str(repository), *arguments)
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise InvalidInputError(
            f"{repository} is no git repository with a commit.",
            reason=done.stderr.decode(errors="replace").strip(),
        )
    return done.stdout
