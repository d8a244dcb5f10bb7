from collections.abc import Sequence
from typing import TypeVar, cast

from capelin.api import BaseObject, OwnerReference
from capelin.api.capi import Cluster, ContractReference, Machine, MachinePool
from capelin.contract import cluster_of, named_by, owner_of, reference_to

ObjectT = TypeVar("ObjectT", bound=BaseObject)


class ObjectStore:
    """Objects by kind, namespace and name."""

    def __init__(self, *objects: BaseObject) -> None:
        self.objects = {(type(obj), obj.namespace, obj.name): obj for obj in objects}

    async def find(
        self, kind: type[ObjectT], name: str, namespace: str | None = None
    ) -> ObjectT | None:
        assert kind in {Cluster, Machine, MachinePool}
        assert name
        return cast("ObjectT | None", self.objects.get((kind, namespace, name)))


DEMO = Cluster.of("demo", "team")
ELSEWHERE = Cluster.of("demo", "elsewhere")
SHIM = OwnerReference(api_version="v1", kind="Secret", name="demo-shim", uid="s")
OLDER = OwnerReference(api_version="cluster.x-k8s.io/v1beta1", kind="Cluster", name="demo", uid="u")
FOREIGN = OwnerReference(api_version="other.example/v1", kind="Cluster", name="demo", uid="u")


def pool(*references: OwnerReference, label: str | None = None) -> MachinePool:
    pool = MachinePool.of("pool", "team")
    pool.metadata.owner_references = list(references)
    if label is not None:
        pool.metadata.labels = {"cluster.x-k8s.io/cluster-name": label}
    return pool


async def cluster_for(obj: BaseObject, store: Sequence[BaseObject] = (DEMO, ELSEWHERE)) -> object:
    return await cluster_of(ObjectStore(*store), obj)


async def test_cluster_of_follows_the_owner_in_the_same_namespace() -> None:
    assert await cluster_for(pool(SHIM, OLDER)) is DEMO


async def test_cluster_of_follows_the_label() -> None:
    assert await cluster_for(pool(label="demo")) is DEMO
    assert await cluster_for(pool(SHIM, FOREIGN, label="demo")) is DEMO


async def test_cluster_of_prefers_the_owner_to_the_label() -> None:
    assert await cluster_for(pool(OLDER, label="other")) is DEMO


async def test_cluster_of_returns_none_without_a_known_cluster() -> None:
    assert await cluster_for(pool()) is None
    assert await cluster_for(pool(label="")) is None
    assert await cluster_for(pool(SHIM, FOREIGN)) is None
    assert await cluster_for(pool(OLDER), [ELSEWHERE]) is None


async def test_owner_of_returns_the_owner_of_a_kind() -> None:
    machine = Machine.of("m", "team")
    obj = pool(SHIM, reference_to(machine))
    store = ObjectStore(machine, DEMO)
    assert await owner_of(store, obj, Machine) is machine
    assert await owner_of(store, obj, Cluster) is None
    assert await owner_of(ObjectStore(), obj, Machine) is None


def test_named_by_returns_a_name_only_for_the_kind() -> None:
    group = "cluster.x-k8s.io"
    reference = ContractReference(api_group=group, kind="MachinePool", name="pool")
    assert named_by(reference, MachinePool) == "pool"
    assert named_by(reference, Machine) is None
    assert named_by(None, MachinePool) is None
    other = ContractReference(api_group="other.example", kind="MachinePool", name="pool")
    assert named_by(other, MachinePool) is None
