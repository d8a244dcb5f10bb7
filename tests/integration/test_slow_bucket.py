"""A provider dies in the middle of an upload to a slow bucket, and the next one backs up."""

from pathlib import Path

import pytest
from capelin.api.core import ConfigMap, Secret
from capelin.testing.waiting import until
from capelin_control_plane.desired.control_plane import RESTORE_ANNOTATION

from tests.s3.faults import faulty
from tests.s3.versitygw import BUCKET, SECRET_DATA, VERSITYGW, s3_server

from .test_control_plane_kills import OLD, Shoal, shoal

__all__ = ["shoal"]  # a fixture
pytestmark = [pytest.mark.timeout(600), pytest.mark.needs_programs(VERSITYGW)]
MEBIBYTE = 2**20


async def test_another_provider_backs_up_after_a_death_in_the_middle_of_an_upload(
    shoal: Shoal, tmp_path: Path
) -> None:
    mine = shoal.mine
    async with s3_server(tmp_path) as server, faulty(server) as slow:
        slow.most = 20 * MEBIBYTE
        endpoint = slow.server.endpoint
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
            requested = await mine.request_backup()
            await slow.held.wait()
        assert server.uploads() != []
        keys = server.keys()
        assert not any(key.endswith(".json") for key in keys), "it is not complete"
        slow.opened.set()

        async with shoal.mortal.undisturbed():
            backed_up = await until(lambda: mine.backup_since(requested))
            assert server.uploads() == []
            async with mine.workload() as workload:
                await workload.delete(ConfigMap, "large-0", "default")
            await mine.annotate(RESTORE_ANNOTATION, backed_up)
            await until(shoal.is_restored)
        async with mine.workload() as workload:
            found = (await workload.list(ConfigMap, "default")).items
        assert {f"large-{number}" for number in range(60)} <= {one.name for one in found}
