"""The commands of the page "Install", by section, for one shell."""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "install.md"
Method = Literal["clusterctl", "Helm"]
METHODS: Final[tuple[Method, ...]] = ("Helm", "clusterctl")
"""Helm first, since it does not adopt the CRDs that clusterctl leaves behind."""
_PART: Final = re.compile(
    r"^#{2,3} (?P<title>[^\n]+)$|^```bash\n(?P<commands>.*?)^```$", re.MULTILINE | re.DOTALL
)


class CommandFailedError(Exception):
    """A command of the page failed. The message is the output of its section."""


@dataclass(frozen=True, slots=True)
class Section:
    """The commands below one heading."""

    title: str
    commands: str

    def is_for(self, method: Method) -> bool:
        """Whether a user of this method runs it."""
        return all(other == method or f"with {other}" not in self.title for other in METHODS)


def sections(text: str) -> Iterator[Section]:
    """The sections of a page with commands. Only `bash` blocks count."""
    title, commands = "", ""
    for part in _PART.finditer(text):
        if part["title"] is None:
            commands += part["commands"]
            continue
        if commands:
            yield Section(title, commands)
        title, commands = part["title"], ""
    if commands:
        yield Section(title, commands)


def with_values(commands: str, values: Mapping[str, str]) -> str:
    """The commands with other values of exported variables."""

    def exported(match: re.Match[str]) -> str:
        return f"export {match[1]}={values.get(match[1], match[2])}"

    return re.sub(r"^export (\w+)=(.*)$", exported, commands, flags=re.MULTILINE)


class Shell:
    """Runs sections in sequence and keeps their variables."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], wrapper: Sequence[str] = ()
    ) -> None:
        self._folder = folder
        self._environment = environment
        self._wrapper = wrapper

    async def run(self, commands: str) -> str:
        """Run commands and return what they print.

        Raises:
            CommandFailedError: One of them fails.
        """
        variables = self._folder / "variables"
        variables.touch()
        script = (
            f"cd {self._folder}\n. {variables}\nset -aeuo pipefail\n{commands}\n"
            f"export -p > {variables}\n"
        )
        process = await asyncio.create_subprocess_exec(
            *(*self._wrapper, "bash", "-c", script),
            env=dict(self._environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise CommandFailedError(f"{commands}\n{output.decode(errors='replace')}")
        return output.decode(errors="replace")
