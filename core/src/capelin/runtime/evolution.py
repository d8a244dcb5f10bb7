"""Whether a catalog may follow the one that was released: what would break the other side.

A release keeps its OpenAPI document (see `releases.py`); the next one is held against it. The rules
are those of the Runtime SDK: nothing is taken away from a version once it is released (1), what
replaces a deprecated version is at least as stable (3), and a deprecated version stays for a while
(4). Conversions between versions (2) are a matter of code, and of tests that call it.
"""

import calendar
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from capelin.api.rules import Schema
from capelin.runtime.catalog import Version

_SUPPORT = {"alpha": (0, 0), "beta": (6, 2), "stable": (12, 3)}
"""Months and releases for which a version stays after its deprecation, whichever is longer."""

_UPPER_LIMITS = ("maximum", "maxLength", "maxItems", "maxProperties")
_LOWER_LIMITS = ("minimum", "minLength", "minItems", "minProperties")


@dataclass(frozen=True, slots=True)
class Release:
    """A release of a catalog."""

    version: str
    date: date


def breaking_changes(released: Schema, wanted: Schema, *, releases: Sequence[Release]) -> list[str]:
    """What in the wanted document breaks what the released one promised, in sentences.

    Args:
        released: The OpenAPI document of the last release.
        wanted: The OpenAPI document of the release to be made.
        releases: All releases since the oldest deprecation, the one to be made last.
    """
    before, after = _hooks(released), _hooks(wanted)
    problems = [
        *(
            problem
            for hook in before.keys() - after.keys()
            for problem in _gone(hook, before, after, releases)
        ),
        *(problem for hook in after for problem in _unstable_replacement(hook, after)),
        *(
            problem
            for hook in before.keys() & after.keys()
            for problem in _Comparison(str(hook), released, wanted).of(before[hook], after[hook])
        ),
    ]
    return sorted(problems)


@dataclass(frozen=True, slots=True)
class _Hook:
    """What a path names."""

    group: str
    version: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} {self.group}/{self.version}"

    @property
    def track(self) -> str:
        return Version.parse(self.version).track

    def at(self, version: str) -> "_Hook":
        return _Hook(self.group, version, self.name)


def _hooks(document: Schema) -> dict[_Hook, Schema]:
    hooks: dict[_Hook, Schema] = {}
    for path, item in document["paths"].items():
        group, version, name = path.strip("/").split("/")[:3]
        hooks[_Hook(group, version, name)] = item["post"]
    return hooks


def _gone(
    hook: _Hook,
    before: Mapping[_Hook, Schema],
    after: Mapping[_Hook, Schema],
    releases: Sequence[Release],
) -> Iterator[str]:
    if not any(hook.at(other.version) == other for other in after):
        yield f"rule 1: {hook} is gone and no version of it is left; keep one"
        return
    if hook.track == "alpha":
        return
    said = before[hook].get("x-deprecation")
    if said is None:
        yield f"rule 4: {hook} is gone without having been deprecated; deprecate it first"
        return
    months, count = _SUPPORT[hook.track]
    names = [release.version for release in releases]
    end = _months_later(date.fromisoformat(said["on"]), months)
    since = len(names) - 1 - names.index(said["release"]) if said["release"] in names else 0
    if releases[-1].date < end or since < count:
        yield (
            f"rule 4: {hook} is gone too early; it was deprecated in {said['release']} and stays"
            f" for {count} releases and until {end}"
        )


def _months_later(start: date, months: int) -> date:
    year, month = divmod(start.month - 1 + months, 12)
    year, month = start.year + year, month + 1
    return date(year, month, min(start.day, calendar.monthrange(year, month)[1]))


def _unstable_replacement(hook: _Hook, after: Mapping[_Hook, Schema]) -> Iterator[str]:
    said = after[hook].get("x-deprecation")
    if said is None:
        return
    other = hook.at(said["replacedBy"])
    if other not in after:
        yield f"rule 3: {hook} is deprecated in favour of {other}, which does not exist"
    elif Version.parse(other.version).stability < Version.parse(hook.version).stability:
        yield f"rule 3: {hook} is deprecated in favour of {other}, which is less stable"


class _Comparison:
    """What changed between two schemas of one hook, through all that they refer to."""

    def __init__(self, hook: str, released: Schema, wanted: Schema) -> None:
        self._hook = hook
        self._released = released["components"]["schemas"]
        self._wanted = wanted["components"]["schemas"]
        self._seen: set[tuple[str, str]] = set()

    def of(self, before: Schema, after: Schema) -> Iterator[str]:
        yield from self._compare(
            "request", _content(before["requestBody"]), _content(after["requestBody"])
        )
        yield from self._compare(
            "response", _content(before["responses"]["200"]), _content(after["responses"]["200"])
        )

    def _compare(self, where: str, before: Schema, after: Schema) -> Iterator[str]:
        names = (_reference(before), _reference(after))
        if names[0] and names[1]:
            if (names[0], names[1]) in self._seen:
                return
            self._seen.add((names[0], names[1]))
        before = self._released[names[0]] if names[0] else before
        after = self._wanted[names[1]] if names[1] else after
        for key in ("type", "format"):
            if before.get(key) != after.get(key):
                yield self._problem(where, f"was {before.get(key)} and is {after.get(key)}")
                return
        for option in before.get("anyOf", ()):
            now = _counterpart(option, after.get("anyOf", ()))
            if now is None:
                what = _kind_of(option).rpartition(".")[2]
                yield self._problem(where, f"does not take {what} any more")
            else:
                yield from self._compare(where, option, now)
        yield from self._limits(where, before, after)
        yield from self._fields(where, before, after)
        for key in ("items", "additionalProperties"):
            if key in before and key in after:
                yield from self._compare(f"{where}[]", before[key], after[key])

    def _fields(self, where: str, before: Schema, after: Schema) -> Iterator[str]:
        old, new = before.get("properties", {}), after.get("properties", {})
        had, has = set(before.get("required", ())), set(after.get("required", ()))
        for name in old.keys() - new.keys():
            yield self._problem(f"{where}.{name}", "is gone")
        for name in has - had:
            yield self._problem(f"{where}.{name}", "is required now")
        if where.startswith("request"):
            for name in (had - has) & new.keys():
                yield self._problem(f"{where}.{name}", "may be missing now")
        for name in old.keys() & new.keys():
            yield from self._compare(f"{where}.{name}", old[name], new[name])

    def _limits(self, where: str, before: Schema, after: Schema) -> Iterator[str]:
        lost = set(before.get("enum", ())) - set(after.get("enum", before.get("enum", ())))
        if lost or ("enum" in after and "enum" not in before):
            values = ", ".join(sorted(map(str, lost))) or "values"
            yield self._problem(where, f"does not take {values} any more")
        if after.get("pattern", before.get("pattern")) != before.get("pattern"):
            yield self._problem(where, "has another pattern")
        for key in (*_UPPER_LIMITS, *_LOWER_LIMITS):
            if _narrower(key, before.get(key), after.get(key)) or _excludes(key, before, after):
                yield self._problem(where, f"has a narrower {key}")

    def _problem(self, where: str, what: str) -> str:
        return f"rule 1: {self._hook}: {where} {what}; make the change in a new version"


def _narrower(key: str, before: Any, after: Any) -> bool:
    if after is None or before is None:
        return after is not None
    return after < before if key in _UPPER_LIMITS else after > before


def _excludes(key: str, before: Schema, after: Schema) -> bool:
    """Whether a limit is where it was, and is itself not allowed any more."""
    exclusive = f"exclusive{key.capitalize()}"
    stays = before.get(key) == after.get(key)
    return stays and bool(after.get(exclusive)) and not before.get(exclusive)


def _counterpart(option: Schema, options: Sequence[Schema]) -> Schema | None:
    """What became of an option: the same one, or else the only one of its kind."""
    if option in options:
        return option
    alike = [other for other in options if _kind_of(other) == _kind_of(option)]
    return alike[0] if len(alike) == 1 else None


def _kind_of(option: Schema) -> str:
    return _reference(option) or str(option.get("type"))


def _content(part: Schema) -> Schema:
    return part["content"]["application/json"]["schema"]


def _reference(schema: Schema) -> str | None:
    (alone,) = schema.get("allOf", [schema])
    reference = alone.get("$ref")
    return None if reference is None else reference.rpartition("/")[2]
