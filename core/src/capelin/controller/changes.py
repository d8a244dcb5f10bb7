"""The part of each watched object on which a reconciler depends, to skip other changes."""

from collections.abc import Hashable, Mapping
from typing import Any

from capelin.client import Unreadable
from capelin.controller.reconciler import Watch, object_in, selects


class Changes:
    """The values of `when_changed`, by the watch and the object."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, str], Hashable] = {}

    def matter(self, watch: Watch, body: Mapping[str, Any], *, deleted: bool = False) -> bool:
        """Whether an event concerns anybody: not if the value is that of the previous event."""
        if watch.when_changed is None:
            return True
        key = id(watch), str(body["metadata"].get("uid"))
        before = self._values.pop(key, self)
        if deleted or not selects(watch.labels, body["metadata"].get("labels") or {}):
            return True
        try:
            self._values[key] = value = watch.when_changed(object_in(watch, body))
        except Unreadable:
            return True
        return value != before
