"""Stops the processes of an environment in order and keeps its data, or restarts one process."""

import asyncio
import signal
from pathlib import Path
from typing import Final

from capelin_embedded.apiserver import ETCD, KUBE_APISERVER, KUBE_CONTROLLER_MANAGER
from capelin_embedded.management.environment import Environment
from capelin_embedded.processes import Process, Supervisor

_OWN: Final = frozenset({ETCD, KUBE_APISERVER, KUBE_CONTROLLER_MANAGER})
"""The processes of the environment's own API server."""
_RECORDS: Final = "*.process"
_POLL_SECONDS: Final = 0.1


async def stop_environment(environment: Environment) -> None:
    """Stop every process of an environment. `up` and `start` continue with its data.

    The supervisor stops first, then managers and workload clusters, and the API server last.
    """
    await _stop(environment.supervisor)
    managers = [
        process
        for path in environment.processes.glob(_RECORDS)
        if path.stem not in _OWN
        and (process := Process.adopt(environment.processes, path.stem)) is not None
    ]
    await asyncio.gather(*(process.stop() for process in managers))
    workloads = {record.parent for record in environment.workloads.rglob(_RECORDS)}
    await asyncio.gather(*map(_stop, sorted(workloads)))
    await _stop(environment.processes)


async def _stop(folder: Path) -> None:
    async with Supervisor(folder) as supervisor:
        await supervisor.stop()


async def restart_process(folder: Path, name: str) -> bool:
    """Stop a process and wait for its restart by its supervisor. False if it did not run."""
    process = Process.adopt(folder, name)
    if process is None:
        return False
    before = process.pid
    process.signal(signal.SIGTERM)
    await process.wait()
    while True:
        successor = Process.adopt(folder, name)
        if successor is not None and successor.pid != before:
            return True
        await asyncio.sleep(_POLL_SECONDS)
