"""Finding what an object belongs to: its Cluster, its Machine, its pool.

Rules `control-plane/definition` and `clusterctl/owner-references`: core sets the owner and the
label, some time after the object was made, so nothing is an answer and means to wait.
"""

from typing import Protocol, TypeVar

from capelin.api import BaseObject
from capelin.api.capi import Cluster, ContractReference
from capelin.contract import owners
from capelin.contract.labels import CLUSTER_NAME_LABEL

ObjectT = TypeVar("ObjectT", bound=BaseObject)


class Finder(Protocol):
    """Whoever can look up an object by name, such as `capelin.client.Client`."""

    async def find(
        self, kind: type[ObjectT], name: str, namespace: str | None = ...
    ) -> ObjectT | None:
        """The object, or nothing if there is none of that name."""
        ...


def cluster_name_of(obj: BaseObject) -> str | None:
    """The name of the Cluster that an object is part of: its owner, or what its label says.

    An owner that is not a Cluster does not count: while a topology is being made, a secret
    stands in for the Cluster.
    """
    resource = Cluster.resource
    owner = owners.find(obj.metadata.owner_references, resource.group, resource.kind)
    if owner is not None:
        return owner.name
    return obj.metadata.labels.get(CLUSTER_NAME_LABEL) or None


async def cluster_of(client: Finder, obj: BaseObject) -> Cluster | None:
    """The Cluster that an object is part of, or nothing as long as nobody can tell."""
    name = cluster_name_of(obj)
    return None if name is None else await client.find(Cluster, name, obj.namespace)


async def owner_of(client: Finder, obj: BaseObject, kind: type[ObjectT]) -> ObjectT | None:
    """The owner of a kind, such as a `Machine` or a `MachinePool`."""
    resource = kind.resource
    owner = owners.find(obj.metadata.owner_references, resource.group, resource.kind)
    return None if owner is None else await client.find(kind, owner.name, obj.namespace)


def named_by(reference: ContractReference | None, kind: type[BaseObject]) -> str | None:
    """The name in a reference, if it is one to this kind: `named_by(spec.control_plane_ref, Mine)`.

    For telling whose events concern whom.
    """
    resource = kind.resource
    if reference is None or (reference.api_group, reference.kind) != (
        resource.group,
        resource.kind,
    ):
        return None
    return reference.name
