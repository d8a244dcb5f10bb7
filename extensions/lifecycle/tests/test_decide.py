"""The answer of a hook, and the name of the result that it refers to."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from capelin_lifecycle.api.names import Phase
from capelin_lifecycle.decision import Answer, Facts, answer, decide, in_time, lets_pass
from capelin_lifecycle.policies.clusters import KnownCluster, PolicyKey, result_name
from capelin_lifecycle.policies.verdict import Verdict, failed, waiting

from .factories import known, occurrence

DONE = Verdict("Done", "", 10)


def test_a_hook_proceeds_when_all_policies_are_done() -> None:
    assert answer([], []) == Answer()
    assert answer([known("a"), known("b")], [DONE, DONE]) == Answer()


def test_the_shortest_wait_wins_and_all_reasons_are_named() -> None:
    results = [Verdict("Waiting", "waits for alice", 5), DONE, Verdict("Running", "job", 15)]
    combined = answer([known("a"), known("b"), known("c")], results)
    assert combined == Answer(5, "policy a: waits for alice; policy c: job")


def test_a_missing_result_blocks_the_hook() -> None:
    assert answer([known("a")], [None]) == Answer(5, "policy a has started")


def test_on_failure_decides_whether_a_failure_blocks() -> None:
    failed = Verdict("Failed", "no space", 10)
    assert answer([known("a")], [failed]) == Answer(30, "policy a has failed: no space")
    assert answer([known("a", onFailure="Continue")], [failed]) == Answer()


def test_on_failure_decides_whether_an_unusable_policy_blocks() -> None:
    assert answer([known("a", "no CEL")], [None]) == Answer(30, "policy a cannot be used: no CEL")
    assert answer([known("a", "no CEL", onFailure="Continue")], [None]) == Answer()


@pytest.mark.parametrize(
    ("verdict", "blocks", "continues"),
    [
        (None, False, False),
        (waiting("for alice"), False, False),
        (failed("no space"), False, True),
        (DONE, True, True),
    ],
)
def test_on_failure_decides_whether_the_next_order_starts(
    verdict: Verdict | None, blocks: bool, continues: bool
) -> None:
    assert lets_pass(known(), verdict) is blocks
    assert lets_pass(known(onFailure="Continue"), verdict) is continues


CALLED = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("spec", "facts", "verdict"),
    [
        ({}, Facts(CALLED), None),
        ({}, Facts(CALLED, earlier="a"), waiting("waits for policy a")),
        ({"problem": "no CEL"}, Facts(CALLED), waiting("the policy cannot be used: no CEL", 15)),
        (
            {"problem": "no CEL", "suspend": True},
            Facts(CALLED),
            waiting("the policy is suspended", 15),
        ),
    ],
)
def test_an_action_stops_for_the_first_obstacle(
    spec: dict[str, Any], facts: Facts, verdict: Verdict | None
) -> None:
    policy = known(timeout="1h", action={"job": {"template": {}}}, **spec)
    cluster = KnownCluster.of({"metadata": {"name": "demo", "namespace": "team"}})
    assert decide(policy, cluster, occurrence(), facts, CALLED) == verdict


@pytest.mark.parametrize(
    ("phase", "minutes", "expected"),
    [
        ("Running", 60, "Running"),
        ("Running", 61, "Failed"),
        # It ended in time, and the extension looked later.
        ("Done", 61, "Done"),
    ],
)
def test_only_an_action_that_runs_is_late(phase: Phase, minutes: int, expected: Phase) -> None:
    now = CALLED + timedelta(minutes=minutes)
    outcome = in_time(known(timeout="1h"), Verdict(phase), CALLED, now)
    assert outcome.phase == expected
    assert (outcome.message == "not done within 1h0m0s") is (expected == "Failed")


def test_messages_are_bounded() -> None:
    long = Verdict("Waiting", "x" * 1000, 5)
    assert len(answer([known(f"p{n}") for n in range(9)], [long] * 9).message) == 2048
    fits = Verdict("Waiting", "x" * (2048 - len("policy p: ")), 5)
    assert answer([known()], [fits]).message == f"policy p: {fits.message}"


def test_an_occurrence_has_one_result_for_a_policy() -> None:
    upgrade = occurrence()
    policy = PolicyKey("LifecyclePolicy", "team", "policy")
    name = result_name(policy, upgrade)
    assert name.startswith("demo-before-cluster-upgrade-")
    assert name == result_name(policy, replace(upgrade, labels={"other": "label"}))
    # A moved Cluster has another uid.
    assert name == result_name(policy, replace(upgrade, uid="moved"))
    others = [
        result_name(replace(policy, name="other"), upgrade),
        result_name(replace(policy, kind="ClusterLifecyclePolicy", namespace=None), upgrade),
        result_name(policy, replace(upgrade, to_version="v1.35.0")),
        result_name(policy, replace(upgrade, hook="BeforeWorkersUpgrade")),
    ]
    assert len({name, *others}) == 5


def test_the_name_of_a_result_fits() -> None:
    policy = PolicyKey("LifecyclePolicy", "team", "policy")
    assert len(result_name(policy, occurrence(cluster="x" * 253))) <= 253
