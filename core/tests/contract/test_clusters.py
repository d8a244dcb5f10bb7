from collections.abc import Sequence
from typing import TypeVar, cast

from capelin.api import BaseObject, OwnerReference
from capelin.api.capi import Cluster, ContractReference, Machine, MachinePool
from capelin.contract import cluster_of, named_by, owner_of, reference_to

ObjectT = TypeVar("ObjectT", bound=BaseObject)


class World:
    """What can be found, by kind, namespace and name."""

    def __init__(self, *objects: BaseObject) -> None:
        self.objects = {(type(one), one.namespace, one.name): one for one in objects}

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
    found = MachinePool.of("pool", "team")
    found.metadata.owner_references = list(references)
    if label is not None:
        found.metadata.labels = {"cluster.x-k8s.io/cluster-name": label}
    return found


async def found_cluster(obj: BaseObject, world: Sequence[BaseObject] = (DEMO, ELSEWHERE)) -> object:
    return await cluster_of(World(*world), obj)


async def test_the_cluster_is_found_by_the_owner_in_the_same_namespace() -> None:
    assert await found_cluster(pool(SHIM, OLDER)) is DEMO


async def test_the_cluster_is_found_by_the_label() -> None:
    assert await found_cluster(pool(label="demo")) is DEMO
    assert await found_cluster(pool(SHIM, FOREIGN, label="demo")) is DEMO


async def test_the_owner_counts_more_than_the_label() -> None:
    assert await found_cluster(pool(OLDER, label="other")) is DEMO


async def test_nothing_means_to_wait() -> None:
    assert await found_cluster(pool()) is None
    assert await found_cluster(pool(label="")) is None
    assert await found_cluster(pool(SHIM, FOREIGN)) is None
    assert await found_cluster(pool(OLDER), [ELSEWHERE]) is None


async def test_an_owner_is_found_by_its_kind() -> None:
    machine = Machine.of("m", "team")
    obj = pool(SHIM, reference_to(machine))
    world = World(machine, DEMO)
    assert await owner_of(world, obj, Machine) is machine
    assert await owner_of(world, obj, Cluster) is None
    assert await owner_of(World(), obj, Machine) is None


def test_a_reference_names_an_object_of_its_kind_only() -> None:
    group = "cluster.x-k8s.io"
    reference = ContractReference(api_group=group, kind="MachinePool", name="pool")
    assert named_by(reference, MachinePool) == "pool"
    assert named_by(reference, Machine) is None
    assert named_by(None, MachinePool) is None
    other = ContractReference(api_group="other.example", kind="MachinePool", name="pool")
    assert named_by(other, MachinePool) is None
