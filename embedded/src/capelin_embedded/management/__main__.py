"""The background process: `python -m capelin_embedded.management FOLDER`."""

import asyncio
import logging
import signal
import sys
from pathlib import Path

from capelin.programs import raise_file_limit

from capelin_embedded.management.environment import Environment
from capelin_embedded.management.supervision import supervise


async def main(folder: Path) -> None:
    """Supervise the environment in a folder until it is stopped."""
    task = asyncio.ensure_future(supervise(Environment(folder)))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        logging.getLogger("capelin").info("stopped, but the processes keep running")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    raise_file_limit()
    asyncio.run(main(Path(sys.argv[1])))
