"""Providers that die at any write while members of etcd leave."""

from dataclasses import replace

import pytest
from capelin.testing.fake_client import FakeClient
from capelin_control_plane.backends.pods import Names, PodsBackend, etcd_changes
from capelin_control_plane.etcd.rules import Membership

from tests.support.kills import KilledError, MortalServer

from .test_backend import CLAIMS, STATEFUL_SETS, Rig
from .test_membership import listed
from .test_stopping import KINDS


@pytest.mark.parametrize("writes", range(4))
async def test_no_volume_of_a_former_member_remains(
    monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    server = MortalServer()
    client = FakeClient(*KINDS, server=server)
    rig = Rig(client, "default")
    await rig.apply(replace(rig.desired, etcd_replicas=2))
    names = Names.of(rig.key)
    for index in range(2):
        metadata = {
            "name": names.claim(index),
            "namespace": "default",
            "labels": names.labels("etcd"),
        }
        kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        await client.create({**kind, "metadata": metadata, "spec": {}})

    async def read(_: object) -> Membership:
        return listed(0)

    monkeypatch.setattr(etcd_changes, "read_members", read)
    one = replace(rig.desired, etcd_replicas=1)
    server.life.writes = writes
    for _ in range(3):
        try:
            await rig.apply(one)
        except KilledError:
            server.life.writes = None
            rig.backend = PodsBackend(client, "default")
    stateful_set = await client.get(STATEFUL_SETS, "one-etcd", "default")
    assert stateful_set["spec"]["replicas"] == 1
    claims = (await client.list(CLAIMS, "default")).items
    assert [claim["metadata"]["name"] for claim in claims] == [names.claim(0)]
