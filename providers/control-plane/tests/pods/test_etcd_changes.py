"""Providers that die at any write while members of etcd leave."""

from dataclasses import replace
from typing import Any

import pytest
from capelin.testing.fake_client import FakeClient
from capelin_control_plane.backends.pods import Names, PodsBackend
from capelin_control_plane.backends.pods.membership import EtcdMembers
from capelin_control_plane.etcd.rules import Membership

from .test_backend import CLAIMS, STATEFUL_SETS, Rig
from .test_membership import listed
from .test_stopping import KINDS


class KilledError(Exception):
    """The end of a provider."""


class MortalClient(FakeClient):
    """A client whose provider dies before one of its writes."""

    writes_left = 10**9

    async def apply(self, *args: Any, **options: Any) -> Any:
        self._write()
        return await super().apply(*args, **options)

    async def delete(self, *args: Any, **options: Any) -> Any:
        self._write()
        return await super().delete(*args, **options)

    def _write(self) -> None:
        self.writes_left -= 1
        if self.writes_left < 0:
            raise KilledError


@pytest.mark.parametrize("writes", range(4))
async def test_no_volume_of_a_former_member_remains(
    monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    client = MortalClient(*KINDS)
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

    async def read(_: EtcdMembers) -> Membership:
        return listed(0)

    monkeypatch.setattr(EtcdMembers, "read", read)
    one = replace(rig.desired, etcd_replicas=1)
    client.writes_left = writes
    for _ in range(3):
        try:
            await rig.apply(one)
        except KilledError:
            client.writes_left = 10**9
            rig.backend = PodsBackend(client, "default")
    stateful_set = await client.get(STATEFUL_SETS, "one-etcd", "default")
    assert stateful_set["spec"]["replicas"] == 1
    claims = (await client.list(CLAIMS, "default")).items
    assert [claim["metadata"]["name"] for claim in claims] == [names.claim(0)]
