"""Compares watches with controller-runtime's: `python -m tests.watches [--seeds FIRST:COUNT]`.

An API server that fails by a seed judges a manager of each. It writes the results to `results.json`
and the documents, and fails if Capelin has missed a change.
"""

import argparse
import asyncio
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from capelin_embedded.binaries import CLUSTER_API, Platform, find_go

from tests.watches.catalog import (
    FOLDER,
    Played,
    Result,
    read_results,
    result_of,
    store,
    table,
)
from tests.watches.judge import play_lane

MODULES: Final = CLUSTER_API.module_files(CLUSTER_API.versions[-1])
"""The pinned modules of Cluster API, which contain controller-runtime."""
LANES: Final = 8
"""Managers at the same time. They mostly wait."""
CAPELIN: Final = "Capelin"


async def build(folder: Path) -> Path:
    """Build the manager of controller-runtime in a folder."""
    source = FOLDER / "controller_runtime" / "main.go"
    for file in (MODULES / "go.mod", MODULES / "go.sum", source):
        shutil.copy(file, folder)
    go = await find_go(
        MODULES, what="a test", environment=os.environ, platform=Platform.current(), note=print
    )
    await go.run("build", "-trimpath", "-buildvcs=false", "-o", "manager", ".", folder=folder)
    return folder / "manager"


def controller_runtime() -> str:
    """The name with the version."""
    found = re.search(r"sigs.k8s.io/(controller-runtime v\S+)", (MODULES / "go.mod").read_text())
    assert found is not None
    return found[1]


def seeds(text: str) -> range:
    """The seeds of `FIRST:COUNT`."""
    first, count = map(int, text.split(":"))
    return range(first, first + count)


def play_all(program: Path | None, chosen: range) -> list[Played]:
    """Play seeds in processes, each with an API server and a manager."""
    lanes = [chosen[number::LANES] for number in range(min(LANES, len(chosen)))]
    with ProcessPoolExecutor(LANES, get_context("spawn")) as pool:
        played = pool.map(play_lane, [program] * len(lanes), lanes)
        return sorted((it for lane in played for it in lane), key=lambda it: it.seed)


def judge(chosen: range, names: Sequence[str] = (), *, stores: bool = False) -> int:
    """Play seeds against the named managers, or both, and fail if Capelin missed a change."""
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory(prefix="capelin-watches-") as folder:
        programs = {CAPELIN: None, controller_runtime(): asyncio.run(build(Path(folder)))}
        for name, program in programs.items():
            if names and name.partition(" ")[0] not in names:
                continue
            played = play_all(program, chosen)
            results[name] = result_of(played)
            for it in played:
                if it.outdated or it.ended:
                    print(f"{name}: {it}")  # noqa: T201
    print(table(results))  # noqa: T201
    if stores:
        before = read_results()
        known = {name: (before | results).get(name) for name in programs}
        store({name: result for name, result in known.items() if result is not None})
    own = results.get(CAPELIN)
    return int(own is not None and bool(own.outdated or own.outdated_after_restore or own.ended))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.watches", description=__doc__)
    parser.add_argument("--seeds", type=seeds, default=seeds("0:300"), help="FIRST:COUNT (0:300)")
    parser.add_argument("names", nargs="*", help="Capelin, controller-runtime, or both")
    options = parser.parse_args()
    return judge(options.seeds, options.names, stores=True)


if __name__ == "__main__":
    sys.exit(main())
