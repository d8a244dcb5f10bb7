"""Owner references: who an object belongs to, and keeping that true while others change it too.

Rules `clusterctl/owner-references` and, for pools, `infra-machine-pool/machines`.
"""

from collections.abc import Sequence

from capelin.api import BaseObject, OwnerReference


class ControllerTakenError(ValueError):
    """An object has a controller already, and there can only be one."""


def reference_to(owner: BaseObject, *, controller: bool = False) -> OwnerReference:
    """A reference to an owner, who may also be the one that controls the object."""
    return OwnerReference(
        api_version=owner.resource.api_version,
        kind=owner.resource.kind,
        name=owner.name,
        uid=owner.uid,
        controller=controller,
        block_owner_deletion=controller,
    )


def ensure(references: Sequence[OwnerReference], wanted: OwnerReference) -> list[OwnerReference]:
    """The references with `wanted` among them, in its old place if the owner had one.

    The owner is known by group, kind and name, so that a reference to an older version of its
    kind, or to the object that it was before a move, is brought up to date. Whoever controls the
    object goes on doing so: core makes controllers of owners that others only list.

    Raises:
        ControllerTakenError: `wanted` is to control the object, and something else does.
    """
    controller = controller_of(references)
    if wanted.controller and controller is not None and not same_owner(controller, wanted):
        raise ControllerTakenError(
            f"{controller.kind} {controller.name} already controls this object, so {wanted.kind} "
            f"{wanted.name} cannot; remove that owner, or refer to another object"
        )
    ensured = list(references)
    for place, reference in enumerate(ensured):
        if same_owner(reference, wanted):
            ensured[place] = _kept_in_control(reference, wanted)
            return ensured
    return [*ensured, wanted]


def find(references: Sequence[OwnerReference], group: str, kind: str) -> OwnerReference | None:
    """The owner of a kind, whatever version of it is referred to."""
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
    """Whether `owner` made the object and may remove it."""
    controller = controller_of(obj.metadata.owner_references)
    return controller is not None and same_owner(controller, reference_to(owner))


def same_owner(one: OwnerReference, other: OwnerReference) -> bool:
    """Whether two references mean the same owner, in whichever version of its kind."""
    return (group_of(one), one.kind, one.name) == (group_of(other), other.kind, other.name)


def group_of(reference: OwnerReference) -> str:
    """The API group of the owner's kind."""
    return reference.api_version.rpartition("/")[0]


def _kept_in_control(present: OwnerReference, wanted: OwnerReference) -> OwnerReference:
    if not present.controller or wanted.controller:
        return wanted
    return wanted.model_copy(
        update={"controller": True, "block_owner_deletion": present.block_owner_deletion}
    )
