"""The ways that bring a program which is not here yet: official images, and `go build`."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from capelin.embedded.binaries import build, image, web
from capelin.embedded.binaries.cache import Cache, Workplace
from capelin.embedded.binaries.catalogue import Platform, Wanted
from capelin.embedded.binaries.errors import WayFailedError
from capelin.embedded.binaries.go import find_go
from capelin.embedded.binaries.progress import Progress
from capelin.embedded.binaries.registry import GoneError, Reference


@dataclass(frozen=True, slots=True)
class Arrival:
    """A program's file in a workplace, and where it came from."""

    file: Path
    source: str


@dataclass(frozen=True, slots=True)
class Journal:
    """Tells a `Progress` what is tried, and keeps why it failed for the error at the end."""

    progress: Progress
    failures: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def add(self, way: str, reason: str) -> None:
        """Keep why a way failed, once."""
        if (way, reason) not in self.failures:
            self.failures.append((way, reason))

    @contextmanager
    def trying(self, what: str, way: str) -> Generator[None, None, None]:
        """Try a way; that it fails is written down, and the next one can be tried."""
        self.progress.started(what, way)
        try:
            yield
        except WayFailedError as error:
            self.progress.failed(what, way, str(error))
            self.add(way, str(error))
        except OSError as error:
            reason = f"{error.filename or 'the cache'}: {error.strerror}"
            self.progress.failed(what, way, reason)
            self.add(way, reason)
        except BaseException:
            self.progress.failed(what, way, "stopped")
            raise
        else:
            self.progress.finished(what, way)


def title(group: Sequence[Wanted]) -> str:
    """As in `etcd, etcdctl v3.6.5`."""
    return f"{', '.join(each.component.name for each in group)} {group[0].version}"


@dataclass(frozen=True, slots=True)
class Images:
    """The official images; a host that does not answer is asked once."""

    cache: Cache
    platform: Platform
    mirrors: Mapping[str, str]
    environment: Mapping[str, str]
    unreachable: set[str] = field(default_factory=set[str])

    async def bring(
        self, group: Sequence[Wanted], place: Workplace, journal: Journal
    ) -> dict[Wanted, Arrival]:
        """Those of some programs that an image could be pulled for."""
        arrived: dict[Wanted, Arrival] = {}
        async with web.connected(self.environment) as internet:
            for reference, files in by_image(group, journal).items():
                if reference.host in self.unreachable:
                    continue
                with journal.trying(title([*files.values()]), f"image {reference}"):
                    arrived |= await self._pull(internet, reference, files, place, journal)
        return arrived

    async def _pull(
        self,
        internet: web.Web,
        reference: Reference,
        files: Mapping[str, Wanted],
        place: Workplace,
        journal: Journal,
    ) -> dict[Wanted, Arrival]:
        group = [*files.values()]
        name = str(reference)
        what, way = title(group), f"image {name}"
        project = group[0].component.project
        recorded = self.cache.seen(name)
        try:
            digest, found = await image.pull(
                internet,
                reference,
                files,
                base=self.mirrors.get(reference.host, f"https://{reference.host}"),
                digest=project.image_digests(group[0].version).get(name) or recorded,
                platform=self.platform,
                place=place,
                advanced=lambda done, total: journal.progress.advanced(
                    what, way, done, total, "bytes"
                ),
            )
        except web.UnreachableError:
            self.unreachable.add(reference.host)
            raise
        except GoneError as error:
            if recorded is None:
                raise
            raise WayFailedError(
                f"{error}; that is what it was when it was first seen, so it has been replaced."
                f" To trust what it is now, remove {self.cache.seen_file(name)}"
            ) from error
        self.cache.remember(name, digest)
        return {each: Arrival(found[file], f"{name}@{digest}") for file, each in files.items()}


@dataclass(frozen=True, slots=True)
class GoBuild:
    """Go, and the module files that are pinned in this package."""

    environment: Mapping[str, str]
    platform: Platform

    async def bring(
        self, group: Sequence[Wanted], place: Workplace, journal: Journal
    ) -> dict[Wanted, Arrival]:
        """All of some programs of one project and version, or none."""
        arrived: dict[Wanted, Arrival] = {}
        what, progress = title(group), journal.progress
        project, version = group[0].component.project, group[0].version
        with journal.trying(what, build.WAY):
            go = await find_go(
                project.module_files(version),
                what=f"{project.title} {version}",
                environment=self.environment,
                platform=self.platform,
                noted=lambda message: progress.noted(what, build.WAY, message),
            )
            built = await build.build(
                go,
                group,
                place,
                lambda done: progress.advanced(what, build.WAY, done, None, "packages"),
            )
            for each, file in built.items():
                arrived[each] = Arrival(file, f"{each.component.package}, Go {go.version}")
        return arrived


def by_image(group: Sequence[Wanted], journal: Journal) -> dict[Reference, dict[str, Wanted]]:
    """Programs by the image that holds them, and there by their file."""
    found: dict[Reference, dict[str, Wanted]] = {}
    for each in group:
        where = each.component.image
        if where is None:
            journal.add("image", f"no official image holds {each.component.name}")
        else:
            reference = Reference.read(where.reference_of(each.version))
            found.setdefault(reference, {})[where.file] = each
    return found
