"""Behaviour rules with the real core: each provider breaks exactly the rule that it is for."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.client import Client, Config
from capelin.contract import WATCH_LABEL
from capelin.controller import Reconciler
from capelin.testing.managers import running
from capelin_conformance.providers import (
    BEHAVIOUR_RULES,
    Contract,
    ManagerProcess,
    Subject,
    Timing,
    World,
    check_behaviour,
    manifests_of,
)
from capelin_conformance.report import ConformanceReport
from capelin_embedded.management import apply_manifests
from capelin_embedded.testing.management import ManagementCluster

from .lamps import (
    BROKEN_CONTROL_PLANES,
    BROKEN_MACHINES,
    BROKEN_POOLS,
    BROKEN_PROCESSES,
    LampClusters,
    LampControlPlanes,
    LampMachines,
    LampPools,
    MakesInstancesOnce,
    provider,
)

pytestmark = pytest.mark.timeout(600)

TIMING = Timing(patience=25, hold=2, rest=4)
REPRESENTATIVE = {"pausing", "quiet", "kubeconfig-usable"}
WITHOUT_MANAGER = {"template-dry-run": "tools/conformance/tests/test_provider_api_server.py"}
"""The rules that need only an API server, and the tests that break them."""
ROOT = Path(__file__).parents[2]
COMMAND = f"env PYTHONPATH={ROOT} {sys.executable} -m {provider.__module__}"
OPTIONS = "--kubeconfig={kubeconfig} --health-address=0 --metrics-address=0"
LEADER = (
    "--leader-elect --leader-elect-lease-duration=4s"
    " --leader-elect-renew-deadline=3s --leader-elect-retry-period=1s"
)
PAGE = ROOT / "docs/project/conformance.md"


async def checked(
    management: Client,
    cluster: ManagementCluster,
    contract: Contract,
    reconciler: type[Reconciler[Any]],
    *,
    own_process: bool,
) -> ConformanceReport:
    """The report about a manager that works on the objects with its name in a label."""
    subject = Subject.of(manifests_of(provider()), contract)
    await apply_manifests(management, provider().crds)
    variant = reconciler.__name__
    sample: Unstructured = {
        "kind": subject.kind.kind,
        "metadata": {"labels": {WATCH_LABEL: variant}},
        "spec": {"version": "v1.34.4"} if contract == "control-plane" else {},
    }
    config = Config.from_kubeconfig(cluster.kubeconfig)
    world = World(management, subject, [sample], TIMING)
    if own_process:
        leader = LEADER if reconciler is MakesInstancesOnce else ""
        command = f"{COMMAND} {variant} {OPTIONS} --watch-filter={variant} {leader}"
        async with ManagerProcess.run(command, config) as manager:
            report = await check_behaviour(replace(world, manager=manager))
            assert not manager.has_ended, manager.last_output()
            return report
    async with running(reconciler(), config=config, watch_filter=variant):
        return await check_behaviour(world)


def broken_rules(report: ConformanceReport) -> dict[str, tuple[str, ...]]:
    return {result.name: result.problems for result in report.results if result.problems}


def marked(name: str) -> Any:
    marks = [pytest.mark.representative] if name in REPRESENTATIVE else []
    return pytest.param(name, marks=marks, id=name)


@pytest.mark.parametrize(
    ("contract", "reconciler"),
    [
        pytest.param("infra-machine", LampMachines, marks=pytest.mark.representative),
        ("infra-cluster", LampClusters),
        ("control-plane", LampControlPlanes),
        ("machine-pool", LampPools),
    ],
)
async def test_complete_provider_keeps_every_rule(
    management: Client,
    management_cluster: ManagementCluster,
    contract: Contract,
    reconciler: type[Reconciler[Any]],
) -> None:
    report = await checked(management, management_cluster, contract, reconciler, own_process=True)
    assert broken_rules(report) == {}
    assert report.named("untried") == []


BROKEN: dict[str, tuple[Contract, type[Reconciler[Any]]]] = {
    **{name: ("infra-machine", machines) for name, machines in BROKEN_MACHINES.items()},
    **{name: ("infra-machine", machines) for name, machines in BROKEN_PROCESSES.items()},
    **{name: ("control-plane", planes) for name, planes in BROKEN_CONTROL_PLANES.items()},
    **{name: ("machine-pool", pools) for name, pools in BROKEN_POOLS.items()},
}


def test_every_rule_has_a_broken_counterpart() -> None:
    assert {rule.name for rule in BEHAVIOUR_RULES} == {*BROKEN, *WITHOUT_MANAGER}


def test_page_lists_the_rules_and_their_counterparts() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    for rule in BEHAVIOUR_RULES:
        level = "advice" if rule.advice else "required"
        broken = (
            BROKEN[rule.name][1].__name__ if rule.name in BROKEN else WITHOUT_MANAGER[rule.name]
        )
        assert f"| `{rule.name}` | {', '.join(rule.contracts)} | {level} | `{broken}` |" in rows


@pytest.mark.parametrize("name", [marked(name) for name in BROKEN])
async def test_broken_provider_breaks_exactly_one_rule(
    management: Client, management_cluster: ManagementCluster, name: str
) -> None:
    contract, broken = BROKEN[name]
    report = await checked(
        management, management_cluster, contract, broken, own_process=name in BROKEN_PROCESSES
    )
    assert [*broken_rules(report)] == [name], broken_rules(report)
