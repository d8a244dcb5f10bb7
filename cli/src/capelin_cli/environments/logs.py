"""Logs of an environment's processes and of its clusters' control planes."""

import asyncio
import json
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

from capelin.api import parse_duration
from capelin.errors import MissingError
from capelin_embedded.management import Environment
from capelin_embedded.processes import Process

from capelin_cli.environments.connection import find_environment

_LOOK_SECONDS: Final = 0.2
_KLOG: Final = re.compile(r"\b[IWEF](\d\d)(\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?)")
_ISO: Final = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:[.,]\d+)?)(Z?)")
_TRACE: Final = re.compile(r'\bTrace\[\d+\]|"msg":"trace\[\d+\]')
"""A line of the trace of a slow request, of an API server or of etcd."""
_HEAD: Final = 120
_RECENT_SECONDS: Final = 600.0
"""A process that is started again and again is down for less than that."""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which logs to print."""

    environment: str
    names: tuple[str, ...] = ()
    """A component of the environment, a cluster, or a cluster and one of its components."""
    namespace: str = "default"
    lines: int | None = 20
    """Number of last lines of each. None prints all."""
    since: datetime | None = None
    """Leave out older lines."""
    follow: bool = False


def begin_of(since: str) -> datetime:
    """The moment this long ago."""
    return datetime.now(UTC) - parse_duration(since)


async def print_logs(query: LogQuery, out: TextIO | None = None) -> None:
    """Print the last lines of one process or several by time, and follow them if asked."""
    stream = out or sys.stdout
    files = _files(find_environment(query.environment), query)
    if len(files) > 1:
        files = without_old(files, datetime.now(UTC).timestamp())
    tails = [
        Tail(path, name, traces=False) if len(files) > 1 else Tail(path)
        for name, path in files.items()
    ]
    begin = query.since.timestamp() if query.since is not None else 0.0
    for line in by_time((tail.last(query.lines) for tail in tails), begin):
        stream.write(f"{line}\n")
    while query.follow:
        for line in by_time(tail.new() for tail in tails):
            stream.write(f"{line}\n")
        stream.flush()
        await asyncio.sleep(_LOOK_SECONDS)


def by_time(logs: Iterable[Iterable[str]], begin: float = 0.0) -> list[str]:
    """The lines of several logs since a moment, in the order of their times.

    A line without a time, such as in a trace, stays behind the one before it.
    """
    timed: list[tuple[float, str]] = []
    for log in logs:
        last = 0.0
        for line in log:
            last = _time_of(line) or last
            timed.append((last, line))
    # Stable: lines of one log stay in their order.
    return [line for time, line in sorted(timed, key=lambda pair: pair[0]) if time >= begin]


def _time_of(line: str) -> float | None:
    head = line[:_HEAD]
    if (klog := _KLOG.search(head)) is not None:
        month, day, time = klog.groups()
        return _timestamp(f"{datetime.now(UTC).year}-{month}-{day}T{time}")
    if (iso := _ISO.search(head)) is not None:
        date, time, zone = iso.groups()
        return _timestamp(f"{date}T{time.replace(',', '.')}{'+00:00' if zone else ''}")
    return None


def _timestamp(text: str) -> float | None:
    """The moment of a time. Without a zone, it is in this machine's."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


class Tail:
    """The end of one log."""

    def __init__(self, path: Path, name: str = "", *, traces: bool = True) -> None:
        self._path = path
        self._prefix = f"{name}: " if name else ""
        self._traces = traces
        self._read = 0

    def last(self, lines: int | None) -> Iterator[str]:
        """The last lines of the present log."""
        with self._path.open(errors="replace") as file:
            tail = deque(self._chosen(file), maxlen=lines)
            self._read = file.tell()
        return self._named(tail)

    def new(self) -> Iterator[str]:
        """The lines that have come since."""
        # A log that has become shorter was rotated.
        if self._path.stat().st_size < self._read:
            self._read = 0
        with self._path.open(errors="replace") as file:
            file.seek(self._read)
            lines = list(self._chosen(file))
            self._read = file.tell()
        return self._named(lines)

    def _chosen(self, lines: Iterable[str]) -> Iterable[str]:
        """Without the traces of slow requests, where they would hide other logs."""
        return lines if self._traces else (line for line in lines if not _TRACE.search(line))

    def _named(self, lines: Iterable[str]) -> Iterator[str]:
        return (f"{self._prefix}{line.rstrip()}" for line in lines)


def without_old(files: Mapping[str, Path], now: float) -> Mapping[str, Path]:
    """The logs of processes that run or wrote recently, or else all logs.

    A rollout leaves the logs of the processes that it replaced.
    """
    current = {
        name: path
        for name, path in files.items()
        if is_running(path) or now - path.stat().st_mtime < _RECENT_SECONDS
    }
    return current or files


def is_running(log: Path) -> bool:
    """Whether the process that writes a log runs."""
    return Process.adopt(log.parent, log.stem) is not None


def log_files(environment: Environment) -> dict[str, Path]:
    """The logs of an environment's own processes, by component."""
    return _logs_in(environment.supervisor, environment.processes)


def cluster_folders(environment: Environment) -> dict[tuple[str, str], list[Path]]:
    """The folders with the processes of workload clusters, by namespace and name."""
    folders: dict[tuple[str, str], list[Path]] = {}
    for owner in environment.workloads.rglob("owner.json"):
        try:
            fields = json.loads(owner.read_bytes())
            key = (fields["namespace"], fields["cluster"])
        except (OSError, ValueError, KeyError):
            continue
        folders.setdefault(key, []).append(owner.parent / "run")
    for run in environment.workloads.glob("*/*.*/run"):
        namespace, _, name = run.parent.name.partition(".")
        if not run.parent.joinpath("owner.json").exists():
            folders.setdefault((namespace, name), []).append(run)
    return folders


def process_folder(
    environment: Environment, names: tuple[str, ...], namespace: str
) -> tuple[Path, str]:
    """The folder of one process, and its name there."""
    if len(names) == 1:
        files = log_files(environment)
        _check(names[0], files, f"Environment {environment.name}")
        return files[names[0]].parent, names[0]
    cluster, component, *_ = names
    files = _cluster_files(environment, cluster, namespace)
    _check(component, files, f"Cluster {cluster}")
    return files[component].parent, component


def _files(environment: Environment, query: LogQuery) -> dict[str, Path]:
    own = log_files(environment)
    match query.names:
        case ():
            return own
        case (name,) if name in own:
            return {name: own[name]}
        case (cluster,) if (query.namespace, cluster) in cluster_folders(environment):
            return _cluster_files(environment, cluster, query.namespace)
        case (name,):
            clusters = [cluster for _, cluster in cluster_folders(environment)]
            raise MissingError(
                f"Environment {environment.name} has neither a process nor a cluster {name}.",
                reason=f"{_list(own)} Clusters: {', '.join(sorted(clusters)) or 'none'}.",
                hint="Name one of them, and for a cluster in another namespace --namespace.",
            )
        case names:
            folder, component = process_folder(environment, names, query.namespace)
            return {component: _logs_in(folder)[component]}


def _cluster_files(environment: Environment, cluster: str, namespace: str) -> dict[str, Path]:
    folders = cluster_folders(environment).get((namespace, cluster))
    if folders is None:
        names = sorted(name for space, name in cluster_folders(environment) if space == namespace)
        raise MissingError(
            f"No cluster {cluster} in namespace {namespace} runs on this machine.",
            reason=f"Clusters: {', '.join(names) or 'none'}.",
            hint="Name one of them, or another --namespace or environment.",
        )
    return _logs_in(*folders)


def _logs_in(*folders: Path) -> dict[str, Path]:
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.log"))}


def _check(name: str, files: dict[str, Path], whose: str) -> None:
    if name not in files:
        raise MissingError(
            f"{whose} has no process {name}.",
            reason=_list(files),
            hint="Name one of them.",
        )


def _list(files: Mapping[str, Path]) -> str:
    """The processes that run, and apart from them those that only left a log."""
    running = [name for name, path in files.items() if is_running(path)]
    ended = [name for name in files if name not in running]
    text = f"Running processes: {', '.join(running) or 'none'}."
    return f"{text} Logs of ended ones: {', '.join(ended)}." if ended else text
