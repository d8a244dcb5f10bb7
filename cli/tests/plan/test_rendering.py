"""A plan as text and as Markdown."""

from capelin_cli.plan.model import (
    Budget,
    ClusterPlan,
    FieldChange,
    HookCall,
    MachineChanges,
    ObjectChange,
    Plan,
)
from capelin_cli.plan.rendering import markdown_lines, text_lines

from .objects import CLUSTER

ROLLED = MachineChanges(
    owner="MachineDeployment md",
    before=3,
    after=3,
    replaced=3,
    max_surge=1,
    max_unavailable=0,
    order="CreateFirst",
)
PLAN = Plan(
    cluster_api="v1.14.2",
    clusters=[
        ClusterPlan(
            cluster=CLUSTER,
            versions=["v1.33.1", "v1.34.1"],
            objects=[
                ObjectChange(
                    action="Changed",
                    kind="FooControlPlane",
                    role="control plane",
                    fields=[
                        FieldChange(path="spec.version", before="v1.33.1", after="v1.34.1"),
                        FieldChange(path="spec.x", before=None, after={"a|b": "\x1b[2J"}),
                    ],
                )
            ],
            machines=[ROLLED],
            hooks=[
                HookCall(
                    hook="BeforeClusterUpgrade",
                    handler="gate.lifecycle",
                    from_version="v1.33.1",
                    to_version="v1.34.1",
                    policies=["shop/approval"],
                )
            ],
            budgets=[Budget(name="web", namespace="default", pods=2)],
            unknown=["an extension does not answer"],
        )
    ],
    notes=["minReadySeconds is left out"],
)
SUMMARY = (
    "Machines of 1 cluster: 0 kept, 0 updated, 3 replaced, 0 created, 0 deleted. "
    "1 cluster with unknown effects."
)


def test_text() -> None:
    assert list(text_lines(PLAN)) == [
        "Cluster prod in namespace shop",
        "  versions: v1.33.1 → v1.34.1",
        "  ~ control plane (FooControlPlane): changed",
        "      spec.version: v1.33.1 → v1.34.1",
        '      spec.x: none → {"a|b": "\\u001b[2J"}',
        "  machines:",
        "    MachineDeployment md: 3 replaced (new machines first, at most 1 more and 0 fewer)",
        "  hooks:",
        "    BeforeClusterUpgrade (v1.33.1 → v1.34.1): gate.lifecycle, policies: shop/approval",
        "  drains that wait:",
        "    PodDisruptionBudget default/web",
        "  unknown:",
        "    an extension does not answer",
        "",
        SUMMARY,
        "Note: minReadySeconds is left out",
    ]


def test_no_effect() -> None:
    kept = MachineChanges(owner="MachineDeployment md", before=1, after=1, kept=1)
    plan = Plan(clusters=[ClusterPlan(cluster=CLUSTER, machines=[kept])])
    assert list(text_lines(plan))[:2] == ["Cluster prod in namespace shop", "  no effect"]
    assert "No effect." in list(markdown_lines(plan))


def test_markdown() -> None:
    lines = list(markdown_lines(PLAN))
    assert "| MachineDeployment md | 0 | 0 | 3 | 0 | 0 |" in lines
    assert "  - `spec.version`: `v1.33.1` → `v1.34.1`" in lines
    assert '  - `spec.x`: `none` → `{"a\\|b": "\\u001b[2J"}`' in lines
    assert "**Unknown**" in lines


def test_programs_get_camel_case() -> None:
    data = PLAN.model_dump(mode="json", exclude_none=True)
    assert data["apiVersion"] == "plan.capelin.cluster.x-k8s.io/v1alpha1"
    assert data["clusters"][0]["machines"][0]["maxSurge"] == 1
