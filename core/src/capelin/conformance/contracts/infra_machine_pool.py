"""What core asks of the infrastructure of a MachinePool."""

from capelin.conformance.contracts.rule import BOOK, Contract, ContractRule, Field
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
from capelin.contract import (
    AUTOSCALER_MAX_SIZE_ANNOTATION,
    AUTOSCALER_MIN_SIZE_ANNOTATION,
    CLUSTER_NAME_LABEL,
    DELETE_MACHINE_ANNOTATION,
    POOL_NAME_LABEL,
    REPLICAS_MANAGED_BY_ANNOTATION,
)

_NAME = "infra-machine-pool"
_KIND = "InfraMachinePool"

INFRA_MACHINE_POOL = Contract(
    name=_NAME,
    title=_KIND,
    document=f"{CONTRACTS}/infra-machinepool",
    rules=(
        *every_resource(_NAME, _KIND),
        ContractRule(
            id=f"{_NAME}/instances",
            title="Instances",
            heading="InfraMachinePool: instances",
            applies_to=_KIND,
            says="The status may list the instances, for people to look at.",
            fields=(
                Field("status.instances[].instanceName", "string"),
                Field("status.instances[].providerID", "string"),
                Field("status.instances[].addresses", "list of type and address"),
                Field("status.instances[].version", "string"),
                Field("status.instances[].ready", "boolean"),
            ),
        ),
        ContractRule(
            id=f"{_NAME}/machines",
            title="MachinePool Machines",
            heading="MachinePoolMachines support",
            applies_to=_KIND,
            says=(
                "A provider that names the kind of its machines makes one of it for each "
                "instance, labelled with Cluster and pool and owned, but not controlled, by "
                "itself; core makes a Machine of the same name for each, and an instance goes "
                "by deleting that Machine."
            ),
            mandatory_if="every instance can be handled on its own",
            fields=(Field("status.infrastructureMachineKind", "string"),),
            words=(CLUSTER_NAME_LABEL, POOL_NAME_LABEL, DELETE_MACHINE_ANNOTATION),
        ),
        ContractRule(
            id=f"{_NAME}/provider-id",
            title="The pool's provider id",
            heading="InfraMachinePool: providerID",
            applies_to=_KIND,
            says="The spec may name the thing that is the pool, for people to look at.",
            fields=(Field("spec.providerID", "string"),),
        ),
        ContractRule(
            id=f"{_NAME}/provider-id-list",
            title="Provider ids",
            heading="InfraMachinePool: providerIDList",
            applies_to=_KIND,
            says=(
                "The spec lists the provider ids of all instances, each as on its Node, and is "
                "kept true: core removes the Node of an id that is gone."
            ),
            mandatory=True,
            fields=(Field("spec.providerIDList", "list of at most 10000 strings"),),
        ),
        ContractRule(
            id=f"{_NAME}/initialization",
            title="Initialization",
            heading="InfraMachinePool: initialization completed",
            applies_to=_KIND,
            says=(
                "The status says in both of its places when the pool is provisioned, and never "
                "takes it back: core reads the older one only, and follows it both ways."
            ),
            mandatory=True,
            fields=(
                Field("status.initialization.provisioned", "boolean", v1beta1="status.ready"),
                Field("status.ready", "boolean"),
            ),
        ),
        pausing(_NAME, _KIND),
        conditions(
            _NAME,
            _KIND,
            "Ready sums up the pool during all of its life.",
        ),
        ContractRule(
            id=f"{_NAME}/replicas",
            title="Replicas",
            heading="InfraMachinePool: replicas",
            applies_to=_KIND,
            says="The status says how many instances there are, as last seen.",
            mandatory=True,
            fields=(Field("status.replicas", "int32"),),
        ),
        terminal_failures(
            _NAME,
            _KIND,
            "A pool may say that it failed for good. Better not: core v1.14 trips over it and "
            "stops looking after the MachinePool.",
        ),
        template(
            _NAME,
            _KIND,
            heading="InfraMachinePoolTemplate, InfraMachineTemplatePoolList resource definition",
        ),
        template_dry_run(_NAME, _KIND),
        ContractRule(
            id=f"{_NAME}/autoscaler",
            title="Autoscaler",
            heading="Externally Managed Autoscaler",
            applies_to="MachinePool",
            says=(
                "Where somebody else decides on the number of replicas, the provider follows "
                "the infrastructure and writes the number back; the cluster autoscaler stays "
                "between the annotated sizes."
            ),
            words=(
                REPLICAS_MANAGED_BY_ANNOTATION,
                AUTOSCALER_MIN_SIZE_ANNOTATION,
                AUTOSCALER_MAX_SIZE_ANNOTATION,
            ),
            document=f"{BOOK}/developer/core/controllers/machine-pool",
        ),
        several_managers(_NAME, "Multi tenancy"),
        clusterctl(_NAME),
    ),
)
