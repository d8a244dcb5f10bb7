"""The provider as a process that repeats its attempts soon, for tests with many faults."""

from importlib import import_module
from types import ModuleType
from typing import Final

INTERVALS: Final = (
    ("plan", "SOON", 0.5),
    ("plan", "LATER", 2.0),
    ("hosts.status", "_SOON", 0.5),
    ("hosts.status", "_RETRY", 2.0),
    ("hosts.visits", "_POLL_SECONDS", 0.5),
    ("hosts.visits", "_FAILED_REQUEST_SECONDS", 1.0),
)
"""Module, name and seconds of each interval. The modules that use one import it later."""


def module(name: str) -> ModuleType:
    return import_module(f"capelin_machine_pool.{name}")


if __name__ == "__main__":
    for where, name, seconds in INTERVALS:
        assert getattr(module(where), name) > seconds
        setattr(module(where), name, seconds)
    module("__main__").main()
