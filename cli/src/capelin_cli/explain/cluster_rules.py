"""Rules for Clusters, ClusterClasses, extensions and control planes."""

import re
from collections.abc import Iterator
from typing import Final

from capelin.contract import ASLEEP, AVAILABLE, CONTROL_PLANE_LABEL

from capelin_cli.explain.common_rules import missing, refusals, waiting_part
from capelin_cli.explain.facts import (
    YOU,
    Facts,
    Finding,
    Subject,
    TimedCondition,
    at,
    describe,
    references_in,
    reported,
    text_at,
    waits,
)
from capelin_cli.explain.model import Reference
from capelin_cli.status.condition_messages import DELETION_HOOK, HookReason

_EXTENSION: Final = re.compile(
    r'(?:failed to call extension handlers? |extension handler |handler )"(?P<name>[^"]+)"'
)
_CLASS: Final = "ClusterClass is not successfully reconciled"
_PARTS: Final = (
    ("spec", "infrastructureRef", "InfrastructureReady"),
    ("spec", "controlPlaneRef", "ControlPlaneAvailable"),
)
_WORKERS: Final = ("MachineDeployment", "MachinePool")


def cluster_paused(cluster: Subject, _facts: Facts) -> Iterator[Finding]:
    """Its field `paused` makes all controllers ignore it and its objects."""
    if cluster.reference.kind == "Cluster" and at(cluster.raw, "spec", "paused") is True:
        yield Finding(
            "ClusterPaused",
            "the Cluster is paused, so all controllers ignore it and its objects",
            "the person or program that paused it",
            "spec.paused: true",
            command=f"kubectl patch {cluster.reference.words} --type=merge"
            """ -p '{"spec":{"paused":false}}'""",
        )


def asleep(cluster: Subject, facts: Facts) -> Iterator[Finding]:
    """Its control plane sleeps, so everything else waits."""
    reference = cluster.refers_to("spec", "controlPlaneRef")
    control_plane = facts.objects.get(reference) if reference else None
    available = control_plane.condition(AVAILABLE) if control_plane else None
    is_cluster = cluster.reference.kind == "Cluster" and not cluster.is_deleting
    if is_cluster and available is not None and available.reason == ASLEEP:
        name, namespace = cluster.reference.name, cluster.reference.namespace
        yield reported(
            available,
            "Asleep",
            "the person or schedule that put it to sleep",
            about=reference,
            command=f"capelin wake cluster {name} -n {namespace}",
        )


def hook_blocks(cluster: Subject, facts: Facts) -> Iterator[Finding]:
    """A policy of the lifecycle extension, or another extension, blocks a hook."""
    for reason in facts.hooks:
        is_deletion = reason.hook == DELETION_HOOK
        if reason.blocks and (
            reason.hook in facts.blocked or (is_deletion and cluster.is_deleting)
        ):
            yield _blocking(cluster, reason)


def _blocking(cluster: Subject, reason: HookReason) -> Finding:
    condition = cluster.condition("Deleting" if cluster.is_deleting else "TopologyReconciled")
    evidence = condition.evidence if condition else ""
    if not reason.policy:
        about = Reference(kind="Extension", name=reason.hook)
        text = f"an extension blocks the hook {reason.hook}: {reason.message}"
        return Finding(
            "ExtensionBlocks",
            text,
            "the administrator of the extension",
            evidence,
            condition.since if condition else None,
            "kubectl get extensionconfigs",
            about,
        )
    about = Reference(kind="LifecyclePolicy", name=reason.policy)
    approves = "approval.runtime." in reason.message
    text, _, approval = reason.text.partition(". To approve: ")
    return Finding(
        "PolicyFailed" if reason.failed else "AwaitsApproval" if approves else "PolicyBlocks",
        f"the hook {reason.hook} waits for {text}",
        "an approver" if approves else f"the owner of policy {reason.policy}",
        evidence,
        reason.since,
        approval or "capelin hooks ls",
        about,
    )


def topology(cluster: Subject, facts: Facts) -> Iterator[Finding]:
    """The desired topology has not reached the Cluster's objects."""
    reference = class_of(cluster)
    if reference in facts.missing:
        yield missing(reference, facts, "spec.topology.classRef")
        return
    condition = cluster.unmet("TopologyReconciled")
    if condition is None or condition.reason == "Paused" or facts.blocked:
        return
    is_of_class = condition.reason == "ClusterClassNotReconciled" or _CLASS in condition.text
    if is_of_class and reference is not None:
        yield reported(
            condition,
            "ClassNotReconciled",
            "Cluster API's core",
            because=[reference],
            command=describe(reference),
        )
    elif condition.reason == "ReconcileFailed":
        yield from _failed_topology(cluster, condition, facts)
    # Every other reason is an upgrade in progress: the parts explain it.


def _failed_topology(
    cluster: Subject, condition: TimedCondition, facts: Facts
) -> Iterator[Finding]:
    if found := _EXTENSION.search(condition.text):
        handler, _, name = found["name"].rpartition(".")
        extension = Reference(
            group="runtime.cluster.x-k8s.io", kind="ExtensionConfig", name=name or handler
        )
        yield reported(
            condition,
            "ExtensionFails",
            "the administrator of the extension",
            about=extension,
        )
    elif refused := list(refusals(cluster, condition, facts)):
        yield from refused
    else:
        yield reported(
            condition, "TopologyFails", YOU, command=f"kubectl edit {cluster.reference.words}"
        )


def parts(cluster: Subject, facts: Facts) -> Iterator[Finding]:
    """Its infrastructure, its control plane or its workers are not as desired."""
    if cluster.is_deleting:
        return
    for *path, type_ in _PARTS:
        if (finding := waiting_part(cluster, facts, path, type_)) is not None:
            yield finding
            if type_ == "InfrastructureReady":
                # The rest waits for it.
                return
    for kind in _WORKERS:
        for workers in facts.of(kind):
            if not workers.is_settled:
                reference = workers.reference
                yield waits(reference, facts.responsible_for(reference), None)


def awaits_endpoint(part: Subject, facts: Facts) -> Iterator[Finding]:
    """Infrastructure waits for the endpoint that the control plane sets."""
    condition = part.unmet("Ready")
    control_plane = facts.cluster.refers_to("spec", "controlPlaneRef")
    if (
        condition is not None
        and condition.reason == "WaitingForControlPlaneEndpoint"
        and control_plane is not None
    ):
        if facts.lacks(control_plane):
            yield missing(control_plane, facts, "spec.controlPlaneRef")
            return
        yield waits(control_plane, facts.responsible_for(control_plane), condition)


def unreachable(cluster: Subject, facts: Facts) -> Iterator[Finding]:
    """Core cannot reach the API of the workload cluster, although its parts are as desired."""
    if any(parts(cluster, facts)):
        return
    condition = cluster.unmet("RemoteConnectionProbe")
    initialized = at(cluster.raw, "status", "initialization", "controlPlaneInitialized")
    if condition is not None and initialized is True and not cluster.is_deleting:
        yield reported(
            condition,
            "ApiUnreachable",
            "the administrator of the network",
            text=f"Cluster API's core cannot reach the API of the cluster: {condition.text}",
            command=f"clusterctl get kubeconfig {cluster.reference.name}"
            f" -n {cluster.reference.namespace}",
        )


def deletion(cluster: Subject, facts: Facts) -> Iterator[Finding]:
    """It is deleted after its objects."""
    if not cluster.is_deleting:
        return
    left = [
        subject.reference
        for subject in facts.objects.values()
        if subject.is_deleting and subject.reference.kind not in {"Cluster", "MachineSet"}
    ]
    order = ("Machine", "MachinePool", "MachineDeployment")
    left.sort(key=lambda key: (order.index(key.kind) if key.kind in order else 9, key.name))
    condition = cluster.condition("Deleting")
    text = condition.text if condition and condition.message else "it is being deleted"
    if left:
        yield Finding(
            "Waits",
            text,
            "Cluster API's core",
            condition.evidence if condition else "",
            command=describe(left[0]),
            because=left,
        )


def control_plane_machines(control_plane: Subject, facts: Facts) -> Iterator[Finding]:
    """A control plane that consists of Machines waits for one of them."""
    for machine in facts.of("Machine"):
        if CONTROL_PLANE_LABEL in machine.labels and not machine.is_settled:
            condition = next(
                (
                    each
                    for type_ in ("RollingOut", "ScalingUp", "Available")
                    if (each := control_plane.condition(type_)) and each.message
                ),
                None,
            )
            responsible = facts.responsible_for(control_plane.reference)
            yield waits(machine.reference, responsible, condition)


def class_of(cluster: Subject) -> Reference | None:
    """The ClusterClass of a Cluster with a topology."""
    name = text_at(cluster.raw, "spec", "topology", "classRef", "name")
    if not name:
        return None
    namespace = text_at(cluster.raw, "spec", "topology", "classRef", "namespace")
    return Reference(
        group=cluster.reference.group,
        kind="ClusterClass",
        name=name,
        namespace=namespace or cluster.reference.namespace,
    )


def templates_of(cluster_class: Subject) -> Iterator[tuple[str, Reference]]:
    """The templates that a ClusterClass names, by their fields."""
    for path, reference in references_in(cluster_class.raw):
        if path.endswith(".templateRef"):
            yield path, reference


def class_templates(cluster_class: Subject, facts: Facts) -> Iterator[Finding]:
    """A template of a ClusterClass does not exist."""
    for field, reference in templates_of(cluster_class):
        if facts.lacks(reference):
            yield missing(reference, facts, field, is_template=True)


def class_reconciled(cluster_class: Subject, _facts: Facts) -> Iterator[Finding]:
    """A ClusterClass reports errors in its templates or variables."""
    for type_ in ("VariablesReady", "RefVersionsUpToDate"):
        condition = cluster_class.unmet(type_)
        if condition is not None:
            yield reported(
                condition,
                "ClassFails",
                "the author of the ClusterClass",
                command=describe(cluster_class.reference),
            )
