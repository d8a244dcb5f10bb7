"""Rules for MachineDeployments, MachineSets, MachinePools, Machines and their parts."""

import re
from collections.abc import Iterator
from typing import Final

from capelin_cli.explain.common_rules import WEBHOOK, missing, waiting_part
from capelin_cli.explain.facts import (
    YOU,
    Facts,
    Finding,
    Subject,
    at,
    describe,
    reported,
    text_at,
    waits,
)
from capelin_cli.explain.model import Reference

_BUDGET: Final = re.compile(
    r"Pods? (?P<pods>[^:]{1,500}): "
    r"cannot evict pod as it would violate the pod's disruption budget\."
    r"(?: The disruption budget (?P<name>\S+) needs)?"
)
_STUCK_PODS: Final = re.compile(r"Pods? (?P<pods>[^:]{1,500}): deletionTimestamp set")
_HOOKS: Final = ("pre-drain", "pre-terminate")
_HOOK_PREFIX: Final = "{}.delete.hook.machine.cluster.x-k8s.io/"
_TEMPLATES: Final = (
    ("spec", "template", "spec", "infrastructureRef"),
    ("spec", "template", "spec", "bootstrap", "configRef"),
)
"""The fields of MachineDeployments and MachineSets that name templates."""
_NO_NETWORK: Final = "cni plugin not initialized"
_CORE: Final = "Cluster API's core"
_STOPPED_KUBELET: Final = "Kubelet stopped posting node status"


def owned(owner: Subject, facts: Facts) -> Iterator[Finding]:
    """A MachineDeployment waits for a MachineSet, and a MachineSet for a Machine."""
    kind = "MachineSet" if owner.reference.kind == "MachineDeployment" else "Machine"
    reasons = [
        condition
        for type_ in ("ScalingUp", "RollingOut", "ScalingDown", "Available", "MachinesReady")
        if (condition := owner.condition(type_)) is not None and condition.message
    ]
    children = [child for child in facts.of(kind) if owner.owns(child) and not child.is_settled]
    for child in children:
        yield waits(child.reference, _CORE, reasons[0] if reasons else None)


def missing_templates(owner: Subject, facts: Facts) -> Iterator[Finding]:
    """A template of its Machines does not exist, or its provider is not installed."""
    for path in _TEMPLATES:
        reference = owner.refers_to(*path)
        if reference is not None and facts.lacks(reference):
            yield missing(reference, facts, ".".join(path), is_template=True)


def blocked_scaling(owner: Subject, facts: Facts) -> Iterator[Finding]:
    """Cluster API does not create Machines, because a check of the control plane fails."""
    condition = owner.condition("ScalingUp", "True")
    if condition is None or " blocked" not in condition.text:
        return
    control_plane = facts.cluster.refers_to("spec", "controlPlaneRef")
    found = facts.objects.get(control_plane) if control_plane else None
    because = [found.reference] if found and not found.is_settled else []
    # A control plane at rest has a version that does not fit the machines.
    responsible = _CORE if because else YOU
    yield reported(
        condition,
        "PreflightCheck",
        responsible,
        command=describe(owner.reference),
        because=because,
    )


def pool_parts(pool: Subject, facts: Facts) -> Iterator[Finding]:
    """A MachinePool waits for its bootstrap data, its infrastructure, or a Machine."""
    machines = [machine for machine in facts.of("Machine") if pool.owns(machine)]
    waiting = [machine for machine in machines if not machine.is_settled]
    if not waiting or len(machines) != at(pool.raw, "spec", "replicas"):
        yield from _parts(pool, facts, "template", "spec")
    for machine in waiting:
        yield waits(machine.reference, _CORE, None)


def machine_parts(machine: Subject, facts: Facts) -> Iterator[Finding]:
    """A Machine waits for its bootstrap data, or for its infrastructure."""
    if not machine.is_deleting:
        yield from _parts(machine, facts)


def _parts(owner: Subject, facts: Facts, *path: str) -> Iterator[Finding]:
    for field, type_ in (
        (("bootstrap", "configRef"), "BootstrapConfigReady"),
        (("infrastructureRef",), "InfrastructureReady"),
    ):
        finding = waiting_part(owner, facts, ("spec", *path, *field), type_)
        if finding is not None:
            yield finding
            return


def bootstrap_waits(config: Subject, facts: Facts) -> Iterator[Finding]:
    """Bootstrap data waits for the infrastructure, or for the control plane."""
    condition = config.unmet("DataSecretAvailable") or config.unmet("Ready")
    if condition is None:
        return
    text = condition.text.lower()
    for words, field in (("infrastructure", "infrastructureRef"), ("control", "controlPlaneRef")):
        reference = facts.cluster.refers_to("spec", field)
        if words in text and reference is not None:
            part = facts.objects.get(reference)
            if part is None or not part.is_settled:
                yield waits(reference, facts.responsible_for(reference), condition)
                return


def node(machine: Subject, _facts: Facts) -> Iterator[Finding]:
    """The Node is missing, or not healthy."""
    condition = machine.unmet("NodeHealthy") or machine.unmet("NodeReady")
    if condition is None or machine.is_deleting:
        return
    name = text_at(machine.raw, "status", "nodeRef", "name")
    about = Reference(kind="Node", name=name) if name else None
    command = _in_workload(f"describe node {name}") if name else describe(machine.reference)
    if _NO_NETWORK in condition.text:
        yield reported(
            condition,
            "PodNetworkMissing",
            "the administrator of the workload cluster",
            text=f"no pod network is installed: {condition.text}",
            about=about,
            command=command,
        )
    elif not name:
        yield reported(
            condition,
            "NodeMissing",
            "the kubelet of the machine",
            text=f"no Node has joined: {condition.text}",
            command=command,
        )
    else:
        cause = "KubeletStopped" if _STOPPED_KUBELET in condition.text else "NodeNotHealthy"
        yield reported(condition, cause, "the kubelet of the machine", about=about, command=command)


def machine_deletion(machine: Subject, facts: Facts) -> Iterator[Finding]:
    """A Machine that is being deleted waits for a hook, a drain, volumes, or its parts."""
    condition = machine.condition("Deleting", "True")
    if not machine.is_deleting or condition is None:
        return
    for step in _HOOKS:
        prefix = _HOOK_PREFIX.format(step)
        hooks = {k: v for k, v in machine.annotations.items() if k.startswith(prefix)}
        if hooks and condition.reason == f"WaitingFor{step.title().replace('-', '')}Hook":
            key, owner = next(iter(sorted(hooks.items())))
            yield reported(
                condition,
                "DeletionHook",
                owner or key.removeprefix(prefix),
                text=f"the deletion waits for the {step} hook {key.removeprefix(prefix)}",
                command=f"kubectl annotate {machine.reference.words} {key}-",
            )
            return
    if condition.reason == "DrainingNode":
        yield _drain(machine, condition.message) or reported(
            condition, "Drain", "the owners of the pods", command=describe(machine.reference)
        )
        return
    infrastructure = machine.refers_to("spec", "infrastructureRef")
    if (
        infrastructure
        and infrastructure in facts.objects
        and condition.reason == "WaitingForInfrastructureDeletion"
    ):
        yield waits(infrastructure, facts.responsible_for(infrastructure), condition)


def _drain(machine: Subject, message: str) -> Finding | None:
    condition = machine.condition("Deleting")
    name = text_at(machine.raw, "status", "nodeRef", "name")
    if condition is None:
        return None
    if found := _BUDGET.search(message):
        place = found["pods"].split(",")[0].partition("/")[0].strip()
        budget = Reference(
            group="policy", kind="PodDisruptionBudget", name=found["name"] or "?", namespace=place
        )
        return reported(
            condition,
            "DisruptionBudget",
            "the owner of the PodDisruptionBudget",
            text=f"the drain of Node {name} waits for {budget}, which protects {found['pods']}",
            about=budget,
            command=_in_workload(f"describe pdb {found['name'] or ''} -n {place}"),
        )
    if found := WEBHOOK.search(message):
        webhook = Reference(kind="Webhook", name=found["name"])
        return reported(
            condition,
            "WebhookFails",
            "the administrator of the webhook",
            text=f"the drain of Node {name} waits for the webhook {found['name']} of the workload"
            f" cluster, which does not answer: {condition.text}",
            about=webhook,
            command=_in_workload("get validatingwebhookconfigurations"),
        )
    if found := _STUCK_PODS.search(message):
        place, _, pod = found["pods"].split(",")[0].strip().partition("/")
        return reported(
            condition,
            "PodNotTerminating",
            "the owner of the pod",
            text=f"the drain of Node {name} waits for pods that do not end: {found['pods']}",
            about=Reference(kind="Pod", name=pod, namespace=place),
            command=_in_workload(f"describe pod {pod} -n {place}"),
        )
    return None


def _in_workload(arguments: str) -> str:
    return f"kubectl {arguments} # with the kubeconfig of the workload cluster"


def remediation(machine: Subject, facts: Facts) -> Iterator[Finding]:
    """A MachineHealthCheck finds the Machine unhealthy, and does not replace it."""
    condition = machine.condition("HealthCheckSucceeded", "False")
    if condition is None or machine.is_deleting:
        return
    for check in facts.of("MachineHealthCheck"):
        allowed = check.unmet("RemediationAllowed")
        targets = at(check.raw, "status", "targets")
        if allowed and isinstance(targets, list) and machine.reference.name in targets:
            yield reported(
                allowed,
                "RemediationStopped",
                YOU,
                text=f"{check.reference} does not replace it: {allowed.text}",
                about=check.reference,
            )
