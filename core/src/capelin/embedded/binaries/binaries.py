"""Asking for programs: the ways are tried in order, and all but a folder end in the cache."""

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from capelin.embedded.binaries import folder
from capelin.embedded.binaries.cache import Cache, Entry
from capelin.embedded.binaries.catalogue import Platform, Wanted, wanted
from capelin.embedded.binaries.errors import NotObtainableError, WayFailedError
from capelin.embedded.binaries.go import needed_go
from capelin.embedded.binaries.live import progress_here
from capelin.embedded.binaries.progress import Progress
from capelin.embedded.binaries.source import module_dir
from capelin.embedded.binaries.ways import Arrival, GoBuild, Images, Journal, title
from capelin.embedded.folders import cache_folder


@dataclass(frozen=True, slots=True)
class Binary:
    """A program that can be run."""

    component: str
    version: str | None
    """Its version; nothing if it comes from a folder and was not asked, or does not tell."""
    path: Path


class Binaries:
    """Kubernetes programs, from wherever they can be had.

    Looked for in the folders that are named (here, by `CAPELIN_BINARIES`, by
    `KUBEBUILDER_ASSETS`), then in the cache, then in the official image, then built with Go.
    `mirrors` says where a registry is really to be found: `{"registry.k8s.io": "https://..."}`.
    """

    def __init__(
        self,
        *,
        folders: Sequence[Path] = (),
        cache: Path | None = None,
        progress: Progress | None = None,
        mirrors: Mapping[str, str] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.cache = Cache(cache or cache_folder(environment))
        self._folders = folder.named_folders(folders, environment)
        self._progress = progress or progress_here()
        self._mirrors = mirrors or {}
        self._environment = environment
        self._platform = Platform.here()

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
        groups: dict[str, dict[str, Wanted]] = {}
        for name, each in asked.items():
            key = f"{each.component.project.name}-{each.version}"
            groups.setdefault(key, {})[name] = each
        found: dict[str, Binary] = {}
        images = Images(self.cache, self._platform, self._mirrors, self._environment)
        for key, group in groups.items():
            journal = Journal(self._progress)
            in_folders = {
                name: binary
                for name, each in group.items()
                if (binary := await self._in_folder(each, journal)) is not None
            }
            rest = {name: each for name, each in group.items() if name not in in_folders}
            obtained = await self._obtain(key, [*dict.fromkeys(rest.values())], images, journal)
            found |= in_folders
            found |= {name: obtained[each] for name, each in rest.items()}
        return {name: found[name] for name in asked}

    async def module_dir(self, name: str, version: str | None = None) -> Path:
        """The source folder of `kubernetes`, `cluster-api`, `cluster-api/test` or `kwok`.

        It may lie in the user's Go module cache: read it, and leave it as it is.
        """
        return await module_dir(
            name,
            version,
            cache=self.cache,
            environment=self._environment,
            platform=self._platform,
            progress=self._progress,
        )

    async def _obtain(
        self, key: str, group: Sequence[Wanted], images: Images, journal: Journal
    ) -> dict[Wanted, Binary]:
        found = await self._in_cache(group)
        missing = [each for each in group if each not in found]
        if not missing:
            return found
        waiting = partial(
            self._progress.noted, title(missing), "cache", "another process is getting it"
        )
        async with self.cache.building(key, waiting) as place:
            # Whoever was waited for may have got it.
            found |= await self._in_cache(missing)
            journal.add("cache", f"{self.cache.root} does not hold it")
            for way in (images, GoBuild(self._environment, self._platform)):
                missing = [each for each in group if each not in found]
                if missing:
                    arrived = await way.bring(missing, place, journal)
                    found |= {each: await self._add(each, arrived[each]) for each in arrived}
        missing = [each for each in group if each not in found]
        if missing:
            raise NotObtainableError(title(missing), journal.failures, _advice(missing[0]))
        return found

    async def _in_folder(self, each: Wanted, journal: Journal) -> Binary | None:
        try:
            seen = await folder.look(self._folders, each, self._environment)
        except WayFailedError as error:
            journal.add(folder.WAY, str(error))
            if isinstance(error, folder.WrongVersionError):
                self._progress.noted(str(each), folder.WAY, str(error))
            return None
        return Binary(each.component.name, seen.version, seen.file)

    async def _in_cache(self, group: Sequence[Wanted]) -> dict[Wanted, Binary]:
        found = {
            each: await asyncio.to_thread(self.cache.find, each, self._platform) for each in group
        }
        return {each: self._binary(entry) for each, entry in found.items() if entry is not None}

    async def _add(self, each: Wanted, arrival: Arrival) -> Binary:
        add = partial(self.cache.add, arrival.file, each, self._platform, arrival.source)
        return self._binary(await asyncio.to_thread(add))

    def _binary(self, entry: Entry) -> Binary:
        return Binary(entry.component, entry.version, self.cache.path(entry))


def _advice(missing: Wanted) -> str:
    needed = needed_go(missing.component.project.module_files(missing.version))
    image = missing.component.image
    host = "" if image is None else f"allow access to {image.reference.partition('/')[0]}, "
    return (
        f"Install Go {needed} or later (https://go.dev/dl) and allow access to a Go module proxy,"
        f" {host}or name a folder that holds {missing.component.name}: {folder.OURS}=FOLDER"
    )
