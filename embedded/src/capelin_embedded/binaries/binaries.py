"""`Binaries`: tries the sources of a binary in order, and stores the result in the cache."""

import asyncio
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from capelin_embedded.binaries.cache import BuildDir, Cache, Entry
from capelin_embedded.binaries.catalog import (
    Component,
    ComponentVersion,
    Platform,
    Project,
    parse_component,
)
from capelin_embedded.binaries.errors import (
    NotObtainableError,
    SourceFailedError,
    WantedByAnotherError,
)
from capelin_embedded.binaries.go import needed_go
from capelin_embedded.binaries.module_source import module_dir
from capelin_embedded.binaries.progress import Progress, ProgressEvent, default_progress
from capelin_embedded.binaries.sources import (
    FOLDER,
    FOLDERS_VARIABLE,
    Attempts,
    Binary,
    ImageSource,
    Obtained,
    WrongVersionError,
    build_with_go,
    find_local,
    local_folders,
    title,
)
from capelin_embedded.folders import cache_folder

_LOOK_SECONDS: Final = 0.2


class Binaries:
    """Provides Kubernetes binaries.

    It looks in the given folders (`folders`, `CAPELIN_BINARIES`, `KUBEBUILDER_ASSETS`), then in the
    cache, then in the official image, and finally builds the binary with Go. `mirrors` replaces
    the URL of a registry: `{"registry.k8s.io": "https://..."}`. With `background` it builds at the
    lowest priority, and leaves a binary to any other process that waits for it.
    """

    def __init__(
        self,
        *,
        folders: Sequence[Path] = (),
        cache: Path | None = None,
        progress: Progress | None = None,
        mirrors: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        background: bool = False,
    ) -> None:
        environment = os.environ if environment is None else environment
        self.cache = Cache(cache or cache_folder(environment))
        self._folders = local_folders(folders, environment)
        self._progress = progress or default_progress()
        self._mirrors = mirrors or {}
        self._environment = environment
        self._background = background
        self._platform = Platform.current()

    async def path(self, component: str | Component, version: str | None = None) -> Path:
        """The file of one binary, by default in its newest known version."""
        name = component if version is None else f"{component}@{version}"
        return (await self.fetch([name]))[str(name)].path

    async def fetch(self, names: Iterable[str | Component]) -> dict[str, Binary]:
        """Binaries by name, such as `etcd` or `kube-apiserver@v1.35.4`, or by component.

        It builds the binaries of one project and version together, which is much faster.

        Raises:
            BinariesError: One of them is not available.
            WantedByAnotherError: In the background: another process provides it now.
        """
        requests = {str(name): parse_component(name) for name in names}
        groups: dict[str, dict[str, ComponentVersion]] = {}
        for name, request in requests.items():
            key = f"{request.component.project.name}-{request.version}"
            groups.setdefault(key, {})[name] = request
        found: dict[str, Binary] = {}
        images = ImageSource(self.cache, self._platform, self._mirrors, self._environment)
        # Kubernetes' own binaries, which are the most and take minutes to build, come last, so that
        # missing ones are reported earlier.
        for key, group in sorted(groups.items(), key=lambda item: len(item[1])):
            attempts = Attempts(self._progress)
            in_folders = {
                name: binary
                for name, request in group.items()
                if (binary := await self._in_folder(request, attempts)) is not None
            }
            rest = {name: request for name, request in group.items() if name not in in_folders}
            obtained = await self._obtain(key, [*dict.fromkeys(rest.values())], images, attempts)
            found |= in_folders
            found |= {name: obtained[request] for name, request in rest.items()}
        return {name: found[name] for name in requests}

    async def has(self, names: Iterable[str | Component]) -> bool:
        """Whether all of these binaries are in a folder or in the cache."""
        attempts = Attempts(lambda _: None)
        requests = [*map(parse_component, names)]
        rest = [item for item in requests if await self._in_folder(item, attempts) is None]
        return len(await self._in_cache(rest)) == len({*rest})

    async def module_dir(self, name: str | Project, version: str | None = None) -> Path:
        """The source folder of a project, or of a module by its name, such as `cluster-api/test`.

        It may be in the user's Go module cache: only read it.
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
        self, key: str, group: Sequence[ComponentVersion], images: ImageSource, attempts: Attempts
    ) -> dict[ComponentVersion, Binary]:
        found = await self._in_cache(group)
        missing = [request for request in group if request not in found]
        if not missing:
            return found
        waiting = ProgressEvent("noted", title(missing), "cache", "another process is providing it")
        async with self.cache.building(key, partial(self._progress, waiting)) as build_dir:
            # The process that held the lock may have added it.
            found |= await self._in_cache(missing)
            attempts.add_failure("cache", f"{self.cache.root} does not hold it")
            build = partial(
                build_with_go,
                environment=self._environment,
                platform=self._platform,
                background=self._background,
            )
            for obtain in (images.obtain, build):
                missing = [request for request in group if request not in found]
                if missing:
                    obtained = await self._unless_wanted(
                        obtain(missing, build_dir, attempts), build_dir
                    )
                    found |= {
                        request: await self._add(request, obtained[request]) for request in obtained
                    }
        missing = [request for request in group if request not in found]
        if missing:
            raise NotObtainableError(title(missing), attempts.failures, _advice(missing[0]))
        return found

    async def _unless_wanted(
        self, work: Coroutine[Any, Any, dict[ComponentVersion, Obtained]], build_dir: BuildDir
    ) -> dict[ComponentVersion, Obtained]:
        """Do the work, but in the background only until another process waits for its result.

        Downloads and Go's build cache keep the finished part for that process.
        """
        if not self._background:
            return await work
        task = asyncio.create_task(work)
        try:
            while not task.done():
                if build_dir.wanted.exists():
                    raise WantedByAnotherError("another process waits for it, and provides it now")
                await asyncio.wait({task}, timeout=_LOOK_SECONDS)
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _in_folder(self, request: ComponentVersion, attempts: Attempts) -> Binary | None:
        try:
            return await find_local(self._folders, request, self._environment)
        except SourceFailedError as error:
            attempts.add_failure(FOLDER, str(error))
            if isinstance(error, WrongVersionError):
                self._progress(ProgressEvent("noted", str(request), FOLDER, str(error)))
            return None

    async def _in_cache(self, group: Sequence[ComponentVersion]) -> dict[ComponentVersion, Binary]:
        entries = {
            request: await asyncio.to_thread(self.cache.find, request, self._platform)
            for request in group
        }
        return {
            request: self._binary(entry) for request, entry in entries.items() if entry is not None
        }

    async def _add(self, request: ComponentVersion, obtained: Obtained) -> Binary:
        add = partial(self.cache.add, obtained.file, request, self._platform, obtained.source)
        return self._binary(await asyncio.to_thread(add))

    def _binary(self, entry: Entry) -> Binary:
        return Binary(entry.component, entry.version, self.cache.path(entry))


def _advice(missing: ComponentVersion) -> str:
    needed = needed_go(missing.component.project.module_files(missing.version))
    image = missing.component.image
    host = "" if image is None else f"allow access to {image.reference.partition('/')[0]}, "
    return (
        f"Install Go {needed} or later (https://go.dev/dl) and allow access to a Go module proxy,"
        f" {host}or set a folder that contains {missing.component.name}: {FOLDERS_VARIABLE}=FOLDER"
    )
