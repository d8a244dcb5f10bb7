"""What the last release of a catalog promised, in a file that the next one is held against."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any, cast

from capelin.api.rules import Schema
from capelin.runtime.catalog import AnyHook
from capelin.runtime.evolution import Release, breaking_changes
from capelin.runtime.openapi import openapi_document


class BreakingChangesError(Exception):
    """A release that would break what an earlier one promised."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The hooks of a catalog as they were released, without the words that explain them."""

    releases: tuple[Release, ...]
    """All that there were, the last one last: how long a deprecated version stays counts them."""
    document: Schema

    @classmethod
    def of(cls, hooks: Iterable[AnyHook], *releases: Release) -> "Snapshot":
        """What hooks promise from this release on."""
        document = openapi_document(hooks, title="", version="")
        return cls(releases, _without_words(document))

    @classmethod
    def read(cls, text: str) -> "Snapshot":
        """A snapshot from its file."""
        said = json.loads(text)
        releases = (
            Release(one["version"], date.fromisoformat(one["date"])) for one in said["releases"]
        )
        components = {"schemas": said["schemas"]}
        return cls(tuple(releases), {"paths": said["paths"], "components": components})

    def text(self) -> str:
        """Its file: a hook or a type a line, so that a difference is easy to read."""
        parts = {
            "releases": [{"version": one.version, "date": str(one.date)} for one in self.releases],
            "paths": self.document["paths"],
            "schemas": self.document["components"]["schemas"],
        }
        return "{" + ",\n".join(f'"{name}": {_lines(part)}' for name, part in parts.items()) + "}\n"

    def followed_by(self, hooks: Iterable[AnyHook], release: Release) -> "Snapshot":
        """The snapshot of the next release, or of the last one made anew.

        Raises:
            BreakingChangesError: it must not be released like that.
        """
        earlier = [one for one in self.releases if one.version != release.version]
        following = Snapshot.of(hooks, *earlier, release)
        problems = breaking_changes(self.document, following.document, releases=following.releases)
        if problems:
            raise BreakingChangesError(problems)
        return following


def _lines(part: Any) -> str:
    if isinstance(part, dict):
        lines = [
            f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}"
            for key, value in cast("dict[str, Any]", part).items()
        ]
        return "{\n" + ",\n".join(lines) + "\n}"
    return json.dumps(part)


def _without_words(part: Any) -> Any:
    if isinstance(part, dict):
        # A field may have one of these names, too; what stands there then is its schema.
        return {
            key: _without_words(value)
            for key, value in cast("dict[str, Any]", part).items()
            if not (key in {"description", "summary"} and isinstance(value, str))
        }
    if isinstance(part, list):
        return [_without_words(one) for one in cast("list[Any]", part)]
    return part
