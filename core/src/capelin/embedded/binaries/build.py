"""Building programs with `go build` from the module files that are pinned in this package."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from capelin.embedded.binaries.cache import Workplace
from capelin.embedded.binaries.catalogue import Component, Project, Wanted
from capelin.embedded.binaries.errors import WayFailedError
from capelin.embedded.binaries.go import Go

WAY = "go build"


async def build(
    go: Go,
    wanted: Sequence[Wanted],
    place: Workplace,
    compiled: Callable[[int], None],
) -> dict[Wanted, Path]:
    """Build programs of one project and version; they share almost all that is compiled."""
    project, version = wanted[0].component.project, wanted[0].version
    for name in ("go.mod", "go.sum"):
        shutil.copy(project.module_files(version) / name, place.folder)
    scratch = place.folder / "go-tmp"
    scratch.mkdir()
    built: dict[Wanted, Path] = {}
    packages = 0

    def said(line: str) -> None:
        nonlocal packages
        if line and ":" not in line:
            packages += 1
            compiled(packages)

    for number, batch in enumerate(batches(wanted)):
        out = place.folder / f"out-{number}"
        await go.run(
            *arguments(project, version, [each.component for each in batch], out),
            folder=place.folder,
            # Go's own temporary files go where a kill leaves nothing for long.
            environment={"GOTMPDIR": str(scratch)},
            # A compiler that survives us keeps others from building the same beside it.
            keep_open=(place.lock,),
            said=said,
        )
        built |= {each: out / executable(each.component) for each in batch}
    missing = [str(each) for each, file in built.items() if not file.is_file()]
    if missing:
        raise WayFailedError(f"`go build` succeeded but left no {', '.join(missing)}")
    return built


def batches(wanted: Sequence[Wanted]) -> list[list[Wanted]]:
    """Split what would get the same file name: two packages of Cluster API are called `kubeadm`."""
    found: list[list[Wanted]] = []
    for each in wanted:
        name = executable(each.component)
        for batch in found:
            if all(executable(other.component) != name for other in batch):
                batch.append(each)
                break
        else:
            found.append([each])
    return found


def arguments(
    project: Project, version: str, components: Sequence[Component], out: Path
) -> list[str]:
    """The command line of one `go build`."""
    major, minor, *_ = version.removeprefix("v").split(".")
    stamps = [
        f"-X {variable}={value.format(version=version, major=major, minor=minor)}"
        for variable, value in project.stamps.items()
    ]
    return [
        "build",
        "-v",
        "-mod=readonly",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        " ".join(["-s", "-w", *stamps]),
        "-o",
        f"{out}/",
        *(component.package for component in components),
    ]


def executable(component: Component) -> str:
    """The name that `go build` gives a program: its package's last part that is not a version."""
    *_, parent, last = component.package.split("/")
    return parent if last.startswith("v") and last[1:].isdigit() else last
