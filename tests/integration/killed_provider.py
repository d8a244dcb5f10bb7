"""The provider as processes that die: by SIGKILL, just before they would change something more.

Reads a line for each life: how many changes it may make to the world, and the provider's
arguments. Everything is imported once; each life is a fork, so that it begins in no time.
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
    """Counts the changes made to the world, and kills the process after the last allowed one."""

    def __init__(self, changes: int) -> None:
        self._left = changes

    def change(self) -> None:
        """One more change is about to be made, or was made just now and nobody knows of it yet."""
        self._left -= 1
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def notice(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook: the interpreter is about to ask something of the kernel."""
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
    wanted = json.loads(line)
    child = os.fork()
    if not child:
        live(wanted["changes"], wanted["arguments"])
    sys.stdout.write(f"{child}\n")
    sys.stdout.flush()
    _, status = os.waitpid(child, 0)
    sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
    sys.stdout.flush()
