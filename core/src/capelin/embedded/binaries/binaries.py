"""Asking for programs: the ways are tried in order, and every one ends in the cache."""

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

from capelin.embedded.binaries import build
from capelin.embedded.binaries.cache import Cache, Workplace
from capelin.embedded.binaries.catalogue import Platform, Wanted, wanted
from capelin.embedded.binaries.errors import NotObtainableError, WayFailedError
from capelin.embedded.binaries.go import find_go
from capelin.embedded.binaries.progress import PlainProgress, Progress


@dataclass(frozen=True, slots=True)
class Binary:
    """A program that can be run."""

    component: str
    version: str | None
    """Its version; nothing if it comes from a folder and does not tell."""
    path: Path


class Binaries:
    """Kubernetes programs, from wherever they can be had."""

    def __init__(
        self,
        *,
        cache: Path | None = None,
        progress: Progress | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._environment = environment
        self._platform = Platform.here()
        self._progress = progress or PlainProgress()
        self.cache = Cache(cache or default_cache(environment))

    async def path(self, component: str, version: str | None = None) -> Path:
        """The file of one program; the newest known version if none is given."""
        name = component if version is None else f"{component}@{version}"
        return (await self.fetch([name]))[name].path

    async def fetch(self, names: Iterable[str]) -> dict[str, Binary]:
        """Programs by name, as in `etcd` or `kube-apiserver@v1.33.13`.

        Those of one project and version are built together, which is much faster than one
        after the other.
        """
        asked = {name: wanted(name) for name in names}
        found: dict[Wanted, Binary] = {}
        for each in asked.values():
            if (binary := await self._cached(each)) is not None:
                found[each] = binary
        missing = sorted({*asked.values()} - {*found}, key=_group)
        for _, group in groupby(missing, key=_group):
            found |= await self._obtain(list(group))
        return {name: found[each] for name, each in asked.items()}

    async def _cached(self, each: Wanted) -> Binary | None:
        entry = await asyncio.to_thread(self.cache.find, each, self._platform)
        if entry is None:
            return None
        return Binary(entry.component, entry.version, self.cache.path(entry))

    async def _obtain(self, group: Sequence[Wanted]) -> dict[Wanted, Binary]:
        what = title(group)
        waiting = partial(
            self._progress.noted, what, "cache", "another process is getting it; waiting for that"
        )
        found: dict[Wanted, Binary] = {}
        async with self.cache.building("-".join(_group(group[0])), waiting) as place:
            # Whoever was waited for may have got it.
            for each in group:
                if (binary := await self._cached(each)) is not None:
                    found[each] = binary
            missing = [each for each in group if each not in found]
            if missing:
                found |= await self._build(missing, place)
        return found

    async def _build(self, group: Sequence[Wanted], place: Workplace) -> dict[Wanted, Binary]:
        what = title(group)
        project, version = group[0].component.project, group[0].version
        self._progress.started(what, build.WAY)
        try:
            go = await find_go(
                project.module_files(version),
                what=f"{project.title} {version}",
                environment=self._environment,
                platform=self._platform,
                noted=partial(self._progress.noted, what, build.WAY),
            )
            built = await build.build(
                go,
                group,
                place,
                lambda done: self._progress.advanced(what, build.WAY, done, None, "packages"),
            )
        except WayFailedError as error:
            self._progress.failed(what, build.WAY, str(error))
            raise NotObtainableError(what, [(build.WAY, str(error))], "") from error
        found: dict[Wanted, Binary] = {}
        for each, file in built.items():
            source = f"{each.component.package} {version}, go build with Go {go.version}"
            entry = await asyncio.to_thread(self.cache.add, file, each, self._platform, source)
            found[each] = Binary(entry.component, entry.version, self.cache.path(entry))
        self._progress.finished(what, build.WAY)
        return found


def default_cache(environment: Mapping[str, str]) -> Path:
    """The folder that XDG has for caches, and in it ours."""
    named = environment.get("XDG_CACHE_HOME", "")
    # The specification says to pass over a relative path.
    base = Path(named) if named.startswith("/") else Path.home() / ".cache"
    return base / "capelin"


def title(group: Sequence[Wanted]) -> str:
    """As in `etcd, etcdctl v3.6.5`."""
    return f"{', '.join(each.component.name for each in group)} {group[0].version}"


def _group(each: Wanted) -> tuple[str, str]:
    return each.component.project.name, each.version
