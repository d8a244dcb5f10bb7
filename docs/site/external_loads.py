"""Checks that a page of the built site loads nothing from elsewhere when it is opened.

Links for readers to click on are not loads. Usage: python docs/site/external_loads.py FOLDER
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

_LOADING: Final = {
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "image": ("href", "xlink:href"),
    "use": ("href", "xlink:href"),
    "iframe": ("src",),
    "embed": ("src",),
    "object": ("data",),
    "video": ("src", "poster"),
    "audio": ("src",),
}
"""The attributes whose addresses a browser opens by itself, by element."""
_NO_LOAD: Final = {"canonical", "alternate", "next", "prev", "author", "license", "edit"}
"""Browsers do not open the target of a <link> with one of these relations."""
_EXTERNAL: Final = re.compile(r"\s*(?:https?:)?//", re.IGNORECASE)
_CSS: Final = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)", re.IGNORECASE)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        self.loads += _CSS.findall(values.get("style", ""))
        if "mermaid" in values.get("class", "").split():
            self.loads.append("Mermaid, which the theme fetches for a block that is not drawn")
        if tag == "link" and set(values.get("rel", "").split()) <= _NO_LOAD:
            return
        for name in _LOADING.get(tag, ()):
            if _EXTERNAL.match(values.get(name, "")):
                self.loads.append(values[name].strip())

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.loads += _CSS.findall(data)


def external_loads(text: str, suffix: str) -> list[str]:
    """The addresses on other hosts that a browser fetches for a file of the site."""
    if suffix == ".css":
        return _CSS.findall(text)
    page = _Page()
    page.feed(text)
    return page.loads


def all_external_loads(folder: Path) -> Iterator[str]:
    """All external loads of a site, each with its file."""
    for file in sorted(folder.rglob("*")):
        if file.suffix in {".html", ".css", ".svg"}:
            for load in external_loads(file.read_text(encoding="utf-8"), file.suffix):
                yield f"{file.relative_to(folder)}: {load}"


if __name__ == "__main__":
    problems = list(all_external_loads(Path(sys.argv[1])))
    sys.exit("\n".join(["Pages load from elsewhere:", *problems]) if problems else 0)
