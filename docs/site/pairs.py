"""Write the tables of hosts and policies into their page: python docs/site/pairs.py.

The functions that reconcilers decide with compute the cells.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from capelin.api import ObjectMeta
from capelin.api.core import Node
from capelin_lifecycle.api.policies import LifecyclePolicy
from capelin_lifecycle.api.results import LifecycleResult, ResultRecord
from capelin_lifecycle.decision import Facts, answer, decide
from capelin_lifecycle.policies.clusters import KnownCluster, Occurrence
from capelin_lifecycle.policies.selection import KnownPolicy, selected
from capelin_lifecycle.policies.verdict import Verdict
from capelin_lifecycle.reconcilers.records import (
    has_started,
    is_decided,
    is_over,
    is_record,
    keeps_up,
    new_result,
    stays,
)
from capelin_machine_pool.api import CapelinMachine, HostReference, Hosts, MachineSpec
from capelin_machine_pool.hosts.api import (
    CLEAN_AGAIN_ANNOTATION,
    POWER_CYCLE_ANNOTATION,
    RENEW_BASELINE_ANNOTATION,
    CapelinHost,
    HostStatus,
    Phase,
)
from capelin_machine_pool.hosts.node_updates import NodeStep, next_node_step
from capelin_machine_pool.hosts.plan import (
    HostStep,
    Orphaned,
    RejectRequest,
    Release,
    Visit,
    Wait,
    is_bootstrapped,
    next_host_step,
)
from capelin_machine_pool.hosts.power import is_cycle_due
from capelin_machine_pool.hosts.status import VisitResult, outcome

PAGE: Final = Path(__file__).parents[1] / "concepts" / "hosts-and-policies.md"
_NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
_KEY: Final = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHRlc3RrZXl0ZXN0a2V5dGVzdGtleXRlc3RrZXl0ZXN0"

# Hosts

_STEPS: Final[Mapping[Visit, str]] = {
    Visit.LEARN_KEY: "key learned",
    Visit.CHECK: "checked",
    Visit.RENEW_BASELINE: "baseline renewed",
    Visit.BOOTSTRAP: "bootstrapped once",
    Visit.UPDATE: "updated once",
    Visit.CLEAN: "cleaned",
    Visit.CLEAN_AGAIN: "cleaned again",
    Visit.POWER_CYCLE: "restarted",
}
_HOSTS: Final[Mapping[str, tuple[Phase, bool, bool]]] = {
    # The phase, whether it has a claim, and whether the claim is released.
    "free": ("Free", False, False),
    "bootstrapping": ("Bootstrapping", True, False),
    "in use": ("Ready", True, False),
    "updating": ("Updating", True, False),
    "cleaning": ("Cleaning", True, True),
    "broken, released": ("Broken", True, True),
    "broken, without a claim": ("Broken", False, False),
}


def _host(
    phase: Phase, *, claimed: bool, released: bool, annotation: str = "", value: str = ""
) -> CapelinHost:
    claim = {
        "id": "claim",
        "machine": "machine",
        "cluster": "demo",
        "providerID": "capelin:///default/demo/machine",
        "bootstrapSecret": "data",
        "updateVersion": "v1.34.4" if phase == "Updating" else None,
        "releasedAt": _NOW if released else None,
    }
    spec = {
        "address": "10.0.0.7",
        "credentials": {"secretName": "ssh"},
        "hostKeys": [_KEY],
        "claim": claim if claimed else None,
    }
    metadata = {"name": "host", "namespace": "default"}
    host = CapelinHost.read({"metadata": metadata, "spec": spec})
    host.metadata.annotations = {annotation: value} if annotation else {}
    host.status = HostStatus(phase=phase, claim="claim" if claimed else None)
    return host


def _step(host: CapelinHost, *, is_missing: bool = False) -> HostStep:
    recorded = HostReference(name="host", claim="claim")
    machine = CapelinMachine(
        metadata=ObjectMeta(name="machine", namespace="default"),
        spec=MachineSpec(backend="Hosts", host=recorded, version="v1.34.4"),
    )
    is_released = host.spec.claim is not None and host.spec.claim.released_at is not None
    return next_host_step(host, None if is_missing or is_released else machine)


def _text(step: HostStep) -> str:
    match step:
        case Wait():
            return "waits"
        case Release():
            return "cleaned"
        case Orphaned():
            return "waits for a person"
        case RejectRequest():
            return "request removed"
        case Visit():
            return _STEPS[step]


def _row_of_host(phase: Phase, *, claimed: bool, released: bool) -> list[str]:
    def cell(annotation: str = "", value: str = "", *, ended: bool = False) -> str:
        if (ended or value == "missing") and (not claimed or released):
            return "-"
        host = _host(
            phase, claimed=claimed, released=released or ended, annotation=annotation, value=value
        )
        return _text(_step(host, is_missing=value == "missing"))

    return [
        cell(),
        cell(ended=True),
        cell(value="missing"),
        cell(CLEAN_AGAIN_ANNOTATION),
        cell(RENEW_BASELINE_ANNOTATION),
    ]


_HOST_HEADER: Final = (
    *("host", "next step", "machine deleted", "machine missing"),
    *("`clean-again`", "`renew-baseline`"),
)
_NODE_STEPS: Final[Mapping[NodeStep, str]] = {
    NodeStep.NOTHING: "-",
    NodeStep.DRAIN: "drained, then updated",
    NodeStep.WAIT_FOR_HOST: "waits for the running update",
}
_NODE: Final = Node.read({"metadata": {"name": "machine"}})
_COMMANDS: Final = Hosts(profile="Commands", install_commands=["install"])


def _later_of_host(phase: Phase, *, claimed: bool, released: bool) -> list[str]:
    """The cells about another version, a power cycle and another key."""
    host = _host(phase, claimed=claimed, released=released, annotation=POWER_CYCLE_ANNOTATION)
    version = "-"
    if claimed and not released:
        step = next_node_step("v1.35.0", _COMMANDS, host, _NODE)
        version = _NODE_STEPS[step] if is_bootstrapped(host) else "waits for the bootstrap"
    cycled = outcome(host, VisitResult(visit=Visit.POWER_CYCLE)).phase
    learned = outcome(host, VisitResult(visit=Visit.LEARN_KEY, host_key=_KEY)).phase
    cycle = f"restarted, then `{cycled}`" if is_cycle_due(host, _NOW) else "-"
    host.spec.host_keys, host.metadata.annotations = [], {}
    return [version, cycle, f"{_text(_step(host))}, then `{learned}`"]


_LATER_HOST_HEADER: Final = ("state of a host", "new version", "`power-cycle`", "key removed")

# Policies

_APPLY: Final[dict[str, Any]] = {"apply": {"sources": [{"configMap": "manifests"}]}}
_JOB: Final[dict[str, Any]] = {"job": {"template": {"template": {"spec": {"containers": []}}}}}
_APPROVAL: Final[dict[str, Any]] = {"approval": {"approvers": ["alice"]}}
_RESULTS: Final[Mapping[str, tuple[dict[str, Any], dict[str, Any] | None]]] = {
    "a verdict waits": (_APPROVAL, None),
    "a verdict lets pass": (_APPROVAL, {"phase": "Done"}),
    "work waits": (_JOB, None),
    "work runs": (_JOB, {"started": _NOW}),
    "work is done": (_JOB, {"started": _NOW, "phase": "Done"}),
    "work has failed": (_JOB, {"started": _NOW, "phase": "Failed"}),
    "manifests are applied": (_APPLY, {"started": _NOW, "phase": "Done"}),
}


_OCCURRENCE: Final = Occurrence("BeforeClusterUpgrade", "default", "demo", "uid")
_CLUSTER: Final = KnownCluster.of({"metadata": {"name": "demo", "namespace": "default"}})


def _policy(action: dict[str, Any], timeout: str, **fields: Any) -> KnownPolicy:
    spec = {"hook": "BeforeClusterUpgrade", "action": action, "timeout": timeout, **fields}
    metadata = {"name": "policy", "namespace": "default", "uid": "uid", "generation": 1}
    return KnownPolicy.of(LifecyclePolicy.read({"metadata": metadata, "spec": spec}))


def _result(policy: KnownPolicy, record: dict[str, Any] | None) -> LifecycleResult:
    result = new_result(policy, "result", _OCCURRENCE, _NOW)
    if record is not None:
        result.record = ResultRecord(policy=policy.digest, **record)
    return result


def _row_of_result(action: dict[str, Any], record: dict[str, Any] | None) -> list[str]:
    result, edited = _result(_policy(action, "1h"), record), _policy(action, "2h")
    return [_edited(result, edited), _unselected(result), _deleted(result), "rejected"]


def _edited(result: LifecycleResult, policy: KnownPolicy) -> str:
    if is_decided(result):
        return "decided by each call"
    if stays(result, policy):
        return "stays"
    if not is_over(result):
        return "continues" if has_started(result) else "starts with the new ones"
    return "applied again" if keeps_up(result) else "new attempt"


def _unselected(result: LifecycleResult) -> str:
    if not has_started(result):
        return "result deleted"
    return "stays" if is_over(result) or keeps_up(result) else "finishes"


def _deleted(result: LifecycleResult) -> str:
    return "objects go, record stays" if is_record(result) else "result and objects go"


_RESULT_HEADER: Final = (
    *("result", "settings edited", "Cluster or hook not selected", "policy deleted"),
    "action replaced",
)


def _later_of_result(action: dict[str, Any], record: dict[str, Any] | None) -> list[str]:
    """The cells about a suspended and an invalid policy, and a deleted result."""
    policy = _policy(action, "1h")
    result = _result(policy, record)
    changed = _policy(action, "1h", suspend=True), replace(policy, problem="invalid")
    return [*(_stopped(result, policy) for policy in changed), _forgotten(result)]


def _stopped(result: LifecycleResult, policy: KnownPolicy) -> str:
    """The answer of the hook, and the state of the result."""
    called = selected([policy], _OCCURRENCE, {})
    is_open = answer(called, [Verdict("Done", "")] * len(called)).retry_seconds == 0
    verdict = decide(policy, _CLUSTER, _OCCURRENCE, Facts(called=_NOW), _NOW)
    waits = "stays" if stays(result, policy) or verdict is None else f"is {verdict.phase}"
    return f"gate {'opens' if is_open else 'closes'}, result {waits}"


def _forgotten(result: LifecycleResult) -> str:
    if is_decided(result):
        return "decided again"
    if keeps_up(result):
        return "applied again"
    return "objects go, runs again" if has_started(result) else "starts again"


_LATER_RESULT: Final = ("state of a result", "policy suspended", "policy invalid", "result deleted")

# The page


def tables() -> dict[str, str]:
    """The tables, by the first cell of their headers."""
    found = {
        header: [
            [name, *row(phase, claimed=claimed, released=released)]
            for name, (phase, claimed, released) in _HOSTS.items()
        ]
        for header, row in ((_HOST_HEADER, _row_of_host), (_LATER_HOST_HEADER, _later_of_host))
    }
    found |= {
        _RESULT_HEADER: [[name, *_row_of_result(*it)] for name, it in _RESULTS.items()],
        _LATER_RESULT: [[name, *_later_of_result(*it)] for name, it in _RESULTS.items()],
    }
    return {header[0]: _table(header, rows) for header, rows in found.items()}


def _table(header: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [list(header), ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_tables(page: str) -> str:
    """The page with the tables as the code has them."""
    for name, table in tables().items():
        pattern = re.compile(rf"\| {name} \|.*\n(?:\|.*\n)+")
        found = pattern.search(page)
        if found is None:
            raise ValueError(f"{PAGE.name} has no table of each {name}")
        page = page[: found.start()] + table + page[found.end() :]
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
