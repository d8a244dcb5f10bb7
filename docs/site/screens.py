"""Opens the built site's files in a real browser, as wide as a desktop and as a phone.

Keeps screenshots in both palettes. Fails if a part of a page is cut off, or if a search does not
show its page first. Needs Chromium (`CAPELIN_BROWSER` names another program).
Usage: python docs/site/screens.py SITE FOLDER
"""

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from search import FIRST

SCREENS: Final = {"desktop": (1280, 800), "phone": (390, 844)}
"""Widths and heights in CSS pixels."""
PALETTES: Final = ("light", "dark")
PICTURED: Final = (
    "index.html",
    "docs/status.html",
    "docs/tutorials/operator.html",
    "docs/how-to/install.html",
    "docs/how-to/production.html",
    "docs/concepts/networking.html",
    "docs/figures.html",
    "docs/extensions.html",
    "docs/reference/commands.html",
    "providers/control-plane/index.html",
)
"""The pages to keep pictures of. All pages are checked."""
TALLEST: Final = 4000
_SECONDS: Final = 30.0
_CUT_OFF: Final = """
(() => {
  const width = document.documentElement.clientWidth, problems = [];
  const scrolls = (element) => element && element !== document.body &&
    (["auto", "scroll"].includes(getComputedStyle(element).overflowX)
      || scrolls(element.parentElement));
  for (const element of document.querySelectorAll(".md-content *")) {
    const box = element.getBoundingClientRect();
    if (box.width && box.height && Math.floor(box.right) > width && !scrolls(element))
      problems.push(`${element.tagName} ends at ${Math.floor(box.right)}: `
        + element.textContent.trim().slice(0, 40));
  }
  return problems.slice(0, 3);
})()
"""
_PREPARE: Final = """
localStorage.clear();  // the theme stores the palette of the first page
addEventListener("DOMContentLoaded", () => {
  const style = document.createElement("style");
  style.textContent = "*, ::placeholder { transition: none !important }";
  document.head.append(style);
});
"""
_FIRST_RESULT: Final = """
new Promise((resolve) => {
  const look = () => {
    const link = document.querySelector(".md-search-result__link");
    if (link) resolve(link.href); else setTimeout(look, 50);
  };
  look();
})
"""


@dataclass
class Tab:
    """A page in the browser, controlled by the browser's debugging protocol."""

    socket: aiohttp.ClientWebSocketResponse
    session: str = ""
    _ids: "count[int]" = field(default_factory=lambda: count(1))

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the browser. Returns its result."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        await self.socket.send_json(message)
        answer = await self._until(lambda received: received.get("id") == number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    async def open(self, page: Path, query: str = "") -> None:
        """Open a page, and wait until it is loaded."""
        await self.call("Page.navigate", url=page.as_uri() + query)
        await self._until(lambda received: received.get("method") == "Page.loadEventFired")

    async def resize(self, width: int, height: int) -> None:
        """Give the page a screen of a size."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    async def use(self, palette: str) -> None:
        """Have the browser prefer a light or a dark palette."""
        preference = {"name": "prefers-color-scheme", "value": palette}
        await self.call("Emulation.setEmulatedMedia", features=[preference])

    async def cut_off(self) -> list[str]:
        """The parts of the page that lie outside the screen and that no scrolling reaches."""
        return await self._evaluate(_CUT_OFF)

    async def first_result(self) -> str:
        """The address of the first result of the page's search."""
        return await self._evaluate(_FIRST_RESULT)

    async def _evaluate(self, expression: str) -> Any:
        done = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        return done["result"]["value"]

    async def picture(self, width: int) -> bytes:
        """A PNG of the page from its top."""
        metrics = await self.call("Page.getLayoutMetrics")
        height = min(metrics["cssContentSize"]["height"], TALLEST)
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        done = await self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(done["data"])

    async def _until(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(_SECONDS):
            while not fits(received := json.loads(await self.socket.receive_str())):
                pass
        return received


@dataclass
class Screens:
    """The results of opening a site's pages."""

    problems: list[str] = field(default_factory=list[str])
    """Parts of pages that are cut off, and searches without their page."""
    pictures: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Pictures by their file names."""


@asynccontextmanager
async def browser(program: str) -> AsyncGenerator[Tab]:
    """A browser with one empty page."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
        process = await asyncio.create_subprocess_exec(
            *(program, *options, "--remote-debugging-port=0", f"--user-data-dir={folder}"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(await _address(Path(folder)), max_msg_size=0) as socket,
            ):
                tab = Tab(socket)
                target = await tab.call("Target.createTarget", url="about:blank")
                attached = await tab.call(
                    "Target.attachToTarget", targetId=target["targetId"], flatten=True
                )
                tab.session = attached["sessionId"]
                await tab.call("Page.enable")
                await tab.call("Page.addScriptToEvaluateOnNewDocument", source=_PREPARE)
                yield tab
        finally:
            process.terminate()
            await process.wait()


async def _address(folder: Path) -> str:
    """The browser's address, which it writes into its folder at its start."""
    async with asyncio.timeout(_SECONDS):
        while not (address := _written_address(folder)):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)
    return address


def _written_address(folder: Path) -> str:
    try:
        port, path = (folder / "DevToolsActivePort").read_text().split()
    except (FileNotFoundError, ValueError):
        return ""
    return f"ws://127.0.0.1:{port}{path}"


async def screens(site: Path, pages: Sequence[Path], program: str) -> Screens:
    """Open every page on every screen, and search."""
    found = Screens()
    async with browser(program) as tab:
        for page in pages:
            name = page.relative_to(site).as_posix()
            for palette in PALETTES if name in PICTURED else PALETTES[:1]:
                await tab.use(palette)
                await tab.open(page)
                for screen, (width, height) in SCREENS.items():
                    await tab.resize(width, height)
                    cut_off = await tab.cut_off()
                    found.problems += [f"{name}, {screen}: {part} is cut off" for part in cut_off]
                    if name in PICTURED:
                        stem = name.removesuffix(".html").replace("/", "-")
                        file = f"{stem}-{screen}-{palette}.png"
                        found.pictures[file] = await tab.picture(width)
        for query, expected in FIRST.items():
            await tab.open(site / "index.html", f"?q={quote(query)}")
            result = await tab.first_result()
            if not result.partition("?")[0].endswith(expected):
                found.problems.append(f"the search {query!r} shows {result}, not {expected}")
    return found


def main(site: Path, folder: Path) -> None:
    """Write the pictures, and end with the problems."""
    program = os.environ.get("CAPELIN_BROWSER", "chromium")
    if shutil.which(program) is None:
        sys.exit(f"{program} does not exist: install Chromium, or name another browser.")
    pages = [page for page in sorted(site.rglob("*.html")) if page.name != "404.html"]
    found = asyncio.run(screens(site, pages, program))
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in found.pictures.items():
        (folder / name).write_bytes(picture)
    sys.exit("\n".join(found.problems) or 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
