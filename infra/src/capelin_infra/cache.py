"""The programs that are kept on this machine: what there is, getting more, removing some."""

from collections.abc import Sequence

from capelin.embedded.binaries import COMPONENTS, Binaries, Entry
from rich.console import Console
from rich.table import Table

from capelin_infra.progress import Checklist, listing_console
from capelin_infra.up import show_progress_on


def show() -> None:
    """Print what is in the cache."""
    cache = Binaries().cache
    entries = cache.entries()
    table = Table(box=None, pad_edge=False)
    for title in ("PROGRAM", "VERSION", "SIZE", "FROM"):
        table.add_column(title, justify="right" if title == "SIZE" else "left")
    for each in entries:
        table.add_row(each.component, each.version, _megabytes(each.size), each.source)
    console = listing_console()
    console.print(table)
    total = _megabytes(sum(each.size for each in entries))
    said = f"{len(entries)} programs, {total}, in {cache.root}"
    console.print(said, highlight=False, soft_wrap=True)


async def prefetch(names: Sequence[str]) -> None:
    """Get programs: those named, or every one in every version that Capelin knows."""
    wanted = list(names) or [
        f"{each.name}@{version}"
        for each in COMPONENTS.values()
        for version in each.project.versions
    ]
    with Checklist(Console()).shown() as checklist, checklist.step("programs") as line:
        found = await Binaries(progress=show_progress_on(checklist, line)).fetch(wanted)
        line.detail = f"{len(found)} are there"


def prune(*, everything: bool) -> None:
    """Remove programs: all of them, or those that Capelin would not ask for any more."""
    cache = Binaries().cache
    freed = cache.prune([] if everything else filter(is_known, cache.entries()))
    said = f"{_megabytes(freed)} freed in {cache.root}"
    Console().print(said, highlight=False, soft_wrap=True)


def is_known(entry: Entry) -> bool:
    """Whether a program is one that Capelin could ask for."""
    component = COMPONENTS.get(entry.component)
    return component is not None and entry.version in component.project.versions


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
