"""Runs single commands of the how-to pages, which users run by hand."""

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from capelin_embedded.binaries import Binaries

from .machines import KUBECTL

FOLDER = Path(__file__).parents[2] / "docs" / "how-to"


async def run_block(page: str, contained: str, values: Mapping[str, str], folder: Path) -> str:
    """Run the block of a page that contains a command, and return what it prints.

    Args:
        page: The name of the page.
        contained: Text that only this block has.
        values: The values of its variables.
        folder: The folder to run it in.
    """
    text = await asyncio.to_thread((FOLDER / page).read_text)
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    programs = [await Binaries().path("clusterctl"), await Binaries().path("kubectl", KUBECTL)]
    folders = [*(program.parent for program in programs), Path(sys.executable).parent]
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euc", next(block for block in blocks if contained in block)),
        env={
            **os.environ,
            "PATH": ":".join([*map(str, folders), os.environ["PATH"]]),
            "CLUSTERCTL_DISABLE_VERSIONCHECK": "true",
            "GOPROXY": "off",
            **values,
        },
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-3000:]
    return output.decode()
