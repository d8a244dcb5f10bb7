"""Every member of a real etcd has the latest write when it reports the last revision."""

from dataclasses import replace

import pytest
from capelin.api.core import ConfigMap

from .rig import KEY, NEW, Rig, control_plane, settled

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


async def test_members_catch_up_before_they_report_the_last_revision(rig: Rig) -> None:
    await rig.until(replace(control_plane(NEW), etcd_replicas=3), settled)
    async with rig.client() as client:
        for number in range(9):
            created = await client.create(ConfigMap.of(f"key-{number}", "default"))
            # The API shows etcd's revision of an object as its resource version.
            written = int(created.metadata.resource_version or "")
            async with rig.backend.etcd(KEY, number % 3) as member:
                assert await member.last_revision() >= written
                assert (await member.status()).revision >= written
