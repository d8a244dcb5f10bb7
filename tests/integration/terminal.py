"""A pseudo-terminal: the screen of a command, and its picture for the documents."""

import asyncio
import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from capelin.testing.waiting import until
from rich.console import Console
from rich.text import Text

WIDTH, HEIGHT = 110, 50
_CONTROL = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|\x1b\][^\x07]*\x07")

_FONTS = re.compile(r"\s*@font-face \{[^}]*\}")
"""Fonts that a browser would load from another host. Any monospaced font is sufficient."""
_VIEW_BOX = re.compile(r'viewBox="0 0 (\S+) \S+"')
_SCALE = 0.6
"""Scale of the pictures, so that all have the same font size."""


@dataclass
class Screen:
    """The final lines of a terminal after a progress display.

    It supports the control sequences of such displays: erase a line and move up.
    """

    lines: list[str] = field(default_factory=lambda: [""])
    row: int = 0

    def feed(self, text: str) -> None:
        """Process the output of a command."""
        position = 0
        while position < len(text):
            control = _CONTROL.match(text, position)
            if control is not None:
                self._obey(control[0], control[1] or "", control[2])
                position = control.end()
                continue
            character = text[position]
            position += 1
            if character == "\n":
                self.row += 1
                if self.row == len(self.lines):
                    self.lines.append("")
            elif character != "\r":
                self.lines[self.row] += character

    def _obey(self, control: str, number: str, letter: str | None) -> None:
        if letter == "m":
            self.lines[self.row] += control
        elif letter == "K":
            self.lines[self.row] = ""
        elif letter == "A":
            self.row = max(0, self.row - int(number or 1))

    @property
    def ansi(self) -> str:
        """The lines with their colours."""
        return "\n".join(self.lines).strip("\n")

    @property
    def text(self) -> str:
        return Text.from_ansi(self.ansi).plain

    @property
    def words(self) -> str:
        """The text without line wraps."""
        return " ".join(self.text.split())


@dataclass
class Running:
    """A command on a terminal."""

    process: asyncio.subprocess.Process
    screen: Screen
    ended: asyncio.Event

    async def shows(self, words: str) -> None:
        """Wait until the screen shows some words."""
        await until(lambda: words in self.screen.words or self.ended.is_set())
        assert words in self.screen.words, self.screen.text

    async def finish(self) -> str:
        """Wait until it succeeds, and return the screen."""
        code = await self.process.wait()
        await self.ended.wait()
        assert code == 0, self.screen.text
        return self.screen.text


@dataclass
class Terminal:
    """A shell for sequential commands."""

    variables: Mapping[str, str]
    pictures: Path
    shown: Mapping[str, str] = field(default_factory=dict[str, str])
    """Replacements and addresses of the test's folders in pictures."""

    async def start(self, *arguments: str) -> Running:
        """Start a command. `capelin` is the version under test."""
        primary, secondary = pty.openpty()
        fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        program = [sys.executable, "-m", "capelin_cli", *arguments]
        process = await asyncio.create_subprocess_exec(
            *program,
            env={**self.variables, "TERM": "xterm-256color", "COLUMNS": str(WIDTH)},
            stdin=secondary,
            stdout=secondary,
            stderr=secondary,
            start_new_session=True,
        )
        os.close(secondary)
        running = Running(process, Screen(), asyncio.Event())
        _follow(primary, running.screen.feed, running.ended)
        return running

    async def run(self, *arguments: str) -> str:
        return await (await self.start(*arguments)).finish()

    def picture(self, name: str, command: str, screen: Screen) -> None:
        """Save a picture of a screen with its command."""
        ansi = screen.ansi
        for actual, shown in self.shown.items():
            ansi, command = ansi.replace(actual, shown), command.replace(actual, shown)
        text = Text.from_ansi(ansi)
        # The title bar also has three window buttons.
        width = max(len(command) + 14, *map(len, text.plain.splitlines()))
        console = Console(record=True, file=io.StringIO(), width=width + 1)
        console.print(Text(f"$ {command}", "bold"))
        console.print(text)
        # Without extra space, the last line would be cut off.
        console.print()
        self.pictures.mkdir(parents=True, exist_ok=True)
        picture = _FONTS.sub("", console.export_svg(title=command))
        picture = _VIEW_BOX.sub(_with_width, picture, count=1)
        (self.pictures / f"{name}.svg").write_text(picture, encoding="utf-8")


def _with_width(view_box: re.Match[str]) -> str:
    return f'{view_box[0]} width="{float(view_box[1]) * _SCALE:.0f}"'


def _follow(descriptor: int, feed: Callable[[str], None], ended: asyncio.Event) -> None:
    """Read a terminal until its other end is closed."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            content = os.read(descriptor, 65536)
        except OSError:
            content = b""
        if content:
            feed(content.decode(errors="replace"))
            return
        loop.remove_reader(descriptor)
        os.close(descriptor)
        ended.set()

    loop.add_reader(descriptor, read)
