"""Each rule by itself: the objects that it explains, and those that it does not."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from capelin.contract import CONTROL_PLANE_LABEL
from capelin_cli.explain import cluster_rules, common_rules, machine_rules
from capelin_cli.explain.facts import Controller, Facts, Rule, Subject, Warned
from capelin_cli.explain.model import Reference
from capelin_cli.status.condition_messages import DELETION_HOOK, HookReason

from .test_walk import BUDGET, CAPI, DELETED, INFRASTRUCTURE, condition, made, owned_by, refers

BOOTSTRAP, CONTROL_PLANE, RUNTIME = (
    f"{group}.{CAPI}" for group in ("bootstrap", "controlplane", "runtime")
)
# Controllers describe good states as well. An old refusal explains nothing any more.
AVAILABLE = condition("Available", "True", "exceeded quota: small, but not any more")
NO_ACTIVITY = [
    condition(type_, "False", "it is done")
    for type_ in ("Deleting", "RollingOut", "Remediating", "ScalingUp", "ScalingDown")
]
INFRASTRUCTURE_REF = refers("infrastructureRef", "CapelinCluster", "prod")
CONTROL_PLANE_REF = refers("controlPlaneRef", "KubeadmControlPlane", "prod", CONTROL_PLANE)
CONFIG_REF = {"bootstrap": refers("configRef", "KubeadmConfig", "m", BOOTSTRAP)}
PARTS = {**CONFIG_REF, **refers("infrastructureRef", "TunaMachine", "m")}


def settled(
    kind: str, name: str, *conditions: Mapping[str, Any], group: str = CAPI, **more: Any
) -> Subject:
    """An object that is as desired, with a finalizer."""
    finalizers = [f"{kind.lower()}.{group}"]
    every = (AVAILABLE, *NO_ACTIVITY, *conditions)
    return made(kind, name, *every, group=group, finalizers=finalizers, **more)


CLUSTER = settled(
    "Cluster",
    "prod",
    *(
        condition(type_, "True", "fine")
        for type_ in (
            "TopologyReconciled",
            "InfrastructureReady",
            "ControlPlaneAvailable",
            "RemoteConnectionProbe",
        )
    ),
    spec={"topology": {"classRef": {"name": "tuna"}}, **INFRASTRUCTURE_REF, **CONTROL_PLANE_REF},
    status={"initialization": {"controlPlaneInitialized": True}},
)
INFRA_CLUSTER = settled(
    "CapelinCluster", "prod", condition("Ready", "True", "fine"), group=INFRASTRUCTURE
)
KUBEADM = settled("KubeadmControlPlane", "prod", group=CONTROL_PLANE)
CONFIG = settled(
    "KubeadmConfig", "m", condition("DataSecretAvailable", "True", "fine"), group=BOOTSTRAP
)
TEMPLATES = {"template": {"spec": PARTS}}
DEPLOYMENT = settled("MachineDeployment", "md", spec=TEMPLATES)
MACHINE_SET = settled("MachineSet", "ms", owner="md", spec=TEMPLATES)
MACHINE_POOL = settled(
    "MachinePool", "mp", spec={"replicas": 1, **TEMPLATES}, status={"readyReplicas": 1}
)
MACHINE = settled(
    "Machine",
    "m",
    *(
        condition(type_, "True", "fine")
        for type_ in (
            "BootstrapConfigReady",
            "InfrastructureReady",
            "NodeHealthy",
            "HealthCheckSucceeded",
        )
    ),
    ownerReferences=owned_by("ms", "mp"),
    spec=PARTS,
    labels={CONTROL_PLANE_LABEL: ""},
)
TUNA_MACHINE = settled("TunaMachine", "m", group=INFRASTRUCTURE)
HEALTH_CHECK = settled(
    "MachineHealthCheck",
    "mhc",
    condition("RemediationAllowed", "True", "fine"),
    status={"targets": ["m"]},
)
CLASS = settled("ClusterClass", "tuna", condition("VariablesReady", "True", "fine"))
EXTENSION = settled("ExtensionConfig", "ext", condition("Discovered", "True", "ok"), group=RUNTIME)
WORLD = (
    *(CLUSTER, INFRA_CLUSTER, KUBEADM, CONFIG, DEPLOYMENT, MACHINE_SET, MACHINE_POOL, MACHINE),
    *(TUNA_MACHINE, HEALTH_CHECK, CLASS, EXTENSION),
)
"""A Cluster that is as desired, with an object of every kind."""
EVERYWHERE: Sequence[Rule] = (
    cluster_rules.cluster_paused,
    cluster_rules.asleep,
    common_rules.paused,
    common_rules.without_controller,
    common_rules.refused,
    common_rules.foreign_finalizer,
    common_rules.own_finalizer,
    common_rules.controllers_word,
)
OF_KINDS: Sequence[tuple[Subject, Rule]] = (
    (CLUSTER, cluster_rules.hook_blocks),
    (CLUSTER, cluster_rules.topology),
    (CLUSTER, cluster_rules.deletion),
    (CLUSTER, cluster_rules.parts),
    (CLUSTER, cluster_rules.unreachable),
    (INFRA_CLUSTER, cluster_rules.awaits_endpoint),
    (CLASS, cluster_rules.class_templates),
    (CLASS, cluster_rules.class_reconciled),
    (KUBEADM, cluster_rules.control_plane_machines),
    (CONFIG, machine_rules.bootstrap_waits),
    (DEPLOYMENT, machine_rules.missing_templates),
    (DEPLOYMENT, machine_rules.blocked_scaling),
    (DEPLOYMENT, machine_rules.owned),
    (MACHINE_SET, machine_rules.owned),
    (MACHINE_POOL, machine_rules.pool_parts),
    (MACHINE, machine_rules.machine_deletion),
    (MACHINE, machine_rules.machine_parts),
    (MACHINE, machine_rules.remediation),
    (MACHINE, machine_rules.node),
)


def facts(*changed: Subject, **more: Any) -> Facts:
    """The settled world with other objects, or with some in their place."""
    objects = {subject.reference: subject for subject in (*WORLD, *changed)}
    controllers = [Controller("all", Reference(kind="Process", name="all"), runs=True)]
    known: dict[str, Any] = {
        "controllers": controllers,
        "labels": {(key.group, key.kind): "all" for key in objects},
        **more,
    }
    return Facts(objects[CLUSTER.reference], None, objects, **known)


def found(rule: Rule, subject: Subject, reading: Facts | None = None) -> list[tuple[str, str]]:
    """The causes that a rule finds, each with the object that explains it."""
    reading = reading or facts(subject)
    return [
        (finding.cause, str((*finding.because, finding.about or subject.reference)[0]))
        for finding in rule(subject, reading)
    ]


def changed(subject: Subject, *conditions: Mapping[str, Any], **metadata: Any) -> Subject:
    """The same object with other conditions and metadata."""
    raw = subject.raw
    types = {it["type"] for it in conditions}
    kept = [it for it in raw["status"]["conditions"] if it["type"] not in types]
    return Subject(
        {
            **raw,
            "metadata": {**raw["metadata"], **metadata},
            "status": {**raw["status"], "conditions": [*kept, *conditions]},
        }
    )


UNAVAILABLE = condition("Available", "False", "not yet")


@pytest.mark.parametrize("subject", WORLD, ids=lambda subject: subject.reference.kind)
def test_an_object_as_desired_has_no_cause(subject: Subject) -> None:
    assert subject.is_settled
    rules = (*EVERYWHERE, *(rule for other, rule in OF_KINDS if other is subject))
    assert [(rule, found(rule, subject)) for rule in rules if found(rule, subject)] == []


def without_finalizers(subject: Subject) -> Subject:
    return changed(subject, finalizers=[], **DELETED)


UNHEALTHY = condition("HealthCheckSucceeded", "False", "not ready")
STOPPED = changed(HEALTH_CHECK, condition("RemediationAllowed", "False", "2 of 2 are unhealthy"))
BLOCKING = HookReason("BeforeClusterUpgrade", "come later")
DELETING = replace(BLOCKING, hook=DELETION_HOOK)
BLOCKED = frozenset({BLOCKING.hook})


@pytest.mark.parametrize(
    ("rule", "subject", "reading"),
    [
        pytest.param(
            cluster_rules.cluster_paused,
            made("TunaCluster", "prod", spec={"paused": True}),
            facts(),
            id="only a Cluster has the field paused",
        ),
        pytest.param(
            cluster_rules.hook_blocks,
            CLUSTER,
            facts(hooks=[replace(BLOCKING, blocks=False)], blocked=BLOCKED),
            id="a policy that does not block",
        ),
        pytest.param(
            cluster_rules.hook_blocks,
            CLUSTER,
            facts(hooks=[BLOCKING]),
            id="a hook that was not called",
        ),
        pytest.param(
            cluster_rules.hook_blocks,
            CLUSTER,
            facts(hooks=[DELETING]),
            id="the hook of a deletion before it",
        ),
        pytest.param(
            cluster_rules.awaits_endpoint,
            changed(INFRA_CLUSTER, condition("Ready", "False", "no network", "NoNetwork")),
            facts(),
            id="infrastructure that waits for something else",
        ),
        pytest.param(
            cluster_rules.parts,
            changed(CLUSTER, condition("InfrastructureReady", "False", "gone"), **DELETED),
            facts(),
            id="the infrastructure of a Cluster that is deleted",
        ),
        pytest.param(
            common_rules.own_finalizer,
            without_finalizers(INFRA_CLUSTER),
            facts(),
            id="a deletion that ends",
        ),
        pytest.param(
            machine_rules.owned,
            MACHINE_SET,
            facts(made("Machine", "other", UNAVAILABLE, owner="other")),
            id="a Machine of another MachineSet",
        ),
        pytest.param(
            machine_rules.remediation,
            changed(MACHINE, UNHEALTHY, **DELETED),
            facts(STOPPED),
            id="a Machine that is deleted needs no remediation",
        ),
        pytest.param(
            machine_rules.node,
            changed(MACHINE, condition("NodeHealthy", "False", "no Node"), **DELETED),
            facts(),
            id="a Machine that is deleted needs no Node",
        ),
        pytest.param(
            machine_rules.machine_parts,
            changed(MACHINE, condition("InfrastructureReady", "False", "gone"), **DELETED),
            facts(),
            id="a Machine that is deleted needs no parts",
        ),
    ],
)
def test_a_rule_is_silent_about(rule: Rule, subject: Subject, reading: Facts) -> None:
    assert found(rule, subject, reading) == []


MISSING_CONTROL_PLANE = frozenset({KUBEADM.reference})
AWAITS_ENDPOINT = changed(
    INFRA_CLUSTER, condition("Ready", "False", "no endpoint", "WaitingForControlPlaneEndpoint")
)
NO_DATA = "Waiting for the control plane to be initialized"
CONFIG_WAITS = changed(CONFIG, condition("DataSecretAvailable", "False", NO_DATA))
SMALL = condition("ScalingUp", "True", "exceeded quota: small, requested: 1")
DRAINING = condition("Deleting", "True", "Drain not completed yet", "DrainingNode")
WAITS_FOR_INFRASTRUCTURE = condition("InfrastructureReady", "False", "no capacity")
NO_BOOTSTRAP = made(
    "Machine",
    "m",
    condition("BootstrapConfigReady", "False", "no data"),
    WAITS_FOR_INFRASTRUCTURE,
    spec=refers("infrastructureRef", "TunaMachine", "m"),
)


@pytest.mark.parametrize(
    ("rule", "subject", "reading", "causes"),
    [
        pytest.param(
            cluster_rules.hook_blocks,
            changed(CLUSTER, **DELETED),
            facts(hooks=[DELETING]),
            [("ExtensionBlocks", f"Extension {DELETION_HOOK}")],
            id="the hook of a deletion",
        ),
        pytest.param(
            cluster_rules.parts,
            CLUSTER,
            facts(changed(KUBEADM, UNAVAILABLE), changed(DEPLOYMENT, UNAVAILABLE)),
            [("Waits", "KubeadmControlPlane prod"), ("Waits", "MachineDeployment md")],
            id="a control plane after its infrastructure",
        ),
        pytest.param(
            cluster_rules.parts,
            CLUSTER,
            facts(changed(INFRA_CLUSTER, UNAVAILABLE), changed(KUBEADM, UNAVAILABLE)),
            [("Waits", "CapelinCluster prod")],
            id="infrastructure before the rest",
        ),
        pytest.param(
            cluster_rules.awaits_endpoint,
            AWAITS_ENDPOINT,
            facts(),
            [("Waits", "KubeadmControlPlane prod")],
            id="infrastructure without an endpoint",
        ),
        pytest.param(
            cluster_rules.awaits_endpoint,
            AWAITS_ENDPOINT,
            facts(missing=MISSING_CONTROL_PLANE),
            [("ObjectMissing", "KubeadmControlPlane prod")],
            id="infrastructure without an endpoint and a control plane",
        ),
        pytest.param(
            common_rules.refused,
            changed(MACHINE_SET, SMALL),
            facts(),
            [("QuotaExceeded", "ResourceQuota small")],
            id="a quota during an activity",
        ),
        pytest.param(
            machine_rules.machine_parts,
            MACHINE,
            facts(changed(TUNA_MACHINE, UNAVAILABLE)),
            [("Waits", "TunaMachine m")],
            id="a part that is not as desired",
        ),
        pytest.param(
            machine_rules.machine_parts,
            changed(MACHINE, WAITS_FOR_INFRASTRUCTURE),
            facts(),
            [("Waits", "TunaMachine m")],
            id="a part that its Machine waits for",
        ),
        pytest.param(
            machine_rules.machine_parts,
            NO_BOOTSTRAP,
            facts(),
            [("Waits", "TunaMachine m")],
            id="a Machine without a bootstrap config",
        ),
        pytest.param(
            machine_rules.bootstrap_waits,
            CONFIG_WAITS,
            facts(changed(INFRA_CLUSTER, UNAVAILABLE), changed(KUBEADM, UNAVAILABLE)),
            [("Waits", "KubeadmControlPlane prod")],
            id="bootstrap data that waits for the control plane",
        ),
        pytest.param(
            machine_rules.machine_deletion,
            changed(
                MACHINE,
                DRAINING,
                annotations={f"pre-drain.delete.hook.machine.{CAPI}/csi": "csi-team"},
                **DELETED,
            ),
            facts(),
            [("Drain", "Machine m")],
            id="a drain after a hook",
        ),
    ],
)
def test_a_rule_finds(
    rule: Rule, subject: Subject, reading: Facts, causes: list[tuple[str, str]]
) -> None:
    assert found(rule, subject, reading) == causes


def controller(label: str, command: str = "") -> Controller:
    reference = Reference(kind="Process", name=label)
    return Controller(label, reference, runs=False, text="it has ended", command=command)


UNDISCOVERED = changed(EXTENSION, condition("Discovered", "False", "connection refused"))


@pytest.mark.parametrize(
    ("label", "extensions", "cause"),
    [
        ("cluster-api", [UNDISCOVERED], "ExtensionBlocksCore"),
        ("cluster-api", [], "ControllerNotRunning"),
        ("bootstrap-kubeadm", [UNDISCOVERED], "ControllerNotRunning"),
    ],
)
def test_only_core_waits_for_extensions(
    label: str, extensions: Sequence[Subject], cause: str
) -> None:
    reading = facts(*extensions, controllers=[controller(label)], labels={(CAPI, "Machine"): label})
    assert [cause_ for cause_, _ in found(common_rules.without_controller, MACHINE, reading)] == [
        cause
    ]


@pytest.mark.parametrize(
    ("command", "expected"),
    [("", "kubectl describe process core"), ("capelin logs core", "capelin logs core")],
)
def test_the_command_shows_the_end_of_a_controller(command: str, expected: str) -> None:
    labels = {(CAPI, "Machine"): "core"}
    reading = facts(controllers=[controller("core", command)], labels=labels)
    (finding,) = common_rules.without_controller(MACHINE, reading)
    assert (finding.text, finding.command) == (
        "the controller core does not run: it has ended",
        expected,
    )


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (made("Machine", "m"), "its controller has not reported any condition yet"),
        (MACHINE, "no condition or event explains why it is not as desired"),
    ],
)
def test_an_unexplained_object(subject: Subject, text: str) -> None:
    assert common_rules.unknown(subject, facts()).text == text


def test_an_event_explains_an_object_without_conditions() -> None:
    reading = facts(warnings={MACHINE.reference: Warned("no capacity")})
    (finding,) = common_rules.controllers_word(MACHINE, reading)
    assert (finding.cause, finding.text) == ("Reported", "no capacity")


@pytest.mark.parametrize(
    ("control_plane", "responsible", "because"),
    [
        (KUBEADM, "you", []),
        (changed(KUBEADM, UNAVAILABLE), "Cluster API's core", [KUBEADM.reference]),
    ],
)
def test_a_blocked_scaling_waits_for_the_control_plane_or_for_you(
    control_plane: Subject, responsible: str, because: list[Reference]
) -> None:
    blocked = changed(DEPLOYMENT, condition("ScalingUp", "True", "Scaling up is blocked"))
    (finding,) = machine_rules.blocked_scaling(blocked, facts(control_plane))
    assert (finding.responsible, list(finding.because)) == (responsible, because)


def test_machines_are_deleted_before_the_rest() -> None:
    deleted = [
        changed(it, **DELETED)
        for it in (TUNA_MACHINE, DEPLOYMENT, MACHINE_SET, MACHINE_POOL, MACHINE, KUBEADM)
    ]
    ours = changed(CLUSTER, condition("Deleting", "True", "* 2 Machines"), **DELETED)
    (finding,) = cluster_rules.deletion(ours, facts(ours, *deleted))
    assert [it.kind for it in finding.because] == [
        *("Machine", "MachinePool", "MachineDeployment", "TunaMachine", "KubeadmControlPlane")
    ]
    assert (finding.text, finding.command) == (
        "2 Machines",
        f"kubectl describe {MACHINE.reference.words}",
    )


def test_a_pool_waits_for_its_unsettled_machines_only() -> None:
    broken = made("Machine", "broken", UNAVAILABLE, owner="mp")
    pool = changed(MACHINE_POOL)
    pool.raw["spec"] = {**pool.raw["spec"], "replicas": 2}
    assert found(machine_rules.pool_parts, pool, facts(pool, broken)) == [
        ("Waits", "Machine broken")
    ]


def test_a_disruption_budget_is_in_the_namespace_of_the_first_pod() -> None:
    message = BUDGET.replace("shop/web-2", "bank/web-2")
    draining = changed(MACHINE, condition("Deleting", "True", message, "DrainingNode"), **DELETED)
    (finding,) = machine_rules.machine_deletion(draining, facts())
    assert finding.about is not None
    assert (finding.about.name, finding.about.namespace) == ("web", "shop")
    assert "describe pdb web -n shop" in finding.command
