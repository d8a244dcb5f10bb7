"""Shares the processors of a machine between control planes that start at once."""

import asyncio

from capelin.controller import ObjectKey

from capelin_control_plane.backends import Wake

PATIENCE_SECONDS = 15.0
"""How long a control plane that answers waits with its controllers for others."""


class StartupThrottle:
    """Delays controllers of one control plane while API servers of others start.

    A controller manager and a scheduler take half as much to start as an API server, and Cluster
    API continues with a cluster as soon as its API answers.
    """

    def __init__(self, wake: Wake, patience: float = PATIENCE_SECONDS) -> None:
        self._wake = wake
        self._patience = patience
        self._starting: set[ObjectKey] = set()
        self._answers_since: dict[ObjectKey, float] = {}
        self._delayed: set[ObjectKey] = set()

    def controllers_may_start(self, key: ObjectKey, *, answers: bool) -> bool:
        """Whether controllers of this control plane may start. It is woken when that changes."""
        loop = asyncio.get_running_loop()
        if not answers:
            if key not in self._answers_since:
                self._starting.add(key)
            return False
        self._answers_since.setdefault(key, loop.time())
        self._not_starting(key)
        left = self._answers_since[key] + self._patience - loop.time()
        if not self._starting or left <= 0:
            self._delayed.discard(key)
            return True
        if key not in self._delayed:
            self._delayed.add(key)
            loop.call_later(left, self._wake, key)
        return False

    def forget(self, key: ObjectKey) -> None:
        """Let no other control plane wait for this one."""
        self._answers_since.pop(key, None)
        self._delayed.discard(key)
        self._not_starting(key)

    def _not_starting(self, key: ObjectKey) -> None:
        if key in self._starting:
            self._starting.remove(key)
            if not self._starting:
                for delayed in self._delayed:
                    self._wake(delayed)
