import pytest
from capelin.api import OwnerReference
from capelin.api.capi import Cluster, Machine, MachinePool
from capelin.api.core import Secret
from capelin.contract import (
    ControllerTakenError,
    controller_of,
    ensure_owner,
    find_owner,
    group_of,
    is_controlled_by,
    reference_to,
    same_owner,
)
from hypothesis import given
from hypothesis import strategies as st

POOL = MachinePool.of("pool", "default")
POOL.metadata.uid = "pool-uid"
CLUSTER = Cluster.of("demo", "default")
CLUSTER.metadata.uid = "cluster-uid"


def reference(
    name: str = "demo",
    *,
    kind: str = "Cluster",
    api_version: str = "cluster.x-k8s.io/v1beta2",
    uid: str = "cluster-uid",
    controller: bool = False,
) -> OwnerReference:
    return OwnerReference(
        api_version=api_version,
        kind=kind,
        name=name,
        uid=uid,
        controller=controller,
        block_owner_deletion=controller,
    )


def test_a_reference_names_its_owner() -> None:
    assert reference_to(CLUSTER) == reference()
    assert reference_to(CLUSTER, controller=True) == reference(controller=True)
    assert reference_to(CLUSTER, controller=True).dump() == {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "name": "demo",
        "uid": "cluster-uid",
        "controller": True,
        "blockOwnerDeletion": True,
    }


def test_ensure_owner_appends_a_missing_owner() -> None:
    pool = reference_to(POOL, controller=True)
    assert ensure_owner([pool], reference()) == [pool, reference()]


@pytest.mark.parametrize(
    "stale",
    [
        reference(api_version="cluster.x-k8s.io/v1beta1"),
        reference(uid="uid-before-the-move"),
    ],
)
def test_ensure_owner_replaces_an_outdated_reference_in_place(
    stale: OwnerReference,
) -> None:
    pool = reference_to(POOL)
    assert ensure_owner([stale, pool], reference()) == [reference(), pool]


@pytest.mark.parametrize(
    "other",
    [
        reference("other"),
        reference(kind="ClusterClass"),
        reference(api_version="other.example/v1beta2"),
        reference(api_version="v1"),
    ],
)
def test_ensure_owner_keeps_similar_owners(other: OwnerReference) -> None:
    assert ensure_owner([other], reference()) == [other, reference()]
    assert not same_owner(other, reference())


def test_ensure_owner_promotes_an_owner_to_controller() -> None:
    assert ensure_owner([reference()], reference(controller=True)) == [reference(controller=True)]


def test_ensure_owner_does_not_demote_a_controller() -> None:
    stale = reference(api_version="cluster.x-k8s.io/v1beta1", controller=True)
    assert ensure_owner([stale], reference()) == [reference(controller=True)]


def test_ensure_owner_rejects_a_second_controller() -> None:
    taken = [reference(controller=True)]
    with pytest.raises(
        ControllerTakenError,
        match=r"^Cluster demo already controls this object, so MachinePool pool cannot\. "
        "Remove that owner, or refer to another object$",
    ):
        ensure_owner(taken, reference_to(POOL, controller=True))


def test_ensure_owner_accepts_the_same_controller_again() -> None:
    assert ensure_owner([reference(controller=True)], reference(controller=True)) == [
        reference(controller=True)
    ]


references = st.builds(
    reference,
    st.sampled_from(["a", "b"]),
    kind=st.sampled_from(["Cluster", "Machine"]),
    api_version=st.sampled_from(["cluster.x-k8s.io/v1beta1", "cluster.x-k8s.io/v1beta2", "v1"]),
    uid=st.sampled_from(["1", "2"]),
)


@given(
    st.lists(references, unique_by=lambda owner: (group_of(owner), owner.kind, owner.name)),
    references,
    st.booleans(),
)
def test_ensure_owner_is_idempotent_and_keeps_other_owners(
    present: list[OwnerReference], desired: OwnerReference, controls: bool
) -> None:
    desired = desired.model_copy(update={"controller": controls, "block_owner_deletion": controls})
    before = list(present)
    once = ensure_owner(present, desired)
    assert ensure_owner(once, desired) == once
    assert present == before
    others = [owner for owner in present if not same_owner(owner, desired)]
    assert [owner for owner in once if not same_owner(owner, desired)] == others
    assert [owner for owner in once if same_owner(owner, desired)] == [desired]


def test_find_owner_matches_the_kind_in_any_version() -> None:
    shim = reference(kind="Secret", api_version="v1", name="demo-shim")
    older = reference(api_version="cluster.x-k8s.io/v1beta1")
    assert find_owner([shim, older], "cluster.x-k8s.io", "Cluster") == older
    assert find_owner([shim, older], "", "Secret") == shim
    assert find_owner([shim], "cluster.x-k8s.io", "Cluster") is None
    assert find_owner([older], "cluster.x-k8s.io", "Machine") is None
    assert find_owner([older], "other.example", "Cluster") is None


def test_controller_of_returns_only_a_controller() -> None:
    assert controller_of([reference()]) is None
    controller = reference_to(POOL, controller=True)
    assert controller_of([reference(), controller]) == controller


def test_is_controlled_by_matches_only_the_controller() -> None:
    secret = Secret.of("s", "default")
    assert not is_controlled_by(secret, POOL)
    secret.metadata.owner_references = [reference_to(POOL)]
    assert not is_controlled_by(secret, POOL)
    secret.metadata.owner_references = [reference_to(POOL, controller=True)]
    assert is_controlled_by(secret, POOL)
    assert not is_controlled_by(secret, MachinePool.of("other", "default"))
    assert not is_controlled_by(secret, Machine.of("pool", "default"))
