"""Write the tables of hosts and policies into their page: python docs/site/pairs.py.

The functions that reconcilers decide with compute the cells.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from capelin.api import ObjectMeta
from capelin_lifecycle.api.policies import LifecyclePolicy
from capelin_lifecycle.api.results import LifecycleResult, ResultRecord
from capelin_lifecycle.policies.clusters import Occurrence
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.reconcilers.records import (
    has_started,
    is_decided,
    is_over,
    is_record,
    keeps_up,
    new_result,
    stays,
)
from capelin_machine_pool.api import CapelinMachine, HostReference, MachineSpec
from capelin_machine_pool.hosts.api import (
    CLEAN_AGAIN_ANNOTATION,
    RENEW_BASELINE_ANNOTATION,
    CapelinHost,
    HostStatus,
    Phase,
)
from capelin_machine_pool.hosts.plan import (
    HostStep,
    Orphaned,
    RejectRequest,
    Release,
    Visit,
    Wait,
    next_host_step,
)

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


def _host(phase: Phase, *, claimed: bool, released: bool, annotation: str, value: str) -> HostStep:
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
    recorded = HostReference(name="host", claim="claim")
    machine = CapelinMachine(
        metadata=ObjectMeta(name="machine", namespace="default"),
        spec=MachineSpec(backend="Hosts", host=recorded, version="v1.34.4"),
    )
    is_missing = value == "missing"
    return next_host_step(host, None if is_missing or released else machine)


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
        step = _host(
            phase, claimed=claimed, released=released or ended, annotation=annotation, value=value
        )
        return _text(step)

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


def _policy(action: dict[str, Any], timeout: str) -> KnownPolicy:
    spec = {"hook": "BeforeClusterUpgrade", "action": action, "timeout": timeout}
    metadata = {"name": "policy", "namespace": "default", "uid": "uid", "generation": 1}
    return KnownPolicy.of(LifecyclePolicy.read({"metadata": metadata, "spec": spec}))


def _row_of_result(action: dict[str, Any], record: dict[str, Any] | None) -> list[str]:
    policy, edited = _policy(action, "1h"), _policy(action, "2h")
    occurrence = Occurrence("BeforeClusterUpgrade", "default", "demo", "uid")
    result = new_result(policy, "result", occurrence, _NOW)
    if record is not None:
        result.record = ResultRecord(policy=policy.digest, **record)
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

# The page


def tables() -> dict[str, str]:
    """The tables, by the first cell of their headers."""
    hosts = [
        [name, *_row_of_host(phase, claimed=claimed, released=released)]
        for name, (phase, claimed, released) in _HOSTS.items()
    ]
    results = [[name, *_row_of_result(*state)] for name, state in _RESULTS.items()]
    return {"host": _table(_HOST_HEADER, hosts), "result": _table(_RESULT_HEADER, results)}


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
