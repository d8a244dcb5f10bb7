"""The resource `WorkloadCluster`: a Cluster that is created when it is Available."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, Final

from capelin.api.capi import Cluster, ClusterClass
from capelin.api.core import Secret as KubernetesSecret
from capelin.client import (
    Client,
    ClientError,
    NotServed,
    Unreachable,
    safe_kubeconfig,
)
from capelin.errors import InvalidInputError, MissingError, NotReadyError, UserError
from capelin_cli.clusters.demo import ClusterRequest, on_containers
from capelin_cli.clusters.topology import (
    ClusterOptions,
    check_cluster_name,
    new_cluster,
    parse_variables,
)
from capelin_cli.environments.containers import ContainerMachines
from capelin_cli.environments.kubernetes_versions import check_upgrade
from capelin_cli.status.readiness import (
    deletion_progress,
    not_ready_reason,
    observe,
    wait_until_ready,
)
from capelin_cli.terminal.waiting import wait_for

from capelin_infra.plugin.clusters import accept_outage, connected
from capelin_infra.plugin.containers import container_machines
from capelin_infra.plugin.resource import (
    Difference,
    Operation,
    PartlyCreatedError,
    ResourceHandler,
    changed_inputs,
    failures,
    inputs_of,
    read_kubeconfig,
)
from capelin_infra.resource_types import (
    WORKLOAD_CLUSTER,
    WorkloadClusterInputs,
    WorkloadClusterState,
)

_OWNER: Final = "capelin.cluster.x-k8s.io/pulumi-resource"
"""The annotation that names the Pulumi resource of a Cluster."""


class WorkloadClusterHandler(ResourceHandler[WorkloadClusterInputs, WorkloadClusterState]):
    """Clusters by the same functions as `capelin create cluster`."""

    kind = WORKLOAD_CLUSTER

    def check(self, inputs: WorkloadClusterInputs) -> dict[str, str]:
        return failures(
            {
                "name": lambda: check_cluster_name(inputs.name),
                "variables": lambda: _variables(inputs),
                "kubeconfig": lambda: read_kubeconfig(inputs.kubeconfig),
            }
        )

    def diff(self, old: WorkloadClusterState, new: WorkloadClusterInputs) -> Difference:
        difference = changed_inputs(self.kind, old, new)
        changed = difference.changed
        if not old.available:
            changed |= {"available"}
        return Difference(changed, difference.replaced)

    async def create(
        self, inputs: WorkloadClusterInputs, operation: Operation
    ) -> tuple[str, WorkloadClusterState]:
        async with connected(inputs.kubeconfig) as client:
            cluster = await client.find(Cluster, inputs.name, inputs.namespace)
            owner = None if cluster is None else cluster.metadata.annotations.get(_OWNER)
            if cluster is not None and owner != operation.urn:
                raise InvalidInputError(
                    f"There is a cluster {inputs.name} in namespace {inputs.namespace} already.",
                    reason="This resource did not create it.",
                    hint="Choose another name, or delete it.",
                )
            state = await _applied(client, inputs, operation)
        return f"{inputs.namespace}/{inputs.name}", state

    async def read(
        self, id_: str, state: WorkloadClusterState | None
    ) -> WorkloadClusterState | None:
        if state is None:
            raise InvalidInputError(
                f"Cluster {id_} cannot be imported.",
                reason="An id does not name its management cluster.",
                hint="Create it with the program.",
            )
        try:
            async with connected(state.kubeconfig) as client:
                cluster = await client.find(Cluster, state.name, state.namespace)
                if cluster is None or cluster.uid != state.uid:
                    return None
                graph = await observe(client, cluster)
                return await _state(
                    client, _observed(state, cluster), available=not_ready_reason(graph) is None
                )
        except NotServed:
            # Cluster API was removed, and all Clusters with it.
            return None
        except Unreachable as error:
            accept_outage(str(error))
            return None

    async def update(
        self,
        id_: str,
        old: WorkloadClusterState,
        new: WorkloadClusterInputs,
        operation: Operation,
    ) -> WorkloadClusterState:
        del id_
        if old.kubernetes_version != new.kubernetes_version:
            check_upgrade(old.kubernetes_version, new.kubernetes_version)
        async with connected(new.kubeconfig) as client:
            return await _applied(client, new, operation)

    async def delete(self, id_: str, state: WorkloadClusterState, operation: Operation) -> None:
        try:
            async with connected(state.kubeconfig) as client:
                cluster = await client.find(Cluster, state.name, state.namespace)
                if cluster is None or cluster.uid != state.uid:
                    return
                await client.delete(Cluster, state.name, state.namespace, uid=state.uid)
                progress = partial(deletion_progress, client, cluster)
                await wait_for(f"deletion of {id_}", progress, operation.seconds, operation.show)
        except NotServed:
            return
        except Unreachable as error:
            accept_outage(str(error))


async def _applied(
    client: Client, inputs: WorkloadClusterInputs, operation: Operation
) -> WorkloadClusterState:
    """Apply the Cluster and wait until all of it is as desired."""
    cluster_class = await client.find(ClusterClass, inputs.cluster_class, inputs.namespace)
    if cluster_class is None:
        raise MissingError(
            f"There is no ClusterClass {inputs.cluster_class} in namespace {inputs.namespace}.",
            reason="A workload cluster needs one.",
            hint="Create it first, and let the cluster depend on it.",
        )
    options = ClusterOptions(
        cluster_class=inputs.cluster_class,
        version=inputs.kubernetes_version,
        control_plane_replicas=inputs.control_plane_replicas,
        workers=inputs.workers,
        variables=_variables(inputs),
    )
    request = ClusterRequest(inputs.name, inputs.namespace, options)
    machines = await container_machines(inputs.machine_images)
    if machines is not None:
        request = await _on_containers(client, request, machines)
    manifest = new_cluster(
        inputs.name, inputs.namespace, inputs.kubernetes_version, request.options, cluster_class
    )
    manifest["metadata"]["annotations"] = {_OWNER: operation.urn}
    try:
        for needed in request.manifests:
            await client.apply(needed)
        await client.apply(manifest)
    except ClientError as error:
        raise NotReadyError(
            f"Cluster {inputs.name} cannot be applied.", reason=str(error)
        ) from error
    try:
        await wait_until_ready(
            client, inputs.name, inputs.namespace, operation.seconds, operation.show
        )
    except (UserError, asyncio.CancelledError) as error:
        state = await _state(client, inputs, available=False)
        raise PartlyCreatedError(f"{inputs.namespace}/{inputs.name}", state, error) from None
    return await _state(client, inputs, available=True)


async def _on_containers(
    client: Client, request: ClusterRequest, machines: ContainerMachines
) -> ClusterRequest:
    """The request for a cluster on containers. An existing Cluster keeps its endpoint."""
    request = on_containers(request, machines, None)
    cluster = await client.find(Cluster, request.name, request.namespace)
    if cluster is None:
        return request
    endpoint = cluster.spec.control_plane_endpoint
    options = replace(request.options, endpoint=(endpoint.host, endpoint.port))
    return replace(request, options=options)


async def _state(
    client: Client, inputs: WorkloadClusterInputs, *, available: bool
) -> WorkloadClusterState:
    cluster = await client.get(Cluster, inputs.name, inputs.namespace)
    secret = await client.find(KubernetesSecret, f"{inputs.name}-kubeconfig", inputs.namespace)
    endpoint = cluster.spec.control_plane_endpoint
    given = inputs_of(WorkloadClusterInputs, inputs)
    return WorkloadClusterState(
        **given.model_dump(by_alias=False),
        uid=cluster.uid,
        workload_kubeconfig=""
        if secret is None
        else safe_kubeconfig(secret.data["value"], name=inputs.name).decode(),
        endpoint=f"{endpoint.host}:{endpoint.port}" if endpoint.host else "",
        available=available,
    )


def _variables(inputs: WorkloadClusterInputs) -> dict[str, Any]:
    return parse_variables(f"{name}={value}" for name, value in inputs.variables.items())


def _observed(state: WorkloadClusterState, cluster: Cluster) -> WorkloadClusterInputs:
    """The inputs, with the Cluster's values where the state may be out of date."""
    topology = cluster.spec.topology
    changes: dict[str, Any] = {}
    if topology is not None:
        groups = [*topology.workers.machine_pools, *topology.workers.machine_deployments]
        changes = {
            "kubernetes_version": topology.version,
            "control_plane_replicas": topology.control_plane.replicas,
            "workers": sum(group.replicas or 0 for group in groups),
        }
    known = {name: value for name, value in changes.items() if value is not None}
    return state.model_copy(update=known)
