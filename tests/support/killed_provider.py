"""Runs the provider as processes that receive SIGKILL before or after one of their changes.

Reads a line for each life: the number of allowed changes and the provider's arguments. Each life
is a fork, so that the imports run only once. Writes two lines for each life: its process, and how
it ended.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from capelin_control_plane.__main__ import main

_CHANGES = frozenset(
    {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "subprocess.Popen"}
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_PR_SET_PDEATHSIG = 1
_LONGEST = 4096


class Life:
    """Counts changes, and kills the process after the last allowed one."""

    def __init__(self, changes: int, report: int) -> None:
        self._left, self._report = changes, report

    def change(self, name: str) -> None:
        """Count a change, before it or before the provider gets its result."""
        self._left -= 1
        if self._left < 0:
            os.write(self._report, name.encode()[:_LONGEST])
            os.kill(os.getpid(), signal.SIGKILL)

    def notice(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook, which runs before the interpreter calls the kernel."""
        # A number is a descriptor of an open file.
        is_open = event == "open" and not isinstance(arguments[0], int)
        if event in _CHANGES or (is_open and int(arguments[2] or 0) & _WRITING):
            self.change(f"before {event} {arguments[0]}")

    def begin(self) -> None:
        request: Any = aiohttp.ClientSession._request  # pyright: ignore[reportPrivateUsage]

        async def mortal(session: Any, method: str, url: Any, *args: Any, **options: Any) -> Any:
            if method.upper() == "GET":
                return await request(session, method, url, *args, **options)
            name = f"{method} {urlsplit(str(url)).path}"
            self.change(f"before {name}")
            response = await request(session, method, url, *args, **options)
            self.change(f"after {name}")
            return response

        setattr(aiohttp.ClientSession, "_request", mortal)  # noqa: B010 - not ours to assign
        sys.addaudithook(self.notice)


def live(changes: int, arguments: list[str], report: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.stdin.close()
    sys.argv = ["capelin-control-plane", *arguments]
    Life(changes, report).begin()
    main()


def write(line: object) -> None:
    sys.stdout.write(f"{json.dumps(line)}\n")
    sys.stdout.flush()


for order in map(json.loads, sys.stdin):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        live(order["changes"], order["arguments"], writing)
    os.close(writing)
    write(child)
    _, status = os.waitpid(child, 0)
    change = os.read(reading, _LONGEST).decode(errors="replace")
    os.close(reading)
    write({"status": os.waitstatus_to_exitcode(status), "change": change})
