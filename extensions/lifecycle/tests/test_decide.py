"""The answer of a hook, and the name of the result that it refers to."""

from dataclasses import replace

from capelin_lifecycle.decision import Answer, answer
from capelin_lifecycle.policies.clusters import PolicyKey, result_name
from capelin_lifecycle.policies.verdict import Verdict

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


def test_messages_are_bounded() -> None:
    long = Verdict("Waiting", "x" * 1000, 5)
    assert len(answer([known(f"p{n}") for n in range(9)], [long] * 9).message) == 2048


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
