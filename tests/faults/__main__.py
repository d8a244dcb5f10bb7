"""A seeded campaign of faults under load: `python -m tests.faults [--faults N] [--seed N]`.

`--planned N` makes planned changes instead, in which no request may fail. `--tenants MINUTES` lets
one tenant attack the managers while three others work, and measures the delay of the others.
`--watches FIRST:COUNT` plays seeds of an API server that fails against a manager of Capelin and one
of controller-runtime.

Two clusters, each with three etcd members and two API servers, serve continuous writes. A third
changes during each fault, and a fourth is created, scaled, upgraded, renewed and deleted again and
again. Faults hit each cluster, the management cluster and the machine.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

from capelin_embedded.addresses import free_port
from rich.console import Console

from tests.faults.campaign import Setting, campaign
from tests.faults.interposer import ApiProxy, Clock, faketime_library, python_of_campaign
from tests.faults.planned import planned_changes
from tests.faults.report import Journal, Report
from tests.faults.tenant_report import print_report
from tests.faults.tenants import tenants_campaign
from tests.watches.__main__ import judge, seeds

DISK = "4g"


@contextmanager
def small_disk(*, root: bool) -> Generator[Path]:
    """A folder on a separate file system that a fault can fill."""
    with tempfile.TemporaryDirectory(prefix="capelin-faults-") as name:
        if not root:
            yield Path(name)
            return
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", name]
        subprocess.run(mount, check=True)
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)


def prepare(
    console: Console, folder: Path, interposed: Path, minutes: float, *, root: bool
) -> Setting:
    """Interpose the clock and the API, and print which faults this machine does not support."""
    if not root:
        console.print("no disk faults: a separate file system needs root")
    library = faketime_library()
    if library is None:
        console.print("no clock faults: libfaketime is not installed")
    proxy = ApiProxy(free_port("127.0.0.1"), folder)
    # This Python starts the supervisor of the environment, and so the providers.
    sys.executable = str(python_of_campaign(interposed, proxy.port, library))
    clock = Clock(interposed / "clock")
    has_clock = library is not None
    return Setting(folder, proxy, clock, root=root, has_clock=has_clock, minutes=minutes)


def main() -> int:
    """Run a campaign, print its report, and fail if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=40, help="how many (40)")
    parser.add_argument("--minutes", type=float, default=600, help="end after so many (600)")
    parser.add_argument("--planned", type=int, metavar="N", help="planned changes instead")
    parser.add_argument("--tenants", type=float, metavar="MINUTES", help="a hostile tenant instead")
    parser.add_argument("--watches", type=seeds, metavar="FIRST:COUNT", help="watches instead")
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same faults (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="a JSON line for each fault")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 100)
    if options.planned is not None:
        return planned(console, options.planned, options.seed)
    if options.tenants is not None:
        return tenants(console, options.tenants, options.seed, options.json)
    if options.watches is not None:
        return judge(options.watches)
    root = os.geteuid() == 0
    report = Report(options.seed)
    written = nullcontext() if options.journal is None else options.journal.open("a")
    with (
        small_disk(root=root) as folder,
        tempfile.TemporaryDirectory(prefix="capelin-interposed-") as interposed,
        written as file,
    ):
        setting = prepare(console, folder, Path(interposed) / "python", options.minutes, root=root)
        asyncio.run(campaign(setting, options.faults, Journal(console, report, file)))
    console.print(report.table())
    console.print(
        f"{report.recovered} of {len(report.recoveries)} recovered faults, "
        f"{report.compared} of {report.written} compared acknowledged writes, "
        f"{report.failed_requests} of {report.sent_requests} failed requests during faults, "
        f"{report.changes} changes during faults, {report.churned} clusters created and deleted, "
        f"{report.failed_api_requests} requests of providers failed on purpose"
    )
    for problem in report.problems:
        console.print(f"[red]{problem}[/]")
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(report), indent=2) + "\n")
    return 1 if report.problems or report.recovered < options.faults else 0


def planned(console: Console, count: int, seed: int) -> int:
    """Make planned changes, print the report, and fail if a request failed."""
    with tempfile.TemporaryDirectory(prefix="capelin-planned-") as folder:
        report = asyncio.run(planned_changes(Path(folder), count, seed, console))
    console.print(report.table())
    for name, sent in report.sent.items():
        console.print(
            f"{name}: {sent} requests, {report.postponed[name]} postponed with Retry-After"
        )
    for problem in report.problems:
        console.print(f"[red]{problem}[/]")
    return 1 if report.problems or report.changes < count else 0


def tenants(console: Console, minutes: float, seed: int, file: Path | None) -> int:
    """Let one tenant attack, print the figures of the others, and fail if a limit is exceeded."""
    with tempfile.TemporaryDirectory(prefix="capelin-tenants-") as folder:
        report = asyncio.run(tenants_campaign(Path(folder), minutes, seed, console))
    print_report(report, console)
    if file is not None:
        file.write_text(json.dumps(report.json(), indent=2) + "\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
