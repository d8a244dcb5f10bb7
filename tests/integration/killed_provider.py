"""Runs the provider as processes that receive SIGKILL before or after one of their changes.

Reads a line for each life: the number of allowed changes and the provider's arguments. Each life
is a fork, so that the imports run only once.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any

import aiohttp
from capelin_control_plane.__main__ import main

_CHANGES = frozenset(
    {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "subprocess.Popen"}
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_PR_SET_PDEATHSIG = 1


class Life:
    """Counts changes, and kills the process after the last allowed one."""

    def __init__(self, changes: int) -> None:
        self._left = changes

    def change(self) -> None:
        """Count a change, before it or before the provider gets its result."""
        self._left -= 1
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def notice(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook, which runs before the interpreter calls the kernel."""
        if event in _CHANGES or (event == "open" and int(arguments[2] or 0) & _WRITING):
            self.change()

    def begin(self) -> None:
        request: Any = aiohttp.ClientSession._request  # pyright: ignore[reportPrivateUsage]

        async def mortal(session: Any, method: str, *args: Any, **options: Any) -> Any:
            if method != "GET":
                self.change()
            response = await request(session, method, *args, **options)
            if method != "GET":
                self.change()
            return response

        setattr(aiohttp.ClientSession, "_request", mortal)  # noqa: B010 - not ours to assign
        sys.addaudithook(self.notice)


def live(changes: int, arguments: list[str]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.stdin.close()
    sys.argv = ["capelin-control-plane", *arguments]
    Life(changes).begin()
    main()


for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        live(order["changes"], order["arguments"])
    sys.stdout.write(f"{child}\n")
    sys.stdout.flush()
    _, status = os.waitpid(child, 0)
    sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
    sys.stdout.flush()
