"""What core asks of the infrastructure of a Cluster."""

from capelin.conformance.contracts.rule import Contract, ContractRule, Field
from capelin.conformance.contracts.shared import (
    CONTRACTS,
    clusterctl,
    conditions,
    every_resource,
    pausing,
    several_managers,
    template,
    terminal_failures,
)
from capelin.contract import MANAGED_BY_ANNOTATION

_NAME = "infra-cluster"
_KIND = "InfraCluster"

INFRA_CLUSTER = Contract(
    name=_NAME,
    title=_KIND,
    document=f"{CONTRACTS}/infra-cluster",
    rules=(
        *every_resource(_NAME, _KIND),
        ContractRule(
            id=f"{_NAME}/endpoint",
            title="Endpoint",
            heading="InfraCluster: control plane endpoint",
            applies_to=_KIND,
            says="A provider that makes the endpoint writes host and port into its spec.",
            mandatory_if="nobody else provides the endpoint",
            fields=(
                Field("spec.controlPlaneEndpoint.host", "string"),
                Field("spec.controlPlaneEndpoint.port", "int32"),
            ),
        ),
        ContractRule(
            id=f"{_NAME}/failure-domains",
            title="Failure domains",
            heading="InfraCluster: failure domains",
            applies_to=_KIND,
            says=(
                "The status lists the failure domains, in v1beta1 as a map by name, and which "
                "of them are meant for control planes."
            ),
            mandatory_if="the infrastructure has failure domains",
            fields=(
                Field(
                    "status.failureDomains",
                    "list of at most 100, by name",
                    v1beta1="status.failureDomains",
                ),
            ),
        ),
        ContractRule(
            id=f"{_NAME}/initialization",
            title="Initialization",
            heading="InfraCluster: initialization completed",
            applies_to=_KIND,
            says="The status says when the Cluster's infrastructure is provisioned.",
            mandatory=True,
            fields=(Field("status.initialization.provisioned", "boolean", v1beta1="status.ready"),),
        ),
        conditions(_NAME, _KIND, "Ready is shown on the Cluster as InfrastructureReady."),
        terminal_failures(
            _NAME,
            _KIND,
            "In v1beta1, infrastructure that can never recover says so. From v1beta2 on, nobody "
            "acts on it.",
        ),
        template(_NAME, _KIND),
        ContractRule(
            id=f"{_NAME}/managed-elsewhere",
            title="Managed elsewhere",
            heading="Externally managed infrastructure",
            applies_to=_KIND,
            says=(
                "An object that is marked as somebody else's is not touched; that somebody "
                "follows the rules on endpoint, failure domains and initialization."
            ),
            words=(MANAGED_BY_ANNOTATION,),
        ),
        several_managers(_NAME, "Multi tenancy"),
        clusterctl(_NAME),
        pausing(_NAME, _KIND),
    ),
)
