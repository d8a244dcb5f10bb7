"""A provider dies in the middle of an upload to a slow bucket, and the next one backs up."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from capelin.api.core import ConfigMap, Secret
from capelin.testing.waiting import until
from capelin_control_plane.backup.manifests import BACKUP_ANNOTATION
from capelin_control_plane.desired.control_plane import RESTORE_ANNOTATION

from tests.s3.versitygw import BUCKET, SECRET_DATA, VERSITYGW, s3_server

from .test_control_plane_kills import OLD, Shoal, shoal

__all__ = ["shoal"]  # a fixture
pytestmark = [pytest.mark.timeout(600), pytest.mark.needs_programs(VERSITYGW)]
MEBIBYTE = 2**20


@dataclass
class Valve:
    """Forwards connections to a server, and holds the bytes after a limit until it opens."""

    host: str
    target: int
    limit: int
    port: int = 0
    sent: int = 0
    held: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def forward(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(answers.close)
            stack.enter_context(contextlib.suppress(OSError))
            server, requests = await asyncio.open_connection(self.host, self.target)
            stack.callback(requests.close)
            await asyncio.gather(self._send(client, requests), self._answer(server, answers))

    async def _send(self, client: asyncio.StreamReader, requests: asyncio.StreamWriter) -> None:
        while data := await client.read(65536):
            self.sent += len(data)
            if self.sent > self.limit and not self.opened.is_set():
                self.held.set()
                await self.opened.wait()
            requests.write(data)
            await requests.drain()
        requests.close()

    @staticmethod
    async def _answer(server: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        while data := await server.read(65536):
            answers.write(data)
            await answers.drain()
        answers.close()


@asynccontextmanager
async def valve(host: str, target: int, limit: int) -> AsyncGenerator[Valve]:
    """A valve in front of a server."""
    made = Valve(host, target, limit)
    server = await asyncio.start_server(made.forward, host, 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.opened.set()
        server.close()


async def test_another_provider_backs_up_after_a_death_in_the_middle_of_an_upload(
    shoal: Shoal, tmp_path: Path
) -> None:
    mine = shoal.mine
    async with (
        s3_server(tmp_path) as server,
        valve(server.host, server.port, 20 * MEBIBYTE) as slow,
    ):
        endpoint = f"https://{slow.host}:{slow.port}"
        shoal.mortal.arguments.append(f"--backup-endpoints={endpoint}")
        for secret in (("backup-key", {"key": b"k" * 32}), ("backup-s3", SECRET_DATA)):
            await mine.client.create(Secret.of(secret[0], mine.namespace, data=secret[1]))
        s3 = {
            "endpoint": endpoint,
            "bucket": BUCKET,
            "credentials": {"name": "backup-s3"},
            "caBundle": server.ca,
        }
        backup = {"destination": {"s3": s3}, "encryptionKey": {"name": "backup-key"}}
        await mine.create(OLD, etcd={"backup": backup})
        async with shoal.mortal.undisturbed():
            await until(shoal.settled)
            async with mine.workload() as workload:
                for number in range(60):
                    content = {"content": "x" * (MEBIBYTE // 2)}
                    await workload.create(ConfigMap.of(f"large-{number}", "default", data=content))
            requested = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
            await mine.annotate(BACKUP_ANNOTATION, requested.isoformat())
            await slow.held.wait()
        assert server.uploads() != []
        keys = server.keys()
        assert not any(key.endswith(".json") for key in keys), "it is not complete"
        slow.opened.set()

        async def name() -> str | None:
            status = (await mine.get()).status
            newest = status and status.backup
            return newest.name if newest and newest.time and newest.time >= requested else None

        async def is_restored() -> bool:
            waiting = RESTORE_ANNOTATION in (await mine.get()).metadata.annotations
            return not waiting and await shoal.settled()

        async with shoal.mortal.undisturbed():
            backed_up = await until(name)
            assert server.uploads() == []
            async with mine.workload() as workload:
                await workload.delete(ConfigMap, "large-0", "default")
            await mine.annotate(RESTORE_ANNOTATION, backed_up)
            await until(is_restored)
        async with mine.workload() as workload:
            found = (await workload.list(ConfigMap, "default")).items
        assert {f"large-{number}" for number in range(60)} <= {one.name for one in found}
