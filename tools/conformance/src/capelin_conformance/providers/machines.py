"""Behaviour of machines and of pools of machines."""

from collections.abc import AsyncIterator
from typing import Final

from capelin.api import Unstructured
from capelin.client import ApiError

from capelin_conformance.providers.bench import resource_of_kind
from capelin_conformance.providers.benches import POOL_REPLICAS, MachineBench, MachinePoolBench
from capelin_conformance.providers.fields import items_at, mapping_at, value_at
from capelin_conformance.providers.lifecycle import BehaviourCheck
from capelin_conformance.providers.rules import NotApplicableError, Rule, UntriedError, rule

_DRY_RUN_ANNOTATION: Final = "topology.cluster.x-k8s.io/dry-run"
_TOPOLOGY_MANAGER: Final = "capi-topology"


@rule("infra-machine", "machine-pool")
async def waits_for_infrastructure(bench: MachineBench) -> AsyncIterator[str]:
    """The provider creates no machine before the Cluster's infrastructure is provisioned.

    Source: infra-machine#normal-resource
    Fix: wait for status.initialization.infrastructureProvisioned of the Cluster.
    """
    if bench.world.own_cluster is not None:
        raise NotApplicableError("the provider's own cluster kind decides when it is provisioned")
    await bench.create(infrastructure=False)
    if await bench.becomes(bench.reached, bench.timing.hold):
        yield f"{bench.milestone} became true before the Cluster's infrastructure was provisioned"
        return
    await bench.finish_infrastructure()
    if not await bench.becomes(bench.reached):
        yield f"{bench.milestone} is not true after the Cluster's infrastructure was provisioned"


@rule("infra-machine", "machine-pool")
async def waits_for_bootstrap_data(bench: MachineBench) -> AsyncIterator[str]:
    """The provider creates no machine before its owner has bootstrap data.

    Source: infra-machine#normal-resource
    Fix: wait for bootstrap.dataSecretName of the Machine or the MachinePool.
    """
    await bench.create(data=False)
    if await bench.becomes(bench.reached, bench.timing.hold):
        yield f"{bench.milestone} became true without bootstrap data"
        return
    await bench.finish_data()
    if not await bench.becomes(bench.reached):
        yield f"{bench.milestone} is not true after the bootstrap data was created"


@rule("infra-machine", "machine-pool")
async def provider_id_stable(bench: MachineBench) -> AsyncIterator[str]:
    """The provider ID of a machine never changes, even if the status is lost.

    Source: infra-machine#inframachine-provider-id
    Fix: derive it from the machine, and find an existing machine before you create one.
    """
    await bench.provision()
    before = await bench.identities()
    await bench.remove_status()
    await bench.becomes(bench.reached)
    await bench.hold()
    after = await bench.identities()
    if before != after:
        yield f"{bench.identity} changed from {before!r} to {after!r}"


@rule("infra-machine")
async def template_dry_run(bench: MachineBench) -> AsyncIterator[str]:
    """The template accepts a changed spec in a topology's dry run, even if it is immutable.

    Source: infra-machine#inframachinetemplate-support-for-ssa-dry-run
    Fix: accept changes in a dry run with the annotation topology.cluster.x-k8s.io/dry-run.
    """
    template = bench.world.subject.template
    if template is None:
        raise NotApplicableError("there is no template")
    resource = resource_of_kind(template)
    sample = mapping_at(bench.world.sample(bench.resource.kind), "spec")
    change: Unstructured
    if template.field("spec.template.spec.providerID") is not None:
        change = {"spec": {**sample, "providerID": "conformance://dry-run"}}
    elif template.field("spec.template.metadata.labels") is not None:
        change = {"spec": sample, "metadata": {"labels": {"conformance": "dry-run"}}}
    else:
        raise UntriedError("the check can change neither a providerID nor labels in the template")
    await bench.create_object(resource, spec={"template": {"spec": sample}})
    changed = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": bench.name,
            "namespace": bench.namespace,
            "annotations": {_DRY_RUN_ANNOTATION: ""},
        },
        "spec": {"template": change},
    }
    try:
        await bench.client.apply(
            changed, resource=resource, manager=_TOPOLOGY_MANAGER, dry_run=True
        )
    except ApiError as error:
        yield f"the dry run was rejected: {error}"


@rule("machine-pool")
async def scaling(bench: MachinePoolBench) -> AsyncIterator[str]:
    """A pool reports as many provider IDs and replicas as its MachinePool has, and follows it.

    Source: infra-machinepool#inframachinepool-provideridlist
    Fix: write spec.providerIDList and status.replicas after each creation and deletion.
    """
    await bench.provision()

    async def sizes() -> tuple[int, object]:
        pool = await bench.get()
        return len(items_at(pool, bench.identity)), value_at(pool, "status.replicas")

    for replicas in (POOL_REPLICAS, POOL_REPLICAS + 1, 1):
        scale = {"spec": {"replicas": replicas}}
        await bench.client.patch(bench.owner, bench.name, bench.namespace, scale)

        async def is_scaled(replicas: int = replicas) -> bool:
            return await sizes() == (replicas, replicas)

        if not await bench.becomes(is_scaled):
            identities, reported = await sizes()
            yield f"{identities} provider IDs and {reported} replicas, instead of {replicas}"
            return


MACHINE_RULES: Final[tuple[Rule[BehaviourCheck], ...]] = (
    waits_for_infrastructure,
    waits_for_bootstrap_data,
    provider_id_stable,
    template_dry_run,
    scaling,
)
