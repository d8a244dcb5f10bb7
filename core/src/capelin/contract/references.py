"""References between objects: owners, a Cluster's parts, kinds of any version.

Core sets the owner and the label of an object some time after its creation. If a lookup finds
nothing, wait.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from capelin.api import BaseObject, OwnerReference, Resource
from capelin.api.capi import Cluster, ContractReference
from capelin.client import NotServed
from capelin.contract.labels import CLUSTER_NAME_LABEL

ObjectT = TypeVar("ObjectT", bound=BaseObject)


class Finder(Protocol):
    """A client that finds an object by name, such as `capelin.client.Client`."""

    async def find(
        self, kind: type[ObjectT], name: str, namespace: str | None = ...
    ) -> ObjectT | None: ...


def cluster_name_of(obj: BaseObject) -> str | None:
    """The name of an object's Cluster, from its owner or else from its label.

    Owners of other kinds do not count: while core creates a topology, a secret stands in for the
    Cluster.
    """
    resource = Cluster.resource
    owner = find_owner(obj.metadata.owner_references, resource.group, resource.kind)
    if owner is not None:
        return owner.name
    return obj.metadata.labels.get(CLUSTER_NAME_LABEL) or None


async def cluster_of(client: Finder, obj: BaseObject) -> Cluster | None:
    """The Cluster that an object is part of, or `None` while that is unknown."""
    name = cluster_name_of(obj)
    return None if name is None else await client.find(Cluster, name, obj.namespace)


async def owner_of(client: Finder, obj: BaseObject, kind: type[ObjectT]) -> ObjectT | None:
    """The owner of a kind, such as a `Machine` or a `MachinePool`."""
    resource = kind.resource
    owner = find_owner(obj.metadata.owner_references, resource.group, resource.kind)
    return None if owner is None else await client.find(kind, owner.name, obj.namespace)


def named_by(reference: ContractReference | None, kind: type[BaseObject]) -> str | None:
    """The name in a reference, if it is one to this kind: `named_by(spec.control_plane_ref, Mine)`.

    Use it to map events to the objects that they concern.
    """
    resource = kind.resource
    if reference is None or (reference.api_group, reference.kind) != (
        resource.group,
        resource.kind,
    ):
        return None
    return reference.name


class Discovery(Protocol):
    """A client that discovers the resources of an API server, such as `capelin.client.Client`."""

    async def request(self, method: str, path: str) -> Any: ...


async def served_resource(client: Discovery, group: str, kind: str) -> Resource | None:
    """The resource of a kind in the first version that has it, the group's preferred one first.

    Other providers' kinds live in the same groups, in versions of their own.
    """
    # A tenant may have written the reference.
    path = f"/apis/{quote(group, safe='')}"
    try:
        described = await client.request("GET", path)
    except NotServed:
        return None
    preferred = described["preferredVersion"]["version"]
    versions = [preferred, *(version["version"] for version in described["versions"])]
    for version in dict.fromkeys(versions):
        listed = await client.request("GET", f"{path}/{version}")
        for resource in listed["resources"]:
            if resource["kind"] == kind and "/" not in resource["name"]:
                return Resource(group, version, kind, resource["name"], resource["namespaced"])
    return None


class ControllerTakenError(ValueError):
    """An object has a controller already, and there can only be one."""


def reference_to(owner: BaseObject, *, controller: bool = False) -> OwnerReference:
    """A reference to an owner, which may also be the object's controller."""
    return OwnerReference(
        api_version=owner.resource.api_version,
        kind=owner.resource.kind,
        name=owner.name,
        uid=owner.uid,
        controller=controller,
        block_owner_deletion=controller,
    )


def ensure_owner(
    references: Sequence[OwnerReference], wanted: OwnerReference
) -> list[OwnerReference]:
    """The references including `wanted`, in its old position if the owner had one.

    Owners match by group, kind and name, so this also updates a reference to an older version of
    the kind, or to the object before a move. An existing controller stays the controller: core
    gives that role to owners that others only list.

    Raises:
        ControllerTakenError: `wanted` is a controller, and the object has another one.
    """
    controller = controller_of(references)
    if wanted.controller and controller is not None and not same_owner(controller, wanted):
        raise ControllerTakenError(
            f"{controller.kind} {controller.name} already controls this object, so {wanted.kind} "
            f"{wanted.name} cannot. Remove that owner, or refer to another object"
        )
    ensured = list(references)
    for index, reference in enumerate(ensured):
        if same_owner(reference, wanted):
            ensured[index] = _kept_in_control(reference, wanted)
            return ensured
    return [*ensured, wanted]


def find_owner(
    references: Sequence[OwnerReference], group: str, kind: str
) -> OwnerReference | None:
    """The owner of a kind, in any version."""
    return next(
        (
            reference
            for reference in references
            if reference.kind == kind and group_of(reference) == group
        ),
        None,
    )


def controller_of(references: Sequence[OwnerReference]) -> OwnerReference | None:
    """The owner that controls the object."""
    return next((reference for reference in references if reference.controller), None)


def is_controlled_by(obj: BaseObject, owner: BaseObject) -> bool:
    """Whether `owner` is the object's controller."""
    controller = controller_of(obj.metadata.owner_references)
    return controller is not None and same_owner(controller, reference_to(owner))


def same_owner(reference: OwnerReference, other: OwnerReference) -> bool:
    """Whether two references mean the same owner, in any version of its kind."""
    return (group_of(reference), reference.kind, reference.name) == (
        group_of(other),
        other.kind,
        other.name,
    )


def group_of(reference: OwnerReference) -> str:
    """The API group of the owner's kind."""
    return reference.api_version.rpartition("/")[0]


def _kept_in_control(present: OwnerReference, wanted: OwnerReference) -> OwnerReference:
    if not present.controller or wanted.controller:
        return wanted
    return wanted.model_copy(
        update={"controller": True, "block_owner_deletion": present.block_owner_deletion}
    )
