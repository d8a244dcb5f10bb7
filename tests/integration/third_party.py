"""The shell of a user who has uv, git and Go, but no checkout of Capelin."""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
USERS = ROOT / "docs" / "how-to" / "users.md"
_DIGEST = re.compile(r"^[0-9a-f]{64}  ", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class CommandFailedError(Exception):
    """A command failed; what it printed."""


@dataclass(frozen=True)
class Shell:
    """A shell in a folder outside of the checkout, whose programs are not those of the checkout."""

    folder: Path
    home: Path
    """Has the environments of `capelin up`."""
    more: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def variables(self) -> dict[str, str]:
        left_out = ("VIRTUAL_ENV", "PYTHON", "PYTEST", "COVERAGE", "NOX", "UV", "PIP")
        variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(left_out) or "INDEX" in name
        }
        path = variables["PATH"].split(os.pathsep)
        person = {"NAME": "Ada", "EMAIL": "ada@example.com"}
        return {
            **variables,
            "PATH": os.pathsep.join(x for x in path if not Path(x).is_relative_to(ROOT)),
            **{
                f"GIT_{who}_{key}": person[key] for who in ("AUTHOR", "COMMITTER") for key in person
            },
            "XDG_STATE_HOME": str(self.home),
            "COLUMNS": "200",
            **self.more,
        }

    def run(self, commands: str) -> str:
        """Run commands as they are typed; what they print."""
        done = subprocess.run(
            ["bash", "-euc", commands],
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise CommandFailedError(f"{commands}\n{done.stdout}")
        return done.stdout

    def start(self, commands: str) -> subprocess.Popen[str]:
        """Start a command that keeps running."""
        return subprocess.Popen(
            ["bash", "-euc", f"exec {commands}"],
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def project(self, name: str) -> "Shell":
        """The shell after a `cd` into a project, with environments of its own."""
        return replace(self, folder=self.folder / name, home=self.home / name)


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in a language."""
    return [text for name, text in _BLOCK.findall(page.read_text()) if name == language]


def new(shell: Shell, run: str, arguments: str) -> Shell:
    """Make a project, and run what `capelin new` prints."""
    printed = shell.run(f"uv {run} capelin new {arguments}").splitlines()[-1]
    assert printed.startswith("Next: cd ")
    assert " passed" in shell.run(printed.removeprefix("Next: "))
    return shell.project(printed.split()[2])


def release(project: Shell) -> Path:
    """Release a project as its README says; the release's folder."""
    printed = project.run(blocks(project.folder / "README.md", "sh")[-1])
    dist = project.folder / "dist"
    assert len(_DIGEST.findall((dist / "SHA256SUMS").read_text())) > 10
    assert f"{project.folder.name}-v0.1.0-bundle.tar" in printed
    return dist


def build_wheels(folder: Path) -> Path:
    """The wheels of this checkout."""
    command = ["uv", "build", "--quiet", "--all-packages", "--wheel", f"--out-dir={folder}"]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


def write_index(wheels: Path, folder: Path) -> None:
    """Write the pages of a package index with the digests of its wheels."""
    for wheel in sorted(wheels.glob("*.whl")):
        page = folder / "simple" / wheel.name.split("-")[0].replace("_", "-")
        page.mkdir(parents=True)
        shutil.copy(wheel, page)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        link = f'<a href="{wheel.name}#sha256={digest}">{wheel.name}</a>'
        (page / "index.html").write_text(f"<!DOCTYPE html><html><body>{link}</body></html>\n")
