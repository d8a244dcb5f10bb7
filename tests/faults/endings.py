"""How API servers end under clients that keep HTTP/1.1 connections.

`python -m tests.faults.endings` ends one API server `--times` times with
`--shutdown-send-retry-after` and as often without. It prints what became of each client's
connection, and for how long the server waited for requests and watches before it closed the rest.
"""

import argparse
import asyncio
import os
import re
import tempfile
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from capelin.client import Config
from capelin.embedded.apiserver import ETCD, KUBE_APISERVER, ApiServer, Settings
from capelin.testing.waiting import until

from tests.load import Load

CLIENTS = 10
PAUSE_SECONDS = 0.1
_PATH = "/api/v1/namespaces/default/configmaps"
_OK = 200
_EVENT = re.compile(r'^I\d+ ([\d:.]+) .*name="(NotAcceptingNewRequest|InFlightRequestsDrained)"')


async def outcome(config: Config, prefix: str) -> str:
    """What becomes of a connection on which a client writes and reads, over and over."""
    load = Load(config)
    connection = await load.connect()
    for number in range(10**9):
        name = f"{prefix}-{number}"
        for method, path, content in (
            ("POST", _PATH, {"metadata": {"name": name}}),
            ("GET", f"{_PATH}/{name}", None),
        ):
            if connection.is_over:
                return "closed while nothing was on its way"
            try:
                answer = await connection.exchange(method, path, content)
            except (OSError, EOFError):
                return f"{method} lost"
            if answer.status >= 300 or connection.is_over:
                connection.close()
                return f"answered {answer.status}, closed or to be closed"
        await asyncio.sleep(PAUSE_SECONDS)
    raise AssertionError


def drained_seconds(log: str) -> float:
    """For how long the last API server of a log waited for requests and watches."""
    lines = (_EVENT.match(line) for line in log.splitlines())
    moments = {line[2]: datetime.strptime(line[1], "%H:%M:%S.%f") for line in lines if line}  # noqa: DTZ007
    waited = moments["InFlightRequestsDrained"] - moments["NotAcceptingNewRequest"]
    return waited.total_seconds()


@asynccontextmanager
async def program(server: ApiServer, name: str, log: Path) -> AsyncGenerator[Process]:
    """One program of an API server, for as long as a block lasts."""
    command = next(spec.command for spec in server.declared if spec.name == name)
    environment = {**os.environ, **command.environment}
    with log.open("ab") as file:
        process = await asyncio.create_subprocess_exec(
            *command.arguments, env=environment, stdout=file, stderr=file
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def one_ending(server: ApiServer, number: int, log: Path) -> list[str]:
    """What became of each client's connection when the API server ended once."""
    config = Config.from_kubeconfig(server.kubeconfig)

    async def serves() -> bool:
        try:
            return (await Load(config).exchange("GET", "/readyz", None)).status == _OK
        except (OSError, EOFError):
            return False

    async with program(server, KUBE_APISERVER, log) as process:
        await until(serves)
        loads = [outcome(config, f"{number}-{client}") for client in range(CLIENTS)]
        clients = [asyncio.create_task(load) for load in loads]
        await asyncio.sleep(5 * PAUSE_SECONDS)
        process.terminate()
        outcomes = await asyncio.gather(*clients)
        await process.wait()
        return outcomes


async def endings(folder: Path, flags: Sequence[str], times: int) -> None:
    """End an API server with such flags so often, and print what came of it."""
    settings = dict(flag.split("=") for flag in (*flags, "shutdown-delay-duration=1s", "v=1"))
    settings["shutdown-watch-termination-grace-period"] = "10s"
    server = await ApiServer.prepare(folder, Settings(durable=False, arguments=settings))
    log = folder / "kube-apiserver.log"
    outcomes, drained = Counter[str](), list[float]()
    async with program(server, ETCD, folder / "etcd.log"):
        for number in range(times):
            outcomes.update(await one_ending(server, number, log))
            drained.append(drained_seconds(await asyncio.to_thread(log.read_text)))
    print(*flags or ["without"], dict(outcomes))  # noqa: T201
    print("waited for (ms):", sorted(round(1000 * seconds, 1) for seconds in drained))  # noqa: T201


async def main() -> None:
    """Compare both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory(prefix="capelin-endings-") as name:
        await endings(Path(name, "with"), ["shutdown-send-retry-after=true"], times)
        await endings(Path(name, "without"), [], times)


if __name__ == "__main__":
    asyncio.run(main())
