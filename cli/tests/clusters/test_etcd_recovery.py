"""The pause of a recovery, also of one that was killed."""

import pytest
from capelin.contract import PAUSED_ANNOTATION
from capelin.controller import ObjectKey
from capelin.testing.fake_client import FakeClient
from capelin_cli.clusters.etcd_recovery import paused
from capelin_control_plane.api import CapelinControlPlane, Spec

KEY = ObjectKey("default", "one")


async def pauses(client: FakeClient) -> list[str]:
    mine = await client.get(CapelinControlPlane, "one", "default")
    value = mine.metadata.annotations.get(PAUSED_ANNOTATION)
    return [] if value is None else [value]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({}, [], id="not paused"),
        pytest.param({PAUSED_ANNOTATION: "capelin-recover"}, [], id="a recovery was killed"),
        pytest.param({PAUSED_ANNOTATION: ""}, [""], id="a user has paused it"),
    ],
)
async def test_only_the_pause_of_a_user_outlives_a_recovery(
    before: dict[str, str], after: list[str]
) -> None:
    client = FakeClient(CapelinControlPlane)
    mine = CapelinControlPlane.of("one", "default", spec=Spec(version="v1.34.4"))
    mine.metadata.annotations = before
    await client.create(mine)
    async with paused(client, KEY):
        assert await pauses(client)
    assert await pauses(client) == after
