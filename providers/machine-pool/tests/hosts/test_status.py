"""The phases and conditions of hosts follow from their visits."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from capelin.contract import ConditionSpec, find_condition, update_conditions
from capelin_machine_pool.api import CapelinMachine, HostReference
from capelin_machine_pool.bootstrap import (
    BootstrapStep,
    CleanStep,
    CloudConfig,
    File,
    HostState,
    JobState,
    UpdateStep,
)
from capelin_machine_pool.hosts.api import (
    BASELINE_ANNOTATION,
    CLEAN_AGAIN_ANNOTATION,
    RENEW_BASELINE_ANNOTATION,
    CapelinHost,
    Phase,
)
from capelin_machine_pool.hosts.claims import is_free
from capelin_machine_pool.hosts.facts import HostFacts
from capelin_machine_pool.hosts.plan import (
    Orphaned,
    RejectRequest,
    Release,
    Visit,
    Wait,
    next_host_step,
)
from capelin_machine_pool.hosts.status import (
    Outcome,
    VisitResult,
    begun,
    failed_visit,
    host_status,
    outcome,
)
from capelin_machine_pool.reasons import Reason

from .objects import NOW, a_claim, a_host, a_machine

TOKEN = "abcdef.0123456789abcdef"
RECORDED = HostReference(name="host-1", claim="uid-one")
CONFIRMED = {CLEAN_AGAIN_ANNOTATION: ""}
RENEWED = {RENEW_BASELINE_ANNOTATION: ""}
KNOWN = {BASELINE_ANNOTATION: "first"}


def state(**changes: Any) -> HostState:
    return HostState(boot_id="boot", hostname="host-1", **changes)


def result(visit: Visit, step: Any = None, **changes: Any) -> VisitResult:
    return VisitResult(visit=visit, step=step, state=state(**changes))


def ready(its: Outcome) -> tuple[str, str, str]:
    """The phase, and the reason and message of the condition Ready."""
    condition = its.conditions[0]
    assert condition.type == "Ready"
    return its.phase, condition.reason, condition.message


@pytest.mark.parametrize(
    ("host", "machine", "step"),
    [
        (a_host(), None, Visit.CHECK),
        (a_host(phase="Broken", annotations=CONFIRMED), None, Visit.CLEAN_AGAIN),
        (a_host(host_keys=[], trust_on_first_use=True), None, Visit.LEARN_KEY),
        (a_host(annotations=RENEWED), None, Visit.RENEW_BASELINE),
        (a_host(claim=a_claim()), a_machine(uid="uid-one"), Wait(1.0)),
        (a_host(claim=a_claim()), a_machine(host=RECORDED), Visit.BOOTSTRAP),
        (a_host(phase="Ready", claim=a_claim()), a_machine(host=RECORDED), Visit.CHECK),
        (
            a_host(claim=a_claim()),
            a_machine(host=HostReference(name="host-2", claim="uid-one")),
            Release(),
        ),
        (a_host(claim=a_claim(released_at=NOW)), None, Visit.CLEAN),
        (
            a_host(claim=a_claim(released_at=NOW), annotations=CONFIRMED),
            None,
            Visit.CLEAN_AGAIN,
        ),
        (
            a_host(
                phase="Broken", claim=a_claim(), annotations={CLEAN_AGAIN_ANNOTATION: "uid-one"}
            ),
            None,
            Release(),
        ),
    ],
)
def test_next_step_of_a_host(host: CapelinHost, machine: Any, step: object) -> None:
    assert next_host_step(host, machine) == step


@pytest.mark.parametrize("phase", ["Ready", "Broken", "Bootstrapping"])
@pytest.mark.parametrize("value", ["", "uid-former"])
def test_request_for_another_claim_cleans_no_node(phase: Phase, value: str) -> None:
    request = {CLEAN_AGAIN_ANNOTATION: value}
    host = a_host(phase=phase, claim=a_claim(), annotations=request)
    step = next_host_step(host, None)
    assert isinstance(step, RejectRequest)
    assert f"{CLEAN_AGAIN_ANNOTATION}=uid-one" in step.message


@pytest.mark.parametrize("value", ["", "uid-one"])
def test_request_does_not_stay_on_a_host_in_use(value: str) -> None:
    request = {CLEAN_AGAIN_ANNOTATION: value}
    host = a_host(phase="Ready", claim=a_claim(), annotations=request)
    step = next_host_step(host, a_machine(host=RECORDED))
    assert step == RejectRequest("the machine one uses the host: delete its Machine")


@pytest.mark.parametrize(
    "host",
    [
        a_host(phase="Ready", claim=a_claim(), annotations=RENEWED),
        a_host(phase="Broken", claim=a_claim(released_at=NOW), annotations=RENEWED),
        a_host(phase="Broken", annotations=RENEWED),
    ],
)
def test_baseline_is_renewed_only_on_a_host_that_is_clean(host: CapelinHost) -> None:
    step = next_host_step(host, a_machine(host=RECORDED))
    assert isinstance(step, RejectRequest)
    assert step.annotation == RENEW_BASELINE_ANNOTATION


def test_second_request_for_a_clean_up_does_not_wait() -> None:
    host = a_host(phase="Broken", claim=a_claim(released_at=NOW))
    failed = JobState(alive=False, exit_code=1)
    its = outcome(host, result(Visit.CLEAN_AGAIN, CleanStep.FAILED, clean=failed))
    assert its.ends_request
    assert its.again_after < 10


@pytest.mark.parametrize(
    "machine",
    [
        None,
        a_machine(uid="uid-two"),
        a_machine(host=HostReference(name="host-1", claim="uid-two")),
        a_machine(host=HostReference(name="host-2", claim="uid-two")),
    ],
    ids=["none", "another of its name", "that has claimed", "with another host"],
)
def test_host_of_a_missing_machine_waits_for_its_administrator(
    machine: CapelinMachine | None,
) -> None:
    step = next_host_step(a_host(phase="Ready", claim=a_claim()), machine)
    assert isinstance(step, Orphaned)
    assert step.reason == Reason.MACHINE_MISSING
    assert CLEAN_AGAIN_ANNOTATION in step.message


def test_ready_phase_of_a_former_claim_does_not_prevent_the_bootstrap() -> None:
    host = a_host(phase="Ready", claim=a_claim())
    assert host.status is not None
    host.status.claim = "uid-former"
    assert next_host_step(host, a_machine(host=RECORDED)) is Visit.BOOTSTRAP


def test_new_key_confirms_no_clean_up() -> None:
    host = a_host(phase="Broken", host_keys=[], trust_on_first_use=True)
    its = outcome(host, VisitResult(visit=Visit.LEARN_KEY, host_key="ssh-ed25519 AAAA"))
    host.status = host_status(host, None, its.phase, NOW)
    assert outcome(host, result(Visit.CHECK)).phase == "Broken"


def test_new_key_does_not_undo_a_bootstrap() -> None:
    learned = VisitResult(visit=Visit.LEARN_KEY, host_key="ssh-ed25519 AAAA")
    host = a_host(phase="Ready", claim=a_claim(), host_keys=[], trust_on_first_use=True)
    assert outcome(host, learned).phase == "Ready"
    free = a_host(host_keys=[], trust_on_first_use=True)
    assert outcome(free, learned).phase == "Unavailable"


def test_host_that_restarts_cannot_be_claimed() -> None:
    host = a_host(address="10.0.0.8")
    host.metadata.generation = 2
    cycled = VisitResult(visit=Visit.POWER_CYCLE)
    host.status = host_status(host, cycled, outcome(host, cycled).phase, NOW)
    assert not is_free(host)
    used = a_host(phase="Ready", claim=a_claim())
    assert outcome(used, cycled).phase == "Ready"


def test_clean_host_is_free() -> None:
    its = outcome(a_host(phase=None), result(Visit.CHECK))
    assert ready(its) == ("Free", "Ready", "")


@pytest.mark.parametrize(
    ("host", "observed", "expected"),
    [
        (a_host(), {"missing": ("flock",)}, ("Unavailable", "HostUnfit", "flock")),
        (a_host(maintenance=True), {}, ("Unavailable", "Maintenance", "spec.maintenance")),
        (a_host(), {"marker": "uid-x"}, ("Broken", "HostNotClean", "marker of another")),
        (a_host(), {"node_files": ("/a",)}, ("Broken", "HostNotClean", "a node already")),
        # It stays broken until an administrator confirms it.
        (a_host(phase="Broken"), {}, ("Broken", "HostNotClean", CLEAN_AGAIN_ANNOTATION)),
    ],
)
def test_host_that_cannot_be_claimed_explains_why(
    host: CapelinHost, observed: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    phase, reason, message = ready(outcome(host, result(Visit.CHECK, **observed)))
    assert (phase, reason) == expected[:2]
    assert expected[2] in message


@pytest.mark.parametrize(
    ("observed", "message"),
    [
        ({"baseline": "first", "differences": ("new link cni0",)}, "new link cni0"),
        ({"baseline": "other"}, "the baseline on the host is not the one from before"),
        ({}, "the baseline on the host is not the one from before"),
    ],
)
def test_host_is_free_only_if_nothing_differs(observed: dict[str, Any], message: str) -> None:
    its = outcome(a_host(annotations=KNOWN), result(Visit.CHECK, **observed))
    assert ready(its)[:2] == ("Unavailable", "HostNotClean")
    assert ready(its)[2].startswith(message)
    assert RENEW_BASELINE_ANNOTATION in ready(its)[2]
    assert its.baseline is None


def test_baseline_is_recorded_once_and_on_request() -> None:
    first = outcome(a_host(phase="Unavailable"), result(Visit.CHECK, baseline="first"))
    assert (first.phase, first.baseline) == ("Free", "first")
    again = outcome(a_host(annotations=KNOWN), result(Visit.CHECK, baseline="first"))
    assert (again.phase, again.baseline) == ("Free", None)
    host = a_host(phase="Unavailable", annotations=KNOWN | RENEWED)
    renewed = outcome(host, result(Visit.RENEW_BASELINE, baseline="second"))
    assert (renewed.phase, renewed.baseline) == ("Free", "second")
    dirty = outcome(host, result(Visit.RENEW_BASELINE, baseline="first", node_files=("/a",)))
    assert (dirty.phase, dirty.baseline) == ("Broken", None)


def test_unfit_facts_are_reported_and_do_not_prevent_a_claim() -> None:
    facts = HostFacts(systemd=True, swap=True, clock=100)
    visit = VisitResult(visit=Visit.CHECK, state=state(), facts=facts, clock=100.0)
    its = outcome(a_host(), visit)
    assert its.phase == "Free"
    fit = next(condition for condition in its.conditions if condition.type == "Fit")
    assert (fit.status, fit.reason) == ("False", "HostUnfit")
    assert "swap is on" in fit.message


@pytest.mark.parametrize("kind", ["unreachable", "host key", "login"])
@pytest.mark.parametrize("phase", ["Free", "Ready", "Cleaning", "Broken"])
def test_failed_visit_keeps_the_phase_of_a_used_host(kind: Any, phase: Any) -> None:
    used = phase in {"Ready", "Cleaning"}
    host = a_host(phase=phase, claim=a_claim() if used else None)
    its = outcome(host, failed_visit(Visit.CHECK, kind, "why"))
    assert its.phase == ("Unavailable" if phase == "Free" else phase)
    assert ready(its)[2] == "why"
    assert not its.ends_claim


def test_failed_update_stays_visible_while_the_host_is_off() -> None:
    # Otherwise the pool would begin the update of another host.
    host = a_host(phase="Updating", claim=a_claim(update_version="v1.34.4"))
    assert host.status is not None
    host.status.claim = "uid-one"
    failed = [ConditionSpec("Updated", "False", Reason.UPDATE_FAILED, "exit code 4")]
    host.status.conditions = update_conditions([], failed, now=NOW, generation=1)
    for _ in range(2):
        its = outcome(host, failed_visit(Visit.UPDATE, "unreachable", "no route"))
        assert ready(its)[1:] == ("UpdateFailed", "exit code 4; now: no route")
        host.status.conditions = update_conditions(
            host.status.conditions, its.conditions, now=NOW, generation=1
        )
    updated = find_condition(host.status.conditions, "Updated")
    assert updated is not None
    assert (updated.reason, updated.message) == ("UpdateFailed", "exit code 4")


def test_failed_bootstrap_shows_its_output_without_secrets() -> None:
    job = JobState(alive=False, exit_code=3, output=f"bad token {TOKEN}")
    config = CloudConfig(files=(File(path="/a", content=TOKEN.encode()),))
    visit = VisitResult(
        visit=Visit.BOOTSTRAP,
        step=BootstrapStep.FAILED,
        state=state(marker="uid-one", bootstrap=job),
        config=config,
    )
    its = outcome(a_host(claim=a_claim()), visit)
    phase, reason, message = ready(its)
    assert (phase, reason) == ("Bootstrapping", "BootstrapFailed")
    assert message == "the bootstrap failed with exit code 3: bad token (hidden)"
    assert not its.ends_claim
    assert TOKEN not in repr(visit)
    # Without the data, nothing shows which words are secret.
    unknown = outcome(a_host(claim=a_claim()), replace(visit, config=None))
    assert ready(unknown)[2] == "the bootstrap failed with exit code 3"


@pytest.mark.parametrize(
    ("step", "observed", "phase", "ends_claim"),
    [
        (BootstrapStep.SUCCEEDED, {"marker": "uid-one"}, "Ready", False),
        (BootstrapStep.WAIT, {"marker": "uid-one"}, "Bootstrapping", False),
        (BootstrapStep.INTERRUPTED, {"marker": "uid-one"}, "Bootstrapping", False),
        # The bootstrap did not begin: the machine gets another host.
        (BootstrapStep.DIRTY, {"node_files": ("/a",)}, "Broken", True),
        (BootstrapStep.DIRTY, {"marker": "uid-two"}, "Broken", True),
        (BootstrapStep.UNFIT, {"missing": ("awk",)}, "Unavailable", True),
        (BootstrapStep.DIRTY, {"differences": ("new link cni0",)}, "Unavailable", True),
        # A clean-up of this very machine runs.
        (
            BootstrapStep.DIRTY,
            {"marker": "uid-one", "clean": JobState(alive=True)},
            "Bootstrapping",
            False,
        ),
        # The claim ended before the host was marked.
        (None, {}, "Bootstrapping", False),
    ],
)
def test_bootstrap_decides_about_phase_and_claim(
    step: Any, observed: dict[str, Any], phase: str, *, ends_claim: bool
) -> None:
    its = outcome(a_host(claim=a_claim()), result(Visit.BOOTSTRAP, step, **observed))
    assert (its.phase, its.ends_claim) == (phase, ends_claim)


@pytest.mark.parametrize("visit", [Visit.CLEAN, Visit.CLEAN_AGAIN])
@pytest.mark.parametrize(
    ("step", "phase", "ends_claim"),
    [
        (CleanStep.CLEAN, "Cleaning", True),
        (CleanStep.OTHER, "Cleaning", True),
        (CleanStep.WAIT, "Cleaning", False),
        (CleanStep.FAILED, "Broken", False),
    ],
)
def test_clean_up_decides_about_phase_and_claim(
    visit: Visit, step: CleanStep, phase: str, *, ends_claim: bool
) -> None:
    job = JobState(alive=False, exit_code=1, output="problem: kubelet still runs")
    its = outcome(a_host(claim=a_claim(released_at=NOW)), result(visit, step, clean=job))
    assert (its.phase, its.ends_claim) == (phase, ends_claim)
    ends_request = visit is Visit.CLEAN_AGAIN and step is not CleanStep.WAIT
    assert its.ends_request == ends_request
    if step is CleanStep.FAILED:
        assert ready(its)[2].startswith("kubelet still runs; correct it, then set")


def test_lost_marker_is_reported() -> None:
    host = a_host(phase="Ready", claim=a_claim())
    assert ready(outcome(host, result(Visit.CHECK)))[:2] == ("Ready", "HostChanged")
    assert ready(outcome(host, result(Visit.CHECK, marker="uid-one")))[1] == "Ready"


@pytest.mark.parametrize(
    ("host", "visit", "phase"),
    [
        (a_host(phase=None), Visit.CHECK, "Unavailable"),
        (a_host(phase="Claimed", claim=a_claim()), Visit.BOOTSTRAP, "Bootstrapping"),
        (a_host(phase="Ready", claim=a_claim(released_at=NOW)), Visit.CLEAN, "Cleaning"),
        (a_host(), Visit.CHECK, None),
        (a_host(phase="Broken", claim=a_claim(released_at=NOW)), Visit.CLEAN, None),
    ],
)
def test_beginning_visit_is_reported_once(
    host: CapelinHost, visit: Visit, phase: str | None
) -> None:
    beginning = begun(host, visit)
    assert (beginning.phase if beginning else None) == phase


def test_same_visit_gives_the_same_status() -> None:
    facts = HostFacts(cpus=4, memory_kib=1024, architecture="amd64", clock=5)
    host = a_host()
    for clock in (5.0, 6.0):
        visit = VisitResult(visit=Visit.CHECK, state=state(), facts=facts, clock=clock)
        status = host_status(host, visit, "Free", NOW)
        before = host.status.conditions if host.status else []
        specs = outcome(host, visit).conditions
        status.conditions = update_conditions(before, specs, now=NOW, generation=1)
        if clock > 5:
            assert status == host.status
        host.status = status
    assert host.status is not None
    assert host.status.capacity == {"cpu": "4", "memory": "1024Ki"}
    addresses = [(address.type, address.address) for address in host.status.addresses]
    assert addresses == [("Hostname", "host-1"), ("InternalIP", "10.0.0.7")]
    assert find_condition(host.status.conditions, "Ready") is not None


def test_contacts_are_written_once_in_ten_minutes() -> None:
    host = a_host()

    def contact(visit: VisitResult | None, minutes: float) -> datetime | None:
        host.status = host_status(host, visit, "Free", NOW + timedelta(minutes=minutes))
        return host.status.last_contact_at

    answer = VisitResult(visit=Visit.CHECK, state=state())
    assert contact(None, 0) is None
    assert contact(answer, 0) == NOW
    assert contact(answer, 9.9) == NOW
    assert contact(failed_visit(Visit.CHECK, "unreachable", "no route"), 20) == NOW
    assert contact(VisitResult(visit=Visit.POWER_CYCLE), 20) == NOW
    assert contact(answer, 20) == NOW + timedelta(minutes=20)


UPDATE_JOB = JobState(alive=False, exit_code=1, output="no such host\n")


def updating_host(**status: Any) -> CapelinHost:
    host = a_host(phase="Ready", claim=a_claim(version="v1.33.13", update_version="v1.34.4"))
    assert host.status is not None
    for name, value in status.items():
        setattr(host.status, name, value)
    return host


def test_update_is_a_visit_of_its_own_until_it_succeeds() -> None:
    machine = a_machine(host=RECORDED)
    assert next_host_step(updating_host(), machine) is Visit.UPDATE
    assert next_host_step(updating_host(phase="Updating"), machine) is Visit.UPDATE
    done = updating_host(updated_version="v1.34.4")
    assert next_host_step(done, machine) is Visit.CHECK
    # After a move, the marker on the host shows the bootstrap first.
    assert next_host_step(updating_host(phase=None), machine) is Visit.BOOTSTRAP


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (None, ("Updating", Reason.UPDATING, "the update waits")),
        (UpdateStep.WAIT, ("Updating", Reason.UPDATING, "the update to v1.34.4 runs")),
        (
            UpdateStep.FAILED,
            (
                "Updating",
                Reason.UPDATE_FAILED,
                "the update to v1.34.4 failed with exit code 1: no such host",
            ),
        ),
        (UpdateStep.SUCCEEDED, ("Ready", "Ready", "")),
    ],
)
def test_update_decides_the_phase(step: UpdateStep | None, expected: tuple[str, str, str]) -> None:
    host = updating_host()
    observed = state(marker="uid-one", update=UPDATE_JOB, update_version="v1.34.4")
    its = outcome(
        host, VisitResult(visit=Visit.UPDATE, step=step, state=observed, version="v1.34.4")
    )
    assert ready(its) == expected


def test_status_keeps_the_version_of_an_update_for_its_claim() -> None:
    host = updating_host()
    succeeded = VisitResult(
        visit=Visit.UPDATE, step=UpdateStep.SUCCEEDED, state=state(), version="v1.34.4"
    )
    host.status = host_status(host, succeeded, "Ready", NOW)
    assert host.status.updated_version == "v1.34.4"
    assert host_status(host, None, "Ready", NOW).updated_version == "v1.34.4"
    host.spec.claim = a_claim(id="another")
    assert host_status(host, None, "Claimed", NOW).updated_version is None
