"""Runs all sessions on the commit that is checked out, and reports them in one table.

python -m tests.everything [--only NAME...] [--write]

A session that passed on this commit does not run again, so an interrupted run continues where it
was. `--write` puts the table into docs/project/verification.md.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "project" / "verification.md"
SESSIONS: Final[dict[str, tuple[str, ...]]] = {
    "default": (),
    "integration_of_packages": ("-s", "integration_of_packages"),
    "integration": ("-s", "integration"),
    "ui": ("-s", "ui"),
    "alerts": ("-s", "alerts"),
    "release": ("-s", "release"),
    "airgap": ("-s", "airgap"),
    "pulumi": ("-s", "pulumi"),
    "e2e": ("-s", "e2e"),
    "providers": ("-s", "providers"),
    "faults": ("-s", "faults", "--", "--faults", "300"),
    "tenants": ("-s", "faults", "--", "--tenants", "30"),
    "watches": ("-s", "faults", "--", "--watches", "0:300"),
    "fuzz": ("-s", "fuzz"),
    "bench": ("-s", "bench"),
}
"""The arguments of nox for each session, in this order."""
_SUMMARY: Final = re.compile(r"^=+ (\d.*) in [\d.]+s.*=+$", re.MULTILINE)
_COUNT: Final = re.compile(r"(\d+) (passed|failed|error|skipped)")
_INTRODUCTION: Final = "`uvx nox -s everything` wrote this page. It runs each test once."


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one session."""

    session: str
    ok: bool
    passed: int
    failed: int
    skipped: int
    minutes: float
    load: float
    """The mean number of processes that used or awaited a processor in the last 15 minutes."""


def outcome_of(session: str, code: int, output: str, minutes: float, load: float) -> Outcome:
    """The result of a session, from its exit status and the summaries of pytest in its output."""
    counts = dict.fromkeys(("passed", "failed", "error", "skipped"), 0)
    for summary in _SUMMARY.findall(output):
        for count, name in _COUNT.findall(summary):
            counts[name] += int(count)
    failed = counts["failed"] + counts["error"]
    return Outcome(
        session, code == 0, counts["passed"], failed, counts["skipped"], round(minutes, 1), load
    )


def page(commit: str, day: str, outcomes: Sequence[Outcome]) -> str:
    """The page with the table of a run."""
    rows = [
        f"| {it.session} | {'green' if it.ok else 'red'} | {it.passed} | {it.failed} |"
        f" {it.skipped} | {it.minutes} | {it.load} |"
        for it in outcomes
    ]
    lines = [
        "# Verification",
        "",
        f"{_INTRODUCTION} Commit `{commit[:12]}`, {day}, {os.cpu_count()} processors.",
        "",
        "| session | result | passed | failed | skipped | minutes | load |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
        "Sessions without counts run programs of their own instead of pytest.",
        "",
    ]
    return "\n".join(lines)


def run(session: str, folder: Path) -> Outcome:
    """Run a session, or return the result of its run on the same commit."""
    file = folder / f"{session}.json"
    if file.exists() and (before := Outcome(**json.loads(file.read_text()))).ok:
        return before
    command = [sys.executable, "-m", "nox", "--script-mode=none"]
    start = time.monotonic()
    with (folder / f"{session}.log").open("w") as log:
        done = subprocess.run(
            [*command, *SESSIONS[session]],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    output = (folder / f"{session}.log").read_text(errors="replace")
    minutes, load = (time.monotonic() - start) / 60, round(os.getloadavg()[2], 1)
    outcome = outcome_of(session, done.returncode, output, minutes, load)
    file.write_text(json.dumps(asdict(outcome)))
    return outcome


def main() -> int:
    """Run the sessions, and print their table."""
    parser = argparse.ArgumentParser(prog="python -m tests.everything")
    parser.add_argument("--only", nargs="+", choices=SESSIONS, default=[*SESSIONS])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    if _git("status", "--porcelain"):
        parser.error("the tree has changes: a result belongs to a commit")
    commit = _git("rev-parse", "HEAD")
    folder = ROOT / ".nox" / "everything" / commit
    folder.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for session in options.only:
        outcomes.append(run(session, folder))
        print(outcomes[-1], flush=True)  # noqa: T201
    written = page(commit, f"{datetime.now(UTC):%Y-%m-%d}", outcomes)
    print(written)  # noqa: T201
    if options.write:
        PAGE.write_text(written)
    return 0 if all(outcome.ok for outcome in outcomes) else 1


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
