"""Keeps Python's garbage collector away from objects that it cannot free."""

import gc
from collections.abc import Generator
from contextlib import contextmanager

_LARGE_BYTES = 64 * 1024
"""The size of JSON whose objects make the collector run again and again while they are created."""


@contextmanager
def large_objects(size: int) -> Generator[None]:
    """Do not collect garbage while a block reads JSON of this size. The block must not wait.

    A document has no cycles, so it is freed without the collector. Reading 20 MiB would take four
    times as long, because the collector would search the new objects again and again.
    """
    if size < _LARGE_BYTES or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def keep_loaded_code() -> None:
    """Exclude the objects that exist now, such as modules and types, from all collections."""
    gc.collect()
    gc.freeze()
