"""Behaviour that the contracts of all kinds have in common, checked on a management cluster."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final, cast

from capelin.api import Unstructured
from capelin.contract import PAUSED

from capelin_conformance.providers.bench import Bench
from capelin_conformance.providers.fields import items_at, mapping_at
from capelin_conformance.providers.rules import Contract, NotApplicableError, Rule, rule

BehaviourCheck = Callable[[Any], AsyncIterator[str]]
"""Yields the problems of a provider on a bench of its contract."""

COMMON_CONTRACTS: Final[tuple[Contract, ...]] = (
    "control-plane",
    "infra-cluster",
    "infra-machine",
    "machine-pool",
    "bootstrap",
)
_FOREIGN: Final = "conformance.example.com/kept"


@rule(*COMMON_CONTRACTS)
async def milestone(bench: Bench) -> AsyncIterator[str]:
    """The object reaches its milestone, and Cluster API's core takes it over.

    Source: *#KIND-initialization-completed
    Fix: set the field in status.initialization when the object is ready for use.
    """
    await bench.create()
    if not await bench.becomes(bench.reached):
        yield f"{bench.milestone} is not true after {bench.timing.patience:g} s"
    elif not await bench.becomes(bench.core_agrees):
        yield f"{bench.milestone} is true, and core has not taken it over"


@rule(*COMMON_CONTRACTS)
async def pausing(bench: Bench) -> AsyncIterator[str]:
    """The provider does not work on an object with the annotation of a pause until that is gone.

    Source: *#KIND-pausing
    Fix: return before any other step if the object has the annotation cluster.x-k8s.io/paused.
    """
    await bench.create(paused=True)
    if await bench.becomes(bench.reached, bench.timing.hold):
        yield f"{bench.milestone} of a paused object became true"
        return
    await bench.pause(paused=False)
    if not await bench.becomes(bench.reached):
        yield f"{bench.milestone} is not true {bench.timing.patience:g} s after the pause"


@rule(*COMMON_CONTRACTS)
async def cluster_pause(bench: Bench) -> AsyncIterator[str]:
    """The provider does not work on the objects of a paused Cluster.

    Source: *#KIND-pausing
    Fix: return before any other step if spec.paused of the Cluster is true.
    """
    await bench.provision()
    await bench.pause_cluster(paused=True)
    await bench.hold()
    await bench.remove_status()
    if await bench.becomes(bench.reached, bench.timing.hold):
        yield "the provider wrote the status of an object whose Cluster is paused"


@rule(*COMMON_CONTRACTS)
async def paused_deletion(bench: Bench) -> AsyncIterator[str]:
    """The provider does not delete anything for a paused object, and continues after the pause.

    Source: clusterctl#move
    Fix: check for a pause before the deletion timestamp.
    """
    if not items_at(await bench.provision(), "metadata.finalizers"):
        raise NotApplicableError("the object has no finalizer: nothing is deleted with it")
    await bench.pause(paused=True)
    await bench.hold()
    await bench.client.delete(bench.resource, bench.name, bench.namespace)
    if await bench.becomes(bench.is_gone, bench.timing.hold):
        yield "a paused object lost its finalizers"
        return
    await bench.pause(paused=False)
    if not await bench.becomes(bench.is_gone):
        yield f"the object still exists {bench.timing.patience:g} s after the pause"


@rule(*COMMON_CONTRACTS, advice=True)
async def paused_condition(bench: Bench) -> AsyncIterator[str]:
    """The condition Paused shows whether the object is paused.

    Source: *#KIND-pausing
    Fix: set the condition Paused to True or False in every reconcile.
    """
    await bench.provision()

    async def is_running() -> bool:
        return await bench.condition(PAUSED) == "False"

    async def is_paused() -> bool:
        return await bench.condition(PAUSED) == "True"

    if not await bench.becomes(is_running):
        yield "Paused is not False on an object that is not paused"
    await bench.pause(paused=True)
    if not await bench.becomes(is_paused):
        yield "Paused is not True on a paused object"
    await bench.pause(paused=False)
    if not await bench.becomes(is_running):
        yield "Paused is not False after the pause"


@rule(*COMMON_CONTRACTS)
async def status_rebuilt(bench: Bench) -> AsyncIterator[str]:
    """The provider rebuilds a status that is missing, as it is after clusterctl move.

    Source: clusterctl#move
    Fix: compute the whole status from the spec and from the infrastructure.
    """
    await bench.provision()
    await bench.remove_status()
    if not await bench.becomes(bench.reached):
        yield f"{bench.milestone} is not true {bench.timing.patience:g} s after the status was lost"


@rule(*COMMON_CONTRACTS)
async def finalizers_restored(bench: Bench) -> AsyncIterator[str]:
    """The provider adds its finalizers again if a user removes them.

    Source: https://pkg.go.dev/sigs.k8s.io/cluster-api/test/framework#ValidateFinalizersResilience
    Fix: ensure the finalizer in every reconcile, and not only in the first.
    """
    before = items_at(await bench.provision(), "metadata.finalizers")
    if not before:
        raise NotApplicableError("the object has no finalizer")
    await bench.patch_metadata({"finalizers": None, "labels": {_FOREIGN: "yes"}})

    async def has_all() -> bool:
        return {*before} <= {*items_at(await bench.get(), "metadata.finalizers")}

    if not await bench.becomes(has_all):
        yield f"{', '.join(before)} is missing {bench.timing.patience:g} s after its removal"


@rule(*COMMON_CONTRACTS)
async def metadata_kept(bench: Bench) -> AsyncIterator[str]:
    """The provider keeps owner references, labels and annotations that others wrote.

    Source: clusterctl#ownerreferences-chain
    Fix: patch only your own fields, and never update whole objects.
    """
    await bench.provision()
    foreign = {_FOREIGN: "yes"}
    await bench.patch_metadata({"labels": foreign, "annotations": foreign})
    before = (await bench.get())["metadata"]
    await bench.hold()
    after = (await bench.get())["metadata"]
    for key in ("labels", "annotations"):
        for name in sorted(mapping_at(before, key).keys() - mapping_at(after, key).keys()):
            yield f"{name} is missing in metadata.{key}"
    kept = {owner["uid"] for owner in items_at(after, "ownerReferences")}
    for owner in items_at(before, "ownerReferences"):
        if owner["uid"] not in kept:
            yield f"the owner reference to {owner['kind']} {owner['name']} is missing"


@rule(*COMMON_CONTRACTS)
async def quiet(bench: Bench) -> AsyncIterator[str]:
    """The resourceVersion of an object at rest does not change.

    Source: https://pkg.go.dev/sigs.k8s.io/cluster-api/test/framework#ValidateResourceVersionStable
    Fix: write only what has changed. Keep times and counters out of the status.
    """
    await bench.provision()
    await bench.hold()
    found = await bench.changes(await bench.get())
    if len(found) > 1:
        yield writes(found, bench.timing.rest)


@rule(*COMMON_CONTRACTS)
async def deletion(bench: Bench) -> AsyncIterator[str]:
    """The object is deleted with its owner.

    Source: infra-machine#deleted-resource
    Fix: remove your finalizer when everything that belongs to the object is deleted.
    """
    await bench.provision()
    await bench.client.delete(bench.owner, bench.name, bench.namespace)
    if not await bench.becomes(bench.is_gone):
        holders = ", ".join(items_at(await bench.find(), "metadata.finalizers")) or "none"
        yield f"it exists {bench.timing.patience:g} s after the deletion; finalizers: {holders}"


@rule("control-plane", "infra-machine", "machine-pool")
async def early_deletion(bench: Bench) -> AsyncIterator[str]:
    """An object that has never reached its milestone can be deleted.

    Source: infra-machine#deleted-resource
    Fix: handle a deletion before you wait for anything.
    """
    await bench.create(infrastructure=False, data=False)
    await bench.hold()
    await bench.client.delete(bench.resource, bench.name, bench.namespace)
    if not await bench.becomes(bench.is_gone):
        yield f"it exists {bench.timing.patience:g} s after the deletion"


def writes(states: Sequence[Unstructured], seconds: float) -> str:
    """A description of the writes between the states of an object at rest."""
    fields = sorted({*_changed_fields(states[-2], states[-1])}) or ["nothing"]
    return f"{len(states) - 1} writes in {seconds:g} s; the last one changed {', '.join(fields)}"


def _changed_fields(before: Unstructured, after: Unstructured, prefix: str = "") -> Iterator[str]:
    """The paths of the fields that differ, without those that every write changes."""
    for name in sorted(before.keys() | after.keys()):
        path = f"{prefix}{name}"
        if path in {"metadata.managedFields", "metadata.resourceVersion"}:
            continue
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _changed_fields(
                cast("Unstructured", old), cast("Unstructured", new), f"{path}."
            )
        elif old != new:
            yield path


LIFECYCLE_RULES: Final[tuple[Rule[BehaviourCheck], ...]] = (
    milestone,
    pausing,
    cluster_pause,
    paused_deletion,
    paused_condition,
    status_rebuilt,
    finalizers_restored,
    metadata_kept,
    quiet,
    deletion,
    early_deletion,
)
