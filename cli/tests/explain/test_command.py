"""The text of `capelin explain`."""

import io

import pytest
from capelin_cli.explain.command import rendered
from capelin_cli.explain.model import Chain, Explanation, Link, Reference
from rich.console import Console

CLUSTER = Reference(group="cluster.x-k8s.io", kind="Cluster", name="prod", namespace="shop")
BUDGET = Reference(group="policy", kind="PodDisruptionBudget", name="web", namespace="shop")
CHAIN = Chain(
    links=[
        Link(object=CLUSTER, text="1 of 2 machines", evidence="status.conditions[Available]"),
        Link(object=BUDGET, text="the drain\x1b[2J waits"),
    ],
    cause="DisruptionBudget",
    responsible="the owner of the PodDisruptionBudget",
    command="kubectl describe pdb -n shop",
)


def text_of(explanation: Explanation, *, whole: bool = False) -> str:
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as capture:
        console.print(rendered(explanation, whole=whole))
    return capture.get()


def test_a_ready_cluster() -> None:
    assert text_of(Explanation(cluster=CLUSTER, state="Ready")) == "Cluster prod is ready.\n"


def test_a_chain_ends_with_the_cause_the_responsible_and_the_command() -> None:
    text = text_of(Explanation(cluster=CLUSTER, state="Waiting", message="old", chains=[CHAIN]))
    assert text.splitlines() == [
        "Cluster prod is waiting: old",
        "",
        "1. Cluster prod: 1 of 2 machines",
        "   └ PodDisruptionBudget web: the drain\\x1b[2J waits",
        "   DisruptionBudget, responsible: the owner of the PodDisruptionBudget",
        "   → kubectl describe pdb -n shop",
    ]


def test_wide_output_has_the_evidence() -> None:
    explanation = Explanation(cluster=CLUSTER, state="Waiting", chains=[CHAIN])
    assert "status.conditions[Available]" not in text_of(explanation)
    assert "status.conditions[Available]" in text_of(explanation, whole=True)


@pytest.mark.parametrize(("whole", "shown"), [(False, 10), (True, 12)])
def test_many_causes(whole: bool, shown: int) -> None:
    explanation = Explanation(cluster=CLUSTER, state="Waiting", chains=[CHAIN] * 12)
    text = text_of(explanation, whole=whole)
    assert text.count("responsible:") == shown
    assert ("2 more causes: -o wide shows them." in text) is not whole


def test_programs_get_camel_case() -> None:
    dumped = Explanation(cluster=CLUSTER, state="Waiting", chains=[CHAIN]).model_dump(
        mode="json", exclude_none=True
    )
    assert dumped["apiVersion"] == "explain.capelin.cluster.x-k8s.io/v1alpha1"
    assert dumped["chains"][0]["links"][1]["object"] == {
        "group": "policy",
        "kind": "PodDisruptionBudget",
        "name": "web",
        "namespace": "shop",
    }
