"""Whose controllers may start: API servers that somebody waits for come first, for a while."""

import asyncio

from capelin.controller import ObjectKey

from capelin_control_plane.backends import Wake

PATIENCE_SECONDS = 15.0
"""How long a control plane that answers goes without controllers for others' sake."""


class Turns:
    """Shares the processors of a machine when several control planes start at once.

    A controller manager and a scheduler take as much to start as half an API server. Core goes on
    with a cluster when its API answers, so those of one wait until the APIs of all do.
    """

    def __init__(self, wake: Wake, patience: float = PATIENCE_SECONDS) -> None:
        self._wake = wake
        self._patience = patience
        self._starting: set[ObjectKey] = set()
        self._answers_since: dict[ObjectKey, float] = {}
        self._waiting: set[ObjectKey] = set()

    def may_start_controllers(self, key: ObjectKey, *, answers: bool) -> bool:
        """Whether it is this control plane's turn. It is woken when that changes."""
        loop = asyncio.get_running_loop()
        if not answers:
            if key not in self._answers_since:
                self._starting.add(key)
            return False
        self._answers_since.setdefault(key, loop.time())
        self._is_not_starting(key)
        left = self._answers_since[key] + self._patience - loop.time()
        if not self._starting or left <= 0:
            self._waiting.discard(key)
            return True
        if key not in self._waiting:
            self._waiting.add(key)
            loop.call_later(left, self._wake, key)
        return False

    def forget(self, key: ObjectKey) -> None:
        """Nobody waits for this control plane any more."""
        self._answers_since.pop(key, None)
        self._waiting.discard(key)
        self._is_not_starting(key)

    def _is_not_starting(self, key: ObjectKey) -> None:
        if key in self._starting:
            self._starting.remove(key)
            if not self._starting:
                for waiting in self._waiting:
                    self._wake(waiting)
