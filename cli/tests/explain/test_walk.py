"""Chains from a waiting Cluster to the object that causes the wait."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from capelin.contract import ASLEEP, AVAILABLE, CONTROL_PLANE_LABEL, PAUSED_ANNOTATION
from capelin_cli.explain.facts import Controller, Facts, Subject, Warned, references_in
from capelin_cli.explain.model import Explanation, Reference
from capelin_cli.explain.walk import explain
from capelin_cli.status.condition_messages import HookReason

CAPI = "cluster.x-k8s.io"
INFRASTRUCTURE = f"infrastructure.{CAPI}"
SINCE = "2030-01-01T00:00:00Z"
DELETED: dict[str, Any] = {"deletionTimestamp": SINCE}


def condition(type_: str, status: str, message: str, reason: str = "Because") -> dict[str, str]:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": SINCE,
    }


def owned_by(*names: str) -> list[dict[str, str]]:
    """References to owners."""
    return [
        {"apiVersion": f"{CAPI}/v1", "kind": "Owner", "name": name, "uid": f"uid-{name}"}
        for name in names
    ]


def made(
    kind: str,
    name: str,
    *conditions: Mapping[str, Any],
    spec: Mapping[str, Any] | None = None,
    group: str = CAPI,
    owner: str = "",
    status: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> Subject:
    return Subject(
        {
            "apiVersion": f"{group}/v1",
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-{name}",
                "ownerReferences": owned_by(owner) if owner else [],
                **metadata,
            },
            "spec": dict(spec or {}),
            "status": {"conditions": list(conditions), **(status or {})},
        }
    )


def refers(field: str, kind: str, name: str, group: str = INFRASTRUCTURE) -> dict[str, Any]:
    return {field: {"apiGroup": group, "kind": kind, "name": name}}


def cluster(*conditions: Mapping[str, Any], **more: Any) -> Subject:
    return made("Cluster", "prod", *conditions, **more)


def explained(
    found: Subject, *others: Subject, waits: str | None = "it waits", **more: Any
) -> Explanation:
    objects = {subject.reference: subject for subject in (found, *others)}
    return explain(Facts(found, waits, objects, **more))


def causes(explanation: Explanation) -> list[tuple[str, str]]:
    return [(chain.cause, str(chain.object)) for chain in explanation.chains]


def machine(*conditions: Mapping[str, Any], name: str = "m", **more: Any) -> Subject:
    return made("Machine", name, *conditions, **more)


def workers(*machines: Subject, condition_: Mapping[str, Any] | None = None) -> list[Subject]:
    waiting = condition_ or condition("Available", "False", "0 available replicas, 1 required")
    deployment = made("MachineDeployment", "md", waiting)
    machine_set = made("MachineSet", "ms", waiting, owner="md")
    return [deployment, machine_set, *machines]


def test_a_ready_cluster_has_no_chains() -> None:
    explanation = explained(cluster(condition("Available", "True", "")), waits=None)
    assert (explanation.state, explanation.chains) == ("Ready", [])


def test_a_ready_cluster_reports_its_pause() -> None:
    explanation = explained(cluster(spec={"paused": True}), waits=None)
    assert explanation.state == "Paused"
    (chain,) = explanation.chains
    assert chain.cause == "ClusterPaused"
    assert chain.command == (
        "kubectl patch cluster.cluster.x-k8s.io prod -n default --type=merge"
        """ -p '{"spec":{"paused":false}}'"""
    )


def test_a_pause_hides_other_causes() -> None:
    broken = cluster(condition("InfrastructureReady", "False", "no"), spec={"paused": True})
    assert causes(explained(broken)) == [("ClusterPaused", "Cluster prod")]


def test_a_control_plane_that_sleeps_hides_other_causes() -> None:
    group = "controlplane.cluster.x-k8s.io"
    sleeping = made(
        "CapelinControlPlane", "prod", condition(AVAILABLE, "False", "", ASLEEP), group=group
    )
    broken = cluster(
        condition("InfrastructureReady", "False", "no"),
        spec=refers("controlPlaneRef", "CapelinControlPlane", "prod", group),
    )
    explanation = explained(broken, sleeping)
    assert explanation.state == "Asleep"
    assert causes(explanation) == [("Asleep", "CapelinControlPlane prod")]
    assert explanation.chains[0].command == "capelin wake cluster prod -n default"


@pytest.mark.parametrize(
    ("message", "command"),
    [
        (
            "waits for approval by ops. To approve: kubectl annotate cluster prod a=1:ops",
            "kubectl annotate cluster prod a=1:ops",
        ),
        ("the Job runs", "capelin hooks ls"),
    ],
)
def test_the_command_for_a_policy(message: str, command: str) -> None:
    reason = HookReason("BeforeClusterUpgrade", message, "p")
    blocked = frozenset({"BeforeClusterUpgrade"})
    (chain,) = explained(cluster(), hooks=[reason], blocked=blocked).chains
    assert chain.command == command
    assert "To approve" not in chain.links[0].text


@pytest.mark.parametrize(
    ("reason", "cause", "object_", "responsible"),
    [
        (
            HookReason("BeforeClusterUpgrade", "approve with approval.runtime.x/p=1:USER", "p"),
            "AwaitsApproval",
            "LifecyclePolicy p",
            "an approver",
        ),
        (
            HookReason("BeforeClusterUpgrade", "the Job runs", "p"),
            "PolicyBlocks",
            "LifecyclePolicy p",
            "the owner of policy p",
        ),
        (
            HookReason("BeforeClusterUpgrade", "exit code 1", "p", failed=True),
            "PolicyFailed",
            "LifecyclePolicy p",
            "the owner of policy p",
        ),
        (
            HookReason("BeforeClusterUpgrade", "come later"),
            "ExtensionBlocks",
            "Extension BeforeClusterUpgrade",
            "the administrator of the extension",
        ),
    ],
)
def test_a_hook_blocks(reason: HookReason, cause: str, object_: str, responsible: str) -> None:
    found = cluster(condition("TopologyReconciled", "False", "Following hooks are blocking"))
    explanation = explained(found, hooks=[reason], blocked=frozenset({reason.hook}))
    assert causes(explanation) == [(cause, object_)]
    assert explanation.chains[0].responsible == responsible


def test_a_policy_that_does_not_block_explains_nothing() -> None:
    ignored = HookReason("BeforeClusterUpgrade", "no", "p", failed=True, blocks=False)
    found = cluster(condition("Available", "False", "not available"))
    assert causes(explained(found, hooks=[ignored])) == [("Reported", "Cluster prod")]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            'failed to call extension handler "generate-patches.tuna": Post "https://x": refused',
            ("ExtensionFails", "ExtensionConfig tuna"),
        ),
        (
            'failed calling webhook "validation.machine.x": failed to call webhook: refused',
            ("WebhookFails", "Webhook validation.machine.x"),
        ),
        (
            'admission webhook "vpool.x" denied the request: too many',
            ("Denied", "Webhook vpool.x"),
        ),
        (
            "ValidatingAdmissionPolicy 'names' with binding 'b' denied request: no",
            ("Denied", "ValidatingAdmissionPolicy names"),
        ),
        ("variable replicas is not defined", ("TopologyFails", "Cluster prod")),
    ],
)
def test_a_topology_that_fails(message: str, expected: tuple[str, str]) -> None:
    found = cluster(condition("TopologyReconciled", "False", message, "ReconcileFailed"))
    assert causes(explained(found)) == [expected]


def test_a_class_that_is_not_reconciled() -> None:
    found = cluster(
        condition("TopologyReconciled", "False", "ClusterClass …", "ClusterClassNotReconciled"),
        spec={"topology": {"classRef": {"name": "tuna"}}},
    )
    broken = made("ClusterClass", "tuna", condition("VariablesReady", "False", "no schema"))
    assert causes(explained(found, broken)) == [("ClassFails", "ClusterClass tuna")]


def test_missing_infrastructure_explains_the_rest() -> None:
    found = cluster(
        condition("InfrastructureReady", "False", "TunaCluster does not exist"),
        condition("ControlPlaneAvailable", "False", "Waiting for the infrastructure"),
        spec={
            **refers("infrastructureRef", "TunaCluster", "prod"),
            **refers("controlPlaneRef", "TunaControlPlane", "prod", f"controlplane.{CAPI}"),
        },
    )
    reference = found.refers_to("spec", "infrastructureRef")
    assert reference is not None
    absent = frozenset({reference})
    explanation = explained(found, missing=absent)
    assert causes(explanation)[0] == ("ObjectMissing", "TunaCluster prod")
    explanation = explained(found, unserved=absent)
    assert causes(explanation)[0] == ("KindNotServed", "TunaCluster prod")


def test_a_controller_that_does_not_run_explains_its_objects() -> None:
    found = cluster(
        condition("InfrastructureReady", "False", "not ready"),
        spec=refers("infrastructureRef", "TunaCluster", "prod"),
    )
    infrastructure = made("TunaCluster", "prod", group=INFRASTRUCTURE)
    process = Reference(kind="Process", name="infrastructure-tuna")
    controller = Controller("infrastructure-tuna", process, runs=False, text="it has ended")
    explanation = explained(
        found,
        infrastructure,
        controllers=[controller],
        labels={(INFRASTRUCTURE, "TunaCluster"): "infrastructure-tuna"},
    )
    (chain,) = explanation.chains
    assert [str(link.object) for link in chain.links] == [
        "Cluster prod",
        "TunaCluster prod",
        "Process infrastructure-tuna",
    ]
    assert chain.cause == "ControllerNotRunning"
    assert "it has ended" in chain.links[-1].text


def test_an_extension_blocks_the_start_of_core() -> None:
    extension = made(
        "ExtensionConfig",
        "tuna",
        condition("Discovered", "False", "connection refused"),
        group=f"runtime.{CAPI}",
    )
    core = Controller("cluster-api", Reference(kind="Process", name="cluster-api"), runs=False)
    explanation = explained(
        cluster(), extension, controllers=[core], labels={(CAPI, "Cluster"): "cluster-api"}
    )
    assert causes(explanation) == [("ExtensionBlocksCore", "ExtensionConfig tuna")]


def test_a_provider_reports_an_error() -> None:
    found = cluster(
        condition("InfrastructureReady", "False", "quota"),
        spec=refers("infrastructureRef", "TunaCluster", "prod"),
    )
    infrastructure = made(
        "TunaCluster",
        "prod",
        condition("Ready", "False", "Loadbalancer: quota exceeded"),
        condition("LoadBalancerReady", "False", "quota exceeded: 3 of 3 addresses"),
        group=INFRASTRUCTURE,
    )
    (chain,) = explained(found, infrastructure).chains
    assert (chain.cause, str(chain.object)) == ("Reported", "TunaCluster prod")
    assert chain.links[-1].text == "quota exceeded: 3 of 3 addresses"
    assert chain.links[-1].evidence == "status.conditions[LoadBalancerReady]: False, Because"
    assert chain.links[-1].since == datetime(2030, 1, 1, tzinfo=UTC)


BUDGET = (
    "Drain not completed yet (started at 2030-01-01T00:00:00Z):\n* Pods shop/web-1, shop/web-2:"
    " cannot evict pod as it would violate the pod's disruption budget. The disruption budget web"
    " needs 2 healthy pods and has 2 currently"
)


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (
            machine(condition("Deleting", "True", BUDGET, "DrainingNode"), owner="ms", **DELETED),
            ("DisruptionBudget", "PodDisruptionBudget web"),
        ),
        (
            machine(
                condition(
                    "Deleting",
                    "True",
                    "Drain not completed yet:\n* Pod a/b: deletionTimestamp set, but still not",
                    "DrainingNode",
                ),
                owner="ms",
                **DELETED,
            ),
            ("PodNotTerminating", "Pod b"),
        ),
        (
            machine(
                condition("Deleting", "True", "waits", "WaitingForPreDrainHook"),
                owner="ms",
                annotations={"pre-drain.delete.hook.machine.cluster.x-k8s.io/csi": "csi-team"},
                **DELETED,
            ),
            ("DeletionHook", "Machine m"),
        ),
        (
            machine(
                condition("NodeHealthy", "False", "* Node.Ready: cni plugin not initialized"),
                owner="ms",
                status={"nodeRef": {"name": "n"}},
            ),
            ("PodNetworkMissing", "Node n"),
        ),
        (
            machine(
                condition(
                    "NodeHealthy",
                    "Unknown",
                    "* Node.Ready: Kubelet stopped posting node status.",
                ),
                owner="ms",
                status={"nodeRef": {"name": "n"}},
            ),
            ("KubeletStopped", "Node n"),
        ),
        (
            machine(
                condition("NodeHealthy", "Unknown", "Waiting for a Node with spec.providerID x"),
                condition("Ready", "False", "no Node"),
                owner="ms",
            ),
            ("NodeMissing", "Machine m"),
        ),
        (machine(owner="ms"), ("Unknown", "Machine m")),
    ],
)
def test_workers_wait_for_a_machine(broken: Subject, expected: tuple[str, str]) -> None:
    explanation = explained(cluster(), *workers(broken))
    assert causes(explanation) == [expected]
    kinds = [link.object.kind for link in explanation.chains[0].links]
    assert kinds[:4] == ["Cluster", "MachineDeployment", "MachineSet", "Machine"]


def test_the_owner_of_a_deletion_hook_is_responsible() -> None:
    key = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/storage"
    waiting = condition("Deleting", "True", "waits", "WaitingForPreTerminateHook")
    broken = machine(waiting, owner="ms", annotations={key: "storage-team"}, **DELETED)
    (chain,) = explained(cluster(), *workers(broken)).chains
    assert chain.responsible == "storage-team"
    assert chain.command.endswith(f"{key}-")


def test_a_machine_waits_for_its_parts() -> None:
    config = made(
        "KubeadmConfig",
        "boot",
        condition("DataSecretAvailable", "False", 'Secrets "default/files" not found'),
        group=f"bootstrap.{CAPI}",
    )
    broken = machine(
        condition("BootstrapConfigReady", "False", "no data"),
        owner="ms",
        spec={
            "bootstrap": refers("configRef", "KubeadmConfig", "boot", f"bootstrap.{CAPI}"),
            **refers("infrastructureRef", "TunaMachine", "m"),
        },
    )
    explanation = explained(cluster(), *workers(broken), config)
    assert causes(explanation) == [("SecretMissing", "Secret files")]


def test_bootstrap_data_waits_for_the_control_plane() -> None:
    waiting = "Waiting for the control plane to be initialized"
    control_plane = made(
        "TunaControlPlane",
        "prod",
        condition("Available", "False", "no etcd"),
        group=f"controlplane.{CAPI}",
    )
    config = made(
        "KubeadmConfig",
        "boot",
        condition("DataSecretAvailable", "False", waiting),
        group=f"bootstrap.{CAPI}",
    )
    found = cluster(
        spec=refers("controlPlaneRef", "TunaControlPlane", "prod", f"controlplane.{CAPI}")
    )
    broken = machine(
        condition("BootstrapConfigReady", "False", waiting),
        owner="ms",
        spec={"bootstrap": refers("configRef", "KubeadmConfig", "boot", f"bootstrap.{CAPI}")},
    )
    explanation = explained(found, control_plane, *workers(broken), config)
    assert causes(explanation) == [("Reported", "TunaControlPlane prod")]


TEMPLATE = Reference(group=INFRASTRUCTURE, kind="TunaTemplate", name="small", namespace="default")


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({"missing": frozenset({TEMPLATE})}, "TemplateMissing"),
        ({"unserved": frozenset({TEMPLATE})}, "KindNotServed"),
    ],
)
def test_a_missing_template_blocks_workers(facts: Mapping[str, Any], cause: str) -> None:
    blocked = condition("ScalingUp", "True", "Scaling up from 0 to 1 is blocked")
    template = refers("infrastructureRef", "TunaTemplate", "small")
    deployment = made("MachineDeployment", "md", blocked, spec={"template": {"spec": template}})
    explanation = explained(cluster(), deployment, **facts)
    assert causes(explanation) == [(cause, "TunaTemplate small")]


def test_workers_newer_than_the_control_plane_are_for_you() -> None:
    blocked = condition("ScalingUp", "True", "Scaling up from 0 to 1 is blocked because of a skew")
    explanation = explained(cluster(), made("MachineDeployment", "md", blocked))
    assert causes(explanation) == [("PreflightCheck", "MachineDeployment md")]
    assert explanation.chains[0].responsible == "you"


def test_events_show_a_refused_machine() -> None:
    found = workers()
    quota = Warned('FailedCreate: machines "m" is forbidden: exceeded quota: small, requested: 1')
    explanation = explained(cluster(), *found, warnings={found[1].reference: quota})
    assert causes(explanation) == [("QuotaExceeded", "ResourceQuota small")]


def test_a_condition_of_the_former_contract_shows_a_refused_machine() -> None:
    message = 'failed to apply Machine: machines "m" is forbidden: exceeded quota: small, requested'
    former = {"v1beta1": {"conditions": [condition("Ready", "False", message)]}}
    deployment, machine_set = workers()
    machine_set.raw["status"]["deprecated"] = former
    explanation = explained(cluster(), deployment, machine_set)
    assert causes(explanation) == [("QuotaExceeded", "ResourceQuota small")]


def test_a_missing_part_of_a_machine_hides_its_missing_node() -> None:
    part = made(
        "TunaMachine", "m", condition("Ready", "False", "no capacity"), group=INFRASTRUCTURE
    )
    broken = machine(
        condition("InfrastructureReady", "False", "no capacity"),
        condition("NodeHealthy", "Unknown", "Waiting for TunaMachine"),
        owner="ms",
        spec=refers("infrastructureRef", "TunaMachine", "m"),
    )
    explanation = explained(cluster(), *workers(broken), part)
    assert causes(explanation) == [("Reported", "TunaMachine m")]


def test_missing_infrastructure_hides_an_unreachable_api() -> None:
    found = cluster(
        condition("RemoteConnectionProbe", "False", "not established"),
        condition("InfrastructureReady", "False", "missing"),
        spec=refers("infrastructureRef", "TunaCluster", "prod"),
        status={"initialization": {"controlPlaneInitialized": True}},
    )
    reference = found.refers_to("spec", "infrastructureRef")
    assert reference is not None
    absent = frozenset({reference})
    assert causes(explained(found, missing=absent)) == [("ObjectMissing", "TunaCluster prod")]
    reachable = cluster(condition("RemoteConnectionProbe", "False", "not established"))
    reachable.raw["status"]["initialization"] = {"controlPlaneInitialized": True}
    assert causes(explained(reachable)) == [("ApiUnreachable", "Cluster prod")]


def test_machines_of_a_control_plane() -> None:
    found = cluster(
        condition("ControlPlaneAvailable", "False", "1 of 3"),
        spec=refers("controlPlaneRef", "KubeadmControlPlane", "prod", f"controlplane.{CAPI}"),
    )
    control_plane = made(
        "KubeadmControlPlane",
        "prod",
        condition("Available", "False", "1 of 3 Machines"),
        group=f"controlplane.{CAPI}",
    )
    broken = machine(
        condition("NodeHealthy", "False", "* Node.Ready: disk pressure"),
        labels={CONTROL_PLANE_LABEL: ""},
        status={"nodeRef": {"name": "n"}},
    )
    assert causes(explained(found, control_plane, broken)) == [("NodeNotHealthy", "Node n")]


def test_a_remediation_stopped() -> None:
    check = made(
        "MachineHealthCheck",
        "mhc",
        condition("RemediationAllowed", "False", "2 of 2 are unhealthy"),
        status={"targets": ["m"]},
    )
    broken = machine(condition("HealthCheckSucceeded", "False", "not ready"), owner="ms")
    explanation = explained(cluster(), *workers(broken), check)
    assert causes(explanation) == [("RemediationStopped", "MachineHealthCheck mhc")]


def test_a_deletion_waits_for_a_foreign_finalizer() -> None:
    found = cluster(condition("Deleting", "True", "* TunaCluster prod"), **DELETED)
    left = made(
        "TunaCluster", "prod", group=INFRASTRUCTURE, finalizers=["example.com/keep"], **DELETED
    )
    (chain,) = explained(found, left).chains
    assert (chain.cause, str(chain.object)) == ("Finalizer", "TunaCluster prod")
    assert "example.com/keep" in chain.links[-1].text
    assert chain.responsible == "the owner of the finalizer example.com/keep"


def test_a_deletion_waits_for_its_controller() -> None:
    found = cluster(condition("Deleting", "True", "* TunaCluster prod"), **DELETED)
    own = "tunacluster.infrastructure.cluster.x-k8s.io"
    left = made("TunaCluster", "prod", group=INFRASTRUCTURE, finalizers=[own], **DELETED)
    (chain,) = explained(found, left).chains
    assert (chain.cause, chain.responsible) == ("Finalizer", "the controller of TunaCluster")


def test_a_paused_part_explains_the_cluster() -> None:
    pool = made(
        "MachinePool",
        "mp",
        condition("Available", "False", "old"),
        annotations={PAUSED_ANNOTATION: ""},
    )
    assert causes(explained(cluster(), pool)) == [("Paused", "MachinePool mp")]


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        (1, [("Reported", "TunaMachine m")]),
        (2, [("Reported", "TunaMachinePool mp"), ("Reported", "TunaMachine m")]),
    ],
)
def test_the_infrastructure_of_a_pool_explains_only_missing_machines(
    replicas: int, expected: list[tuple[str, str]]
) -> None:
    unready = condition("Ready", "False", "no power")
    infrastructure = made("TunaMachinePool", "mp", unready, group=INFRASTRUCTURE)
    template = refers("infrastructureRef", "TunaMachinePool", "mp")
    pool = made(
        "MachinePool",
        "mp",
        condition("Available", "False", "0 of 1"),
        spec={"replicas": replicas, "template": {"spec": template}},
    )
    broken = machine(
        condition("InfrastructureReady", "False", "no power"),
        owner="mp",
        spec=refers("infrastructureRef", "TunaMachine", "m"),
    )
    part = made("TunaMachine", "m", unready, group=INFRASTRUCTURE)
    explanation = explained(cluster(), pool, infrastructure, broken, part)
    assert causes(explanation) == expected


def test_a_class_names_its_missing_template() -> None:
    found = cluster(
        condition("TopologyReconciled", "False", "ClusterClass is not successfully reconciled"),
        spec={"topology": {"classRef": {"name": "tuna"}}},
    )
    template = {"apiVersion": f"{INFRASTRUCTURE}/v1", "kind": "TunaTemplate", "name": "small"}
    classes = [{"infrastructure": {"templateRef": template}}]
    broken = made("ClusterClass", "tuna", spec={"workers": {"machineDeployments": classes}})
    explanation = explained(found, broken, missing=frozenset({TEMPLATE}))
    assert causes(explanation) == [("TemplateMissing", "TunaTemplate small")]
    link = explanation.chains[0].links[-1]
    assert link.evidence == "spec.workers.machineDeployments[0].infrastructure.templateRef"


def test_a_webhook_that_does_not_answer_stops_a_drain() -> None:
    message = (
        "Drain not completed yet: Pod default/web: failed to evict Pod, Internal error occurred:"
        ' failed calling webhook "evictions.x": failed to call webhook: refused'
    )
    draining = machine(
        condition("Deleting", "True", message, "DrainingNode"), owner="ms", **DELETED
    )
    explanation = explained(cluster(), *workers(draining))
    assert causes(explanation) == [("WebhookFails", "Webhook evictions.x")]


def test_one_cause_appears_once() -> None:
    machines: Sequence[Subject] = [
        machine(
            condition("Deleting", "True", BUDGET, "DrainingNode"),
            name=name,
            owner="ms",
            **DELETED,
        )
        for name in ("m1", "m2")
    ]
    assert causes(explained(cluster(), *workers(*machines))) == [
        ("DisruptionBudget", "PodDisruptionBudget web")
    ]


def test_unreadable_conditions_and_references_explain_nothing() -> None:
    odd = Subject(
        {
            "apiVersion": 7,
            "kind": "MachinePool",
            "metadata": {"name": "mp", "namespace": "default"},
            "spec": {"template": [1]},
            "status": {"conditions": [1, {"type": "Ready"}, {"status": []}]},
        }
    )
    assert causes(explained(cluster(), odd)) == [("Unknown", "MachinePool mp")]


def test_references_in_a_deep_spec() -> None:
    value: dict[str, Any] = refers("ref", "TunaTemplate", "small")
    for _ in range(2000):
        value = {"inner": [value]}
    found = list(references_in({"metadata": {"namespace": "default"}, "spec": value}))
    assert [reference for _, reference in found] == [TEMPLATE]
