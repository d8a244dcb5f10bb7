"""The programs in the cache of this machine: lists, fetches and removes them."""

from collections.abc import Callable, Iterable, Sequence

from capelin_embedded.binaries import (
    DEFAULT_KUBERNETES,
    KNOWN_KUBERNETES,
    KUBERNETES,
    TESTED_KUBERNETES,
    Binaries,
    Component,
    Entry,
    Progress,
    ProgressEvent,
    parse_component,
)
from capelin_embedded.management import workload_programs
from rich.console import Console

from capelin_cli.binaries import PROGRAMS
from capelin_cli.environments.kubernetes_versions import parse_version
from capelin_cli.terminal.checklist import Checklist, Line
from capelin_cli.terminal.tables import Column, Format, listing_console, print_list


def show(output: Format) -> None:
    """Print what is in the cache."""
    cache = Binaries().cache
    entries = cache.entries()
    columns = (
        Column[Entry]("PROGRAM", lambda entry: entry.component),
        Column[Entry]("VERSION", lambda entry: entry.version),
        Column[Entry]("SIZE", lambda entry: _megabytes(entry.size), right=True),
        Column[Entry]("FROM", lambda entry: entry.source),
        Column[Entry]("FILE", lambda entry: str(cache.path(entry)), wide=True),
    )

    def data(entry: Entry) -> object:
        return {
            "program": entry.component,
            "version": entry.version,
            "bytes": entry.size,
            "from": entry.source,
            "file": str(cache.path(entry)),
        }

    print_list(entries, columns, data, output)
    if output in {"text", "wide"}:
        total = _megabytes(sum(entry.size for entry in entries))
        text = f"{len(entries)} programs, {total}, in {cache.root}"
        listing_console().print(text, soft_wrap=True)


async def prefetch(names: Sequence[str]) -> None:
    """Get programs: those named, those of a version, or all in every tested version."""
    wanted = [program for name in names for program in _programs(name)] or [
        f"{component}@{version}" if component.project.tested else component
        for component in PROGRAMS.values()
        for version in (component.project.tested or [component.project.default_version])
    ]
    with Checklist(Console()).shown() as checklist, checklist.step("programs") as line:
        found = await Binaries(progress=show_progress_on(checklist, line)).fetch(wanted)
        line.detail = f"{len(found)} available"


def prune(*, everything: bool, dry_run: bool, agreed: Callable[[str], bool]) -> bool:
    """Remove programs: all of them, or those that Capelin no longer uses.

    Returns whether all of these were removed.
    """
    cache, console = Binaries().cache, Console(highlight=False)
    entries = cache.entries()
    gone = [entry for entry in entries if everything or not is_known(entry)]
    for entry in gone if dry_run else ():
        console.print(f"{entry.component} {entry.version}  {_megabytes(entry.size)}")
    size = _megabytes(sum(entry.size for entry in gone))
    if dry_run:
        console.print(f"{size} would be freed in {cache.root}", soft_wrap=True)
        return True
    question = f"Remove {len(gone)} programs, {size}? Getting them again may take minutes."
    if gone and not agreed(question):
        console.print("Nothing was removed.")
        return False
    freed = cache.prune([entry for entry in entries if entry not in gone])
    console.print(f"{_megabytes(freed)} freed in {cache.root}", soft_wrap=True)
    return True


def _programs(name: str) -> Sequence[str | Component]:
    """The programs that a name stands for: a program, or all of a Kubernetes version."""
    if not name.removeprefix("v")[:1].isdigit() and name != "latest":
        return [PROGRAMS.get(name, name)]
    version = parse_version(name, KNOWN_KUBERNETES)
    return [
        f"{component.name}@{version}"
        for component in PROGRAMS.values()
        if component.project is KUBERNETES
    ]


def is_cached(names: Iterable[str]) -> bool:
    """Whether all of these programs are in the cache."""
    entries = {(entry.component, entry.version) for entry in Binaries().cache.entries()}
    wanted = map(parse_component, names)
    return all((program.component.name, program.version) in entries for program in wanted)


def is_known(entry: Entry) -> bool:
    """Whether a program is one that Capelin could ask for."""
    component = PROGRAMS.get(entry.component)
    return component is not None and entry.version in component.project.versions


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


async def fetch_workload_programs(checklist: Checklist, version: str) -> None:
    """Get the programs of a version with progress. Otherwise the provider would get them."""
    programs = workload_programs(version)
    if await Binaries().has(programs):
        return
    with checklist.step("programs of clusters") as line:
        await Binaries(progress=show_progress_on(checklist, line)).fetch(programs)
        line.detail = f"Kubernetes {version}"


def show_progress_on(checklist: Checklist, line: Line) -> Progress:
    """Show on one line of a checklist how programs are downloaded or built."""

    def show(event: ProgressEvent) -> None:
        put = checklist.update if event.kind == "advanced" else checklist.note
        put(line, str(event).splitlines()[0], reason=f"{event.what}: {event.source}")

    return show


def show_versions(output: Format) -> None:
    """Print the versions, oldest first."""
    # Whether the programs of a cluster's control plane are on this machine.
    cached = {version: is_cached(workload_programs(version)) for version in KNOWN_KUBERNETES}

    def note(version: str) -> str:
        notes = (
            ("default of new environments", version == DEFAULT_KUBERNETES),
            ("tested with every change", version in TESTED_KUBERNETES),
            ("latest", version == KNOWN_KUBERNETES[-1]),
        )
        return ", ".join(note for note, applies in notes if applies)

    columns = (
        Column[str]("VERSION", str),
        Column[str]("IN CACHE", lambda version: "yes" if cached[version] else "no"),
        Column[str]("NOTE", note),
    )

    def data(version: str) -> object:
        return {
            "version": version,
            "cached": cached[version],
            "default": version == DEFAULT_KUBERNETES,
            "tested": version in TESTED_KUBERNETES,
        }

    print_list(KNOWN_KUBERNETES, columns, data, output)
