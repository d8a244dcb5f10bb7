"""What core asks of the infrastructure of a Machine."""

from capelin.conformance.contracts.rule import PROPOSALS, Contract, ContractRule, Field
from capelin.conformance.contracts.shared import (
    CONTRACTS,
    clusterctl,
    conditions,
    every_resource,
    pausing,
    several_managers,
    template,
    template_dry_run,
    terminal_failures,
)
from capelin.contract import INTERRUPTIBLE_LABEL

_NAME = "infra-machine"
_KIND = "InfraMachine"

INFRA_MACHINE = Contract(
    name=_NAME,
    title=_KIND,
    document=f"{CONTRACTS}/infra-machine",
    rules=(
        *every_resource(_NAME, _KIND),
        ContractRule(
            id=f"{_NAME}/provider-id",
            title="Provider id",
            heading="InfraMachine: provider ID",
            applies_to=_KIND,
            says="The spec has the provider id that stands on the Node, and no other machine's.",
            mandatory=True,
            fields=(Field("spec.providerID", "string of 1 to 512 characters"),),
        ),
        ContractRule(
            id=f"{_NAME}/failure-domain",
            title="Failure domain",
            heading="InfraMachine: failure domain",
            applies_to=_KIND,
            says=("The machine is put where the Machine says; the status may say where it is."),
            mandatory_if="the infrastructure has failure domains",
            fields=(Field("status.failureDomain", "string", v1beta1="spec.failureDomain"),),
        ),
        ContractRule(
            id=f"{_NAME}/addresses",
            title="Addresses",
            heading="InfraMachine: addresses",
            applies_to=_KIND,
            says=(
                "Addresses, where shown, stand in the status, each with its type: Hostname, "
                "ExternalIP, InternalIP, ExternalDNS or InternalDNS."
            ),
            fields=(Field("status.addresses", "list of type and address"),),
        ),
        ContractRule(
            id=f"{_NAME}/initialization",
            title="Initialization",
            heading="InfraMachine: initialization completed",
            applies_to=_KIND,
            says="The status says when the machine is provisioned.",
            mandatory=True,
            fields=(Field("status.initialization.provisioned", "boolean", v1beta1="status.ready"),),
        ),
        conditions(_NAME, _KIND, "Ready is shown on the Machine as InfrastructureReady."),
        ContractRule(
            id=f"{_NAME}/interruptible",
            title="Interruptible machines",
            heading="'Interruptible' label",
            applies_to=_KIND,
            says="A machine that may be taken away at any time may say so; core marks its Node.",
            fields=(Field("status.interruptible", "boolean"),),
            words=(INTERRUPTIBLE_LABEL,),
            document=f"{PROPOSALS}/20200330-spot-instances.md",
        ),
        terminal_failures(
            _NAME,
            _KIND,
            "In v1beta1, a machine that can never recover says so. From v1beta2 on, nobody acts "
            "on it.",
        ),
        ContractRule(
            id=f"{_NAME}/in-place-updates",
            title="Updates in place",
            heading="InfraMachine: support for in-place changes",
            applies_to=_KIND,
            says=(
                "Changes that an extension makes in place are left to it, and validation lets "
                "them pass."
            ),
            mandatory_if="updates in place are supported",
            generations=("v1beta2",),
        ),
        template(_NAME, _KIND, mandatory=True),
        template_dry_run(_NAME, _KIND),
        several_managers(_NAME, "Multi tenancy"),
        clusterctl(_NAME),
        pausing(_NAME, _KIND),
        ContractRule(
            id=f"{_NAME}/autoscaling-from-zero",
            title="Autoscaling from zero",
            heading="InfraMachineTemplate: support cluster autoscaling from zero",
            applies_to="InfraMachineTemplate",
            says=(
                "The template's status tells the autoscaler what a machine made from it would have."
            ),
            fields=(
                Field("status.capacity", "quantities by resource"),
                Field("status.nodeInfo.architecture", "string"),
                Field("status.nodeInfo.operatingSystem", "string"),
            ),
        ),
    ),
)
