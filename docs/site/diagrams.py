"""Mermaid blocks of the pages, drawn as pictures when the site is built.

Otherwise the theme would load Mermaid from the internet on every view of a page.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Final

_BLOCK: Final = re.compile(r"^```mermaid\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_HEADING: Final = re.compile(r"^#+ (.*)$", re.MULTILINE)
_VIEW_BOX: Final = re.compile(r'viewBox="\S+ \S+ (\S+) \S+"')
_SCALE: Final = 0.75
"""The scale of the letters in diagrams: a little smaller than those of the text."""
_STYLE: Final = (
    '%%{init: {"theme": "neutral", "look": "classic", "fontFamily": "arial, sans-serif"}}%%\n'
)
"""The boxes are measured with this font, so the page has to use it."""


def render(diagram: str) -> str:
    """A diagram as SVG.

    Raises:
        ValueError: if it is not valid Mermaid.
    """
    command = [sys.executable, "-m", "mmdr", "-i", "-", "-o", "-"]
    drawn = subprocess.run(
        command, input=_STYLE + diagram, capture_output=True, text=True, check=False
    )
    if drawn.returncode != 0:
        raise ValueError(f"A diagram cannot be drawn: {drawn.stderr.strip()}\n{diagram}")
    return sized(drawn.stdout)


def sized(picture: str) -> str:
    """A picture with a width of its own: with 100% of a page, a phone would shrink it to nothing.

    Raises:
        ValueError: if the picture does not say how wide it is.
    """
    width = _VIEW_BOX.search(picture)
    if width is None:
        raise ValueError("A diagram has no view box.")
    return picture.replace('width="100%"', f'width="{float(width[1]) * _SCALE:.0f}"', 1)


def draw(
    page: PurePosixPath, text: str, render: Callable[[str], str] = render
) -> tuple[str, dict[PurePosixPath, str]]:
    """A page with pictures in place of its Mermaid blocks, and the files of these pictures."""
    pictures: dict[PurePosixPath, str] = {}

    def replace(block: re.Match[str]) -> str:
        headings = _HEADING.findall(text, 0, block.start())
        picture = page.with_name(f"{page.stem}-{len(pictures) + 1}.svg")
        pictures[picture] = render(block[1])
        title = headings[-1] if headings else page.stem
        # A link to itself: on a narrow screen, readers can enlarge only the picture.
        return f"[![{title}]({picture.name}){{ .diagram }}]({picture.name})\n"

    return _BLOCK.sub(replace, text), pictures
