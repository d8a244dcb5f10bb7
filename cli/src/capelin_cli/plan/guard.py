"""Approves a plan: the lifecycle extension then holds changes with another effect."""

from collections.abc import Iterable, Sequence

from capelin.api.capi import Cluster
from capelin.client import Client
from capelin.errors import InvalidInputError, UserError
from capelin.runtime.messages import read
from capelin.runtime.v1alpha1 import ValidateTopology
from capelin_lifecycle.actions.approved_plan import PLAN_ANNOTATION, topology_digests
from capelin_lifecycle.api import Policy
from capelin_lifecycle.policies.clusters import topology_cluster

from capelin_cli.explain.model import Reference
from capelin_cli.plan.extensions import RecordedCall
from capelin_cli.plan.model import Plan
from capelin_cli.status.policies import policy_name


def guards(policies: Iterable[Policy]) -> set[str]:
    """The names of the policies that hold other plans, in the form of a ClusterClass's settings."""
    return {policy_name(each) for each in policies if each.spec.action.approved_plan is not None}


def digests_of(calls: Iterable[RecordedCall], cluster: Reference) -> list[str]:
    """The digests of the topologies of a Cluster in calls of ValidateTopology."""
    found: set[str] = set()
    for call in calls:
        request = read(ValidateTopology.request_type(), call.request)
        named = topology_cluster(request)
        if (named.cluster, named.namespace) == (cluster.name, cluster.namespace):
            found |= topology_digests(request).keys()
    return sorted(found)


async def approve(client: Client, plan: Plan) -> Sequence[str]:
    """Approve a plan for all its Clusters. Returns their names.

    Raises:
        UserError: The effect is unknown, or nothing would hold another one.
    """
    for each in plan.clusters:
        if each.unknown:
            raise UserError(
                f"The plan of {each.cluster} is not approved.",
                reason=f"A part of its effect is unknown: {each.unknown[0]}.",
                hint="Correct this first, or make the change without --guard.",
            )
        if not each.topologies:
            raise InvalidInputError(
                f"The plan of {each.cluster} is not approved.",
                reason="Its ClusterClass has no patch with validate-topology-v1.lifecycle and a "
                "policy with the action approvedPlan.",
                hint="docs/lifecycle/rules.md shows both.",
            )
    for each in plan.clusters:
        patch = {"metadata": {"annotations": {PLAN_ANNOTATION: ",".join(each.topologies)}}}
        await client.patch(Cluster, each.cluster.name, each.cluster.namespace, patch)
    return [str(each.cluster) for each in plan.clusters]
