"""The page of `capelin ui` in Chromium, and checks that hold for every view."""

import asyncio
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, Page, async_playwright

SCREENS: Final = {"desktop": (1280, 800), "phone": (390, 844)}
"""Widths and heights in CSS pixels."""
IMAGES: Final = os.environ.get("CAPELIN_UI_IMAGES", "")
"""The folder for pictures. Without it, the tests only check the views."""
_LINK: Final = re.compile(rb"http://127\.0\.0\.1:\d+/#token=\S+")

CUT_OFF: Final = """
() => {
  const width = document.documentElement.clientWidth;
  const scrolls = (element) => element && element !== document.body &&
    (["auto", "scroll", "hidden"].includes(getComputedStyle(element).overflowX)
      || scrolls(element.parentElement));
  return [...document.querySelectorAll("body *")].filter((element) => {
    const box = element.getBoundingClientRect();
    return box.width && Math.floor(box.right) > width && !scrolls(element);
  }).map(({ tagName, className, textContent }) =>
    `${tagName}.${className}: ${textContent.slice(0, 40)}`);
}
"""
PALE: Final = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], [r2, g2, b2]) =>
    [r * a + r2 * (1 - a), g * a + g2 * (1 - a), b * a + b2 * (1 - a), 1];
  const behind = (element) => {
    if (!element) return [255, 255, 255, 1];
    const color = rgba(getComputedStyle(element).backgroundColor);
    return color[3] === 1 ? color : over(color, behind(element.parentElement));
  };
  const light = (color) => {
    const [r, g, b] = color.slice(0, 3).map((each) => each / 255)
      .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const pale = new Set();
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].filter((node) => node.nodeType === 3)
      .map((node) => node.textContent.trim()).join("");
    const box = element.getBoundingClientRect();
    if (!text || box.width < 2 || getComputedStyle(element).visibility === "hidden") continue;
    const back = behind(element);
    const front = over(rgba(getComputedStyle(element).color), back);
    const [dark, bright] = [light(back), light(front)].sort((one, other) => one - other);
    const ratio = (bright + 0.05) / (dark + 0.05);
    const { tagName, className } = element;
    if (ratio < 4.5) pale.add(`${tagName}.${className} ${ratio.toFixed(2)}: ${text.slice(0, 30)}`);
  }
  return [...pale];
}
"""


@dataclass
class Ui:
    """A running `capelin ui`."""

    process: asyncio.subprocess.Process
    link: str
    output: bytearray = field(default_factory=bytearray)

    def memory(self) -> dict[str, float]:
        """Present and largest resident memory, in MiB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        sizes = dict(line.split(":", 1) for line in lines)
        return {key: int(sizes[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM")}

    async def next_link(self) -> str:
        """The link that the command prints when the last one was used."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            while not (found := _LINK.search(await self.process.stdout.readline())):
                pass
        return found[0].decode()


@asynccontextmanager
async def running_ui(*arguments: str) -> AsyncGenerator[Ui]:
    """`capelin ui` as a process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "capelin_cli", "ui", *arguments),
        stdout=asyncio.subprocess.PIPE,
        # Background processes of a shell without job control ignore it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    ui = Ui(process, "")
    try:
        ui.link = await ui.next_link()
        yield ui
    finally:
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(15):
            assert await process.wait() == 130


@asynccontextmanager
async def chromium() -> AsyncGenerator[Browser]:
    """The installed browser. `CAPELIN_BROWSER` names another program."""
    program = shutil.which(os.environ.get("CAPELIN_BROWSER", "chromium"))
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        await browser.close()


@dataclass
class View:
    """A tab with the page."""

    page: Page
    problems: list[str] = field(default_factory=list[str])
    """Errors of scripts, and violations of the content security policy."""

    async def go(self, route: str) -> None:
        await self.page.evaluate("route => { location.hash = route; }", route)

    async def check(self, name: str) -> None:
        """Check a view on both screens and in both palettes, and keep pictures of it."""
        for screen, (width, height) in SCREENS.items():
            await self.page.set_viewport_size({"width": width, "height": height})
            assert await self.page.evaluate(CUT_OFF) == [], f"{name} on a {screen}"
            for palette in ("light", "dark"):
                await self.page.emulate_media(color_scheme=palette)
                assert await self.page.evaluate(PALE) == [], f"{name}, {palette}"
                if IMAGES:
                    path = Path(IMAGES) / f"{name}-{screen}-{palette}.png"
                    await self.page.screenshot(path=path, animations="disabled")
        width, height = SCREENS["desktop"]
        await self.page.set_viewport_size({"width": width, "height": height})
        await self.page.emulate_media(color_scheme="light")
        assert self.problems == []


@asynccontextmanager
async def opened(browser: Browser, link: str) -> AsyncGenerator[View]:
    """The page, with a session."""
    width, height = SCREENS["desktop"]
    context = await browser.new_context(
        viewport={"width": width, "height": height}, reduced_motion="reduce"
    )
    page = await context.new_page()
    view = View(page)
    page.on("pageerror", lambda error: view.problems.append(str(error)))
    page.on(
        "console",
        lambda message: view.problems.append(message.text) if message.type == "error" else None,
    )
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith("http://127.0.0.1:")
            else view.problems.append(f"loads {request.url}")
        ),
    )
    await page.goto(link)
    yield view
    await context.close()
