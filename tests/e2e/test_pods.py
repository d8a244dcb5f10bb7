"""Control planes on the pods of a real cluster: create, change under load, repair, delete."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Pod
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane

from .conftest import VERSIONS
from .hosted import (
    Clients,
    Hosted,
    is_ready,
    met_the_end_of_a_leader,
    renew_certificates,
    under_load,
)

OLD, NEW = VERSIONS
ETCD_MEMBERS = 3
# Five API servers stop under load. Two of four runs had one such failure.
MOST_CLOSED = 3
# Each of two stopping API servers can close the one kept connection while a request is on its way.
MOST_CLOSED_BY_EVICTIONS = 2
SIZES = (3, 5, 3, 1)

pytestmark = pytest.mark.timeout(900)


async def test_no_request_fails_during_upgrade_scaling_renewal_and_rollout(
    hosted: Hosted, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    await hosted.create(OLD, replicas=2)
    await hosted.settles()
    async with under_load(hosted, tmp_path, most_closed=MOST_CLOSED) as clients:

        async def change(what: str, **spec: Any) -> None:
            began = monotonic()
            await hosted.change(**spec)
            await hosted.settles()
            record_property(f"seconds: {what}", round(monotonic() - began, 1))
            assert clients.failed() == [], what

        await change("upgrade", version=NEW)
        await change("one API server more", replicas=3)
        await change("one API server fewer", replicas=2)
        await change("rollout", rollout={"after": moment()})
        await renew_certificates(hosted)
        assert clients.failed() == []
    assert clients.failed() == []
    for name, count in clients.counts().items():
        record_property(name, count)


def moment() -> str:
    return datetime.now(UTC).isoformat()


async def test_no_request_fails_while_every_pod_is_evicted(
    hosted: Hosted, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    await hosted.create(NEW, replicas=2, etcd={"replicas": 3})
    await hosted.settles()
    before = {pod.uid for pod in await hosted.pods()}
    async with under_load(hosted, tmp_path, most_closed=MOST_CLOSED_BY_EVICTIONS) as clients:
        for pod in await hosted.pods():
            await hosted.evict(pod)
            assert (await hosted.conditions())["Available"] == "True"
        await hosted.settles()
    # The provider cannot move leadership before an eviction, which comes from others.
    assert_only_leaders_failed(clients, record_property)
    assert before.isdisjoint({pod.uid for pod in await hosted.pods()})
    for name, count in clients.counts().items():
        record_property(name, count)


async def test_a_restart_of_etcd_with_a_flag_fails_only_requests_of_the_old_leader(
    hosted: Hosted, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    await hosted.create(NEW, replicas=2, etcd={"replicas": ETCD_MEMBERS})
    await hosted.settles()
    before = {pod.uid for pod in await hosted.pods("etcd")}
    async with under_load(hosted, tmp_path) as clients:
        await hosted.change(etcd={"extraArgs": {"snapshot-count": "5000"}})
        await hosted.settles()
        assert before.isdisjoint({pod.uid for pod in await hosted.pods("etcd")})
    assert_only_leaders_failed(clients, record_property)


def assert_only_leaders_failed(
    clients: Clients, record_property: Callable[[str, object], None]
) -> None:
    """Only the client can decide whether to repeat such a request: see docs/figures.md."""
    failed = clients.failed()
    of_the_leader = [failure for failure in failed if met_the_end_of_a_leader(failure)]
    record_property("answered 500 when etcd's leader ended", len(of_the_leader))
    assert [failure for failure in failed if failure not in of_the_leader] == []
    assert len(of_the_leader) <= ETCD_MEMBERS


async def test_no_request_fails_while_the_number_of_etcd_members_changes(
    hosted: Hosted, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    await hosted.create(NEW, replicas=2)
    await hosted.settles()
    first = {pod.uid for pod in await hosted.pods("etcd")}
    # API servers restart in each change, because they connect to other members.
    async with under_load(hosted, tmp_path, most_closed=2 * len(SIZES)) as clients:
        for size in SIZES:
            began = monotonic()
            await hosted.change(etcd={"replicas": size})
            await hosted.settles()
            record_property(f"seconds: {size} members", round(monotonic() - began, 1))
            assert len(await hosted.pods("etcd")) == size
            assert clients.failed() == [], size
    assert clients.failed() == []
    assert {pod.uid for pod in await hosted.pods("etcd")} == first
    for name, count in clients.counts().items():
        record_property(name, count)


@pytest.mark.parametrize("damage", ["deleted", "corrupted"])
async def test_an_etcd_member_without_its_data_is_replaced(hosted: Hosted, damage: str) -> None:
    await hosted.create(NEW, etcd={"replicas": 3})
    await hosted.settles()
    async with hosted.workload() as workload:
        await workload.create(ConfigMap.of("kept", "default", data={"a": "b"}))
    path = f"/var/local-path-provisioner/*_{hosted.namespace}_data-one-etcd-1"
    if damage == "deleted":
        hosted.kind.on_node("sh", "-c", f"rm -rf {path}/data")
    else:
        hosted.kind.on_node(
            "sh",
            "-c",
            f"for f in {path}/data/member/wal/*.wal; do"
            " dd if=/dev/urandom of=$f bs=4096 count=4 conv=notrunc; done",
        )
    before = next(pod for pod in await hosted.pods("etcd") if pod.name == "one-etcd-1")
    await hosted.client.delete(Pod, before.name, hosted.namespace)

    async def is_replaced() -> bool:
        pods = {pod.name: pod for pod in await hosted.pods("etcd")}
        member = pods.get("one-etcd-1")
        return (
            member is not None
            and member.uid != before.uid
            and await hosted.is_settled()
            and (await hosted.conditions())["EtcdClusterAvailable"] == "True"
            and all(map(is_ready, pods.values()))
        )

    await until(is_replaced, within=300)
    async with hosted.workload() as workload:
        assert (await workload.get(ConfigMap, "kept", "default")).data == {"a": "b"}


async def test_deletion_removes_all_objects_of_a_control_plane(hosted: Hosted) -> None:
    before = hosted.kind.left_in(hosted.namespace)
    await hosted.create(NEW, etcd={"replicas": 3})
    await hosted.settles()
    await hosted.client.delete(CapelinControlPlane, hosted.name, hosted.namespace)
    await until(hosted.is_gone, within=120)
    await hosted.client.delete(Cluster, hosted.name, hosted.namespace)
    # Volumes and objects of controllers are deleted soon after.
    left = await until(
        lambda: hosted.kind.left_in(hosted.namespace), lambda left: left == before, within=60
    )
    assert left == before
