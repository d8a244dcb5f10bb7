"""From a waiting Cluster to the causes: applies the rules to one object after another. Pure."""

from collections.abc import Sequence
from typing import Final

from capelin_cli.explain import cluster_rules, common_rules, machine_rules
from capelin_cli.explain.facts import Facts, Finding, Rule, Subject
from capelin_cli.explain.model import Cause, Chain, Explanation, Link, Reference, State

_EXCLUSIVE: Final[Sequence[Rule]] = (
    cluster_rules.cluster_paused,
    cluster_rules.asleep,
    common_rules.paused,
    common_rules.without_controller,
)
"""If one of these finds something, nothing else can explain the object."""
_OF_MACHINE_SETS: Final[Sequence[Rule]] = (
    machine_rules.missing_templates,
    machine_rules.blocked_scaling,
    machine_rules.owned,
)
# Several parts of a Cluster may wait at once. Of other objects, the first rule explains most.
_BY_KIND: Final[dict[str, Sequence[Rule]]] = {
    "Cluster": (
        cluster_rules.hook_blocks,
        cluster_rules.topology,
        cluster_rules.deletion,
        cluster_rules.parts,
        cluster_rules.unreachable,
    ),
    "CapelinCluster": (cluster_rules.awaits_endpoint,),
    "ClusterClass": (cluster_rules.class_templates, cluster_rules.class_reconciled),
    "KubeadmControlPlane": (cluster_rules.control_plane_machines,),
    "KubeadmConfig": (machine_rules.bootstrap_waits,),
    "MachineDeployment": _OF_MACHINE_SETS,
    "MachineSet": _OF_MACHINE_SETS,
    "MachinePool": (machine_rules.pool_parts,),
    "Machine": (
        machine_rules.machine_deletion,
        machine_rules.machine_parts,
        machine_rules.remediation,
        machine_rules.node,
    ),
}
_LAST: Final[Sequence[Rule]] = (
    common_rules.refused,
    common_rules.foreign_finalizer,
    common_rules.controllers_word,
    common_rules.own_finalizer,
)
_LONGEST: Final = 8
_MOST_CHAINS: Final = 50


def explain(facts: Facts) -> Explanation:
    """Why a Cluster waits. Every cause appears once, the most urgent first."""
    cluster = facts.cluster
    chains = _chains(cluster, facts, ())
    if facts.waits is None:
        chains = [chain for chain in chains if chain.cause in _PAUSES]
    by_cause: dict[tuple[Cause, Reference], Chain] = {}
    for chain in chains:
        by_cause.setdefault((chain.cause, chain.object), chain)
    # A chain without a known cause explains nothing if another one has a cause.
    known = [chain for chain in by_cause.values() if chain.cause != "Unknown"]
    chosen = known or list(by_cause.values())[:1]
    return Explanation(
        cluster=cluster.reference,
        state=_state(facts, chosen),
        message=facts.waits or "",
        chains=chosen[:_MOST_CHAINS],
    )


_PAUSES: Final[frozenset[Cause]] = frozenset({"ClusterPaused", "Paused"})


def _state(facts: Facts, chains: Sequence[Chain]) -> State:
    if any(chain.cause in _PAUSES and len(chain.links) == 1 for chain in chains):
        return "Paused"
    if any(chain.cause == "Asleep" for chain in chains):
        return "Asleep"
    return "Ready" if facts.waits is None else "Waiting"


def _chains(subject: Subject, facts: Facts, before: tuple[Reference, ...]) -> list[Chain]:
    """All chains that start at an object."""
    path = (*before, subject.reference)
    chains: list[Chain] = []
    for finding in _findings(subject, facts):
        link = Link(
            object=subject.reference,
            text=finding.text,
            since=finding.since,
            evidence=finding.evidence,
        )
        deeper = [
            chain
            for reference in finding.because
            if reference not in path
            and len(path) < _LONGEST
            and (child := facts.objects.get(reference)) is not None
            for chain in _chains(child, facts, path)
        ]
        chains += [
            chain.model_copy(update={"links": [link, *chain.links]}) for chain in deeper
        ] or [_ended(link, finding)]
    return chains


def _ended(link: Link, finding: Finding) -> Chain:
    links = [link]
    if finding.about is not None and finding.about != link.object:
        links.append(link.model_copy(update={"object": finding.about}))
    return Chain(
        links=links,
        cause=finding.cause,
        responsible=finding.responsible,
        command=finding.command,
    )


def _findings(subject: Subject, facts: Facts) -> list[Finding]:
    kind = subject.reference.kind
    for rule in _EXCLUSIVE:
        if found := list(rule(subject, facts)):
            return found
    own = _BY_KIND.get(kind, ())
    if kind == "Cluster" and (found := [each for rule in own for each in rule(subject, facts)]):
        return found
    for rule in (*own, *_LAST):
        if found := list(rule(subject, facts)):
            return found
    return [common_rules.unknown(subject, facts)]
