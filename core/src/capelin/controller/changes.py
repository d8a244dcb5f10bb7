"""The keys that each watched object concerns, and its last value."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from capelin.client import Unreadable
from capelin.controller.queue import ObjectKey
from capelin.controller.reconciler import Watch, object_in, selects

_UNKNOWN: Final = object()


@dataclass(slots=True, eq=False)
class Seen:
    """The last event of an object."""

    keys: tuple[ObjectKey, ...] = ()
    """The keys that the object concerned. A change concerns them too."""
    value: Hashable = _UNKNOWN
    """The value of `when_changed`."""
    events: int = 0
    is_unmapped: bool = False
    """A mapper failed, so that the object may concern other keys too."""

    def matters(self, watch: Watch, body: Mapping[str, Any], *, deleted: bool) -> bool:
        """Count an event. Whether it matters: not if the value is that of the previous event."""
        self.events += 1
        if watch.when_changed is None:
            return True
        before, self.value = self.value, _UNKNOWN
        if deleted or not selects(watch.labels, body["metadata"].get("labels") or {}):
            return True
        try:
            self.value = watch.when_changed(object_in(watch, body))
        except Unreadable:
            return True
        return self.value != before

    def move(self, keys: Iterable[ObjectKey], event: int) -> Iterable[ObjectKey]:
        """Remember the keys of an event. Returns them and the former ones.

        The keys of an earlier event may arrive after those of the last one.
        """
        new = tuple(keys)
        both = tuple(dict.fromkeys((*self.keys, *new)))
        self.keys = new if event == self.events else both
        return both


class Changes:
    """The objects of a reconciler's watches. Forgets those that do not exist any more."""

    def __init__(self) -> None:
        self._seen: defaultdict[int, dict[str, Seen]] = defaultdict(dict)

    def of(self, watch: Watch, uid: str) -> Seen:
        """The entry of an object, for an event of it. Call `settle` after the event."""
        return self._seen[id(watch)].setdefault(uid, Seen())

    def settle(self, watch: Watch, uid: str, seen: Seen, *, deleted: bool = False) -> None:
        """Forget an object that was deleted, or concerns no key."""
        entries = self._seen[id(watch)]
        is_empty = not seen.keys and seen.value is _UNKNOWN and not seen.is_unmapped
        if (deleted or is_empty) and entries.get(uid) is seen:
            del entries[uid]

    def retain(self, watch: Watch, uids: AbstractSet[str]) -> Iterable[ObjectKey]:
        """Forget all objects but these. Returns the keys that the forgotten ones concerned."""
        entries = self._seen[id(watch)]
        return [key for uid in entries.keys() - uids for key in entries.pop(uid).keys]

    def __len__(self) -> int:
        return sum(map(len, self._seen.values()))
