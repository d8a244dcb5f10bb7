"""`capelin plan` predicts the effect of changes, and changes nothing."""

import asyncio
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.client import Client, Config, WorkloadClients
from capelin.testing.waiting import until
from capelin_cli.clusters.demo import demo_manifests
from capelin_cli.clusters.topology import DEMO_CLASS
from capelin_cli.explain.model import Reference
from capelin_cli.plan.budgets import BUDGETS
from capelin_cli.plan.kinds import CORE_GROUPS
from capelin_cli.plan.model import Budget, ClusterPlan, MachineChanges, Plan
from capelin_cli.plan.planning import Planner
from capelin_cli.plan.sandbox import Sandbox, running_sandbox
from capelin_embedded.management import required_programs, workload_programs
from capelin_lifecycle.api import LifecyclePolicy, LifecycleResult

from .audited import Audited, audited_environment
from .failures import protected_pod
from .homes import processes
from .lifecycle_stories import Stories
from .planned_clusters import Planned
from .planned_scenes import DEPLOYMENT, new_topology, worker_group
from .pools import OLDER, POOL, VERSION

PROVIDERS = ("kubeadm-bootstrap", "lifecycle")
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "plan.md"
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.needs_programs(*required_programs(VERSION, PROVIDERS), *workload_programs(OLDER)),
]


@pytest.fixture(scope="module")
async def audited(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Audited]:
    """A management cluster with an audit log of the user who plans."""
    folder = tmp_path_factory.mktemp("plan")
    async with audited_environment(folder, VERSION, PROVIDERS) as audited:
        yield audited


@pytest.fixture(scope="module")
async def planned(audited: Audited) -> AsyncGenerator[Planned]:
    async with Client(Config.from_kubeconfig(audited.environment.kubeconfig)) as client:
        planned = Planned(client, "planned")
        groups, pools = [worker_group(DEPLOYMENT, 2)], [worker_group(POOL, 2)]
        await planned.create(demo_manifests(), new_topology(DEMO_CLASS, OLDER, groups, pools))
        yield planned


@pytest.fixture(scope="module")
async def sandbox(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Sandbox]:
    async with running_sandbox(tmp_path_factory.mktemp("sandbox")) as sandbox:
        yield sandbox


@pytest.fixture
async def planner(audited: Audited, planned: Planned, sandbox: Sandbox) -> AsyncGenerator[Planner]:
    """Computes plans for a user who may only read."""
    before = await planned.settles()
    async with Client(Config.from_kubeconfig(audited.reader)) as client:
        yield Planner(client, sandbox)
    after = await planned.objects()
    assert versions(before.objects) == versions(after.objects)


def versions(objects: Mapping[Reference, Unstructured]) -> dict[Reference, object]:
    """The versions of all objects but bootstrap configs, whose provider renews tokens.

    Of other providers' objects, the generations: providers write statuses at any time.
    """
    return {
        key: obj["metadata"]["resourceVersion" if key.group in CORE_GROUPS else "generation"]
        for key, obj in objects.items()
        if key.kind != "KubeadmConfig"
    }


def one(plan: Plan) -> ClusterPlan:
    (found,) = plan.clusters
    assert found.unknown == []
    return found


def machines(plan: ClusterPlan, owner: str) -> MachineChanges:
    return next(each for each in plan.machines if each.owner == owner)


def group(cluster: Unstructured) -> dict[str, Any]:
    return cluster["spec"]["topology"]["workers"]["machineDeployments"][0]


def page_commands(*, watch: bool = False) -> list[str]:
    """The commands of the page, each in one line."""
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in lines if watch == ("--watch" in line)]


async def started(
    line: str, audited: Audited, planned: Planned, folder: Path
) -> asyncio.subprocess.Process:
    """A command of the page with the test's cluster."""
    words = [planned.name if word in {"demo", "shop"} else word for word in shlex.split(line)][1:]
    words = [str(audited.reader) if word.endswith(".kubeconfig") else word for word in words]
    if "--kubeconfig" not in words:
        words += ["--namespace", planned.name, "--kubeconfig", str(audited.reader)]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "capelin_cli",
        *words,
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Background processes of a shell without job control ignore it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def sandboxes(folder: Path) -> list[Path]:
    return list((folder / "capelin" / ".plan").glob("sandbox-*"))


@pytest.mark.parametrize("line", page_commands())
async def test_the_commands_of_the_page(
    line: str, audited: Audited, planned: Planned, tmp_path: Path
) -> None:
    before = await planned.settles()
    objects = before.objects
    cluster_class = next(obj for key, obj in objects.items() if key.kind == "ClusterClass")
    (tmp_path / "class.yaml").write_text(json.dumps(cluster_class))
    process = await started(line, audited, planned, tmp_path)
    out, err = await process.communicate()
    replaces = {"--version", "--set"} & {*shlex.split(line)}
    assert process.returncode == (2 if replaces else 0), err.decode()
    assert err.decode() == ""
    first, *_, last = out.decode().splitlines()
    assert first == "Cluster planned in namespace planned"
    assert last.startswith("Machines of 1 cluster:")
    assert "unknown" not in out.decode()
    assert versions(objects) == versions((await planned.objects()).objects)
    assert sandboxes(tmp_path) == []


async def line_with(stream: asyncio.StreamReader | None, text: str) -> str:
    """The next line of an output with a text."""
    assert stream is not None
    async with asyncio.timeout(180):
        while text not in (line := (await stream.readline()).decode()):
            assert line, f"the output ended before {text}"
    return line


@pytest.mark.parametrize("line", page_commands(watch=True))
async def test_a_watched_plan_follows_its_file_and_the_cluster(
    line: str, audited: Audited, planned: Planned, tmp_path: Path
) -> None:
    await planned.settles()
    cluster, file = await planned.live(), tmp_path / "class.yaml"
    file.write_text(json.dumps(cluster))
    process = await started(line, audited, planned, tmp_path)
    summary = "Machines of 1 cluster:"
    assert "4 kept" in await line_with(process.stdout, summary)
    file.write_text("{")
    assert "It is neither YAML nor JSON" in await line_with(process.stderr, "class.yaml")
    group(cluster)["replicas"] = 4
    file.write_text(json.dumps(cluster))
    assert "2 created" in await line_with(process.stdout, summary)
    note = {"metadata": {"annotations": {"example.com/note": "a"}}}
    await planned.client.patch(Cluster, planned.name, planned.name, note)
    await line_with(process.stdout, "the same effect")
    assert len(sandboxes(tmp_path)) == 1
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130
    assert sandboxes(tmp_path) == []


async def test_a_sandbox_runs_core_and_no_other_provider(sandbox: Sandbox) -> None:
    assert processes(sandbox.environment).keys() == {
        "cluster-api",
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
    }


async def test_no_change(planner: Planner, planned: Planned) -> None:
    plan = one(await planner.plan([await planned.live()]))
    assert not plan.has_effect
    assert machines(plan, "MachineDeployment md").kept == 2


async def test_a_new_version_replaces_all_machines(planner: Planner, planned: Planned) -> None:
    cluster = await planned.live()
    cluster["spec"]["topology"]["version"] = VERSION
    plan = one(await planner.plan([cluster]))
    assert plan.versions == [OLDER, VERSION]
    assert machines(plan, "MachineDeployment md").replaced == 2
    assert machines(plan, f"MachinePool {POOL}").replaced == 2
    roles = {each.role for each in plan.objects}
    assert {"Cluster", "control plane", "MachineDeployment md"} <= roles


async def test_an_upgrade_lists_its_hooks_and_their_policies_and_calls_none(
    planner: Planner, planned: Planned
) -> None:
    hook, policy = "BeforeClusterUpgrade", "approval"
    stories = Stories(planned.client, planned.name)
    await stories.apply(policy, hook, {"approval": {"approvers": ["alice"]}})
    await stories.are_called(hook)
    cluster = await planned.live()
    cluster["spec"]["topology"]["version"] = VERSION
    plan = one(await planner.plan([cluster]))
    assert [(each.hook, each.from_version, each.to_version) for each in plan.hooks] == [
        (hook, OLDER, VERSION)
    ]
    assert plan.hooks[0].policies == [f"{planned.name}/{policy}"]
    assert machines(plan, "MachineDeployment md").replaced == 2
    assert (await planned.client.list(LifecycleResult, planned.name)).items == []
    await planned.client.delete(LifecyclePolicy, policy, planned.name)


async def test_a_budget_without_permitted_disruptions_blocks_the_drain(
    planner: Planner, planned: Planned
) -> None:
    workloads = WorkloadClients(planned.client)
    async with workloads.client(planned.name, planned.name) as workload:
        await protected_pod(workload)

        async def is_counted() -> bool:
            (budget,) = (await workload.list(BUDGETS)).items
            return budget.get("status", {}).get("expectedPods") == 1

        await until(is_counted, within=60)
    await workloads.close()
    cluster = await planned.live()
    cluster["spec"]["topology"]["version"] = VERSION
    plan = one(await planner.plan([cluster]))
    assert plan.budgets == [Budget(name="web", namespace="default", pods=1)]
    group(cluster)["replicas"] = 3
    cluster["spec"]["topology"]["version"] = OLDER
    assert one(await planner.plan([cluster])).budgets == []


async def test_more_replicas_create_machines(planner: Planner, planned: Planned) -> None:
    cluster = await planned.live()
    group(cluster)["replicas"] = 4
    plan = one(await planner.plan([cluster]))
    found = machines(plan, "MachineDeployment md")
    assert (found.kept, found.created, found.replaced) == (2, 2, 0)
    assert machines(plan, f"MachinePool {POOL}").kept == 2


async def test_a_variable_rotates_a_template(planner: Planner, planned: Planned) -> None:
    cluster = await planned.live()
    cluster["spec"]["topology"]["variables"] = [{"name": "machines", "value": {"dies": 1}}]
    plan = one(await planner.plan([cluster]))
    assert machines(plan, "MachineDeployment md").replaced == 2
    rotated = [each.role for each in plan.objects if each.action == "Rotated"]
    assert rotated == ["infrastructure template of MachineDeployment md"]


async def test_a_new_template_of_the_class(planner: Planner, planned: Planned) -> None:
    objects = (await planned.objects()).objects
    found = {key.kind: deepcopy(obj) for key, obj in objects.items() if key.name == "capelin"}
    template, cluster_class = found["CapelinMachineTemplate"], found["ClusterClass"]
    template["metadata"] = {"name": "slower", "namespace": planned.name}
    template["spec"]["template"]["spec"]["simulated"]["startupJitterSeconds"] = 1
    workers = cluster_class["spec"]["workers"]["machineDeployments"][0]
    workers["infrastructure"]["templateRef"]["name"] = "slower"
    plan = await planner.plan([template, cluster_class])
    assert [(each.action, each.kind) for each in plan.change] == [
        ("Created", "CapelinMachineTemplate"),
        ("Changed", "ClusterClass"),
    ]
    assert machines(one(plan), "MachineDeployment md").replaced == 2
    assert machines(one(plan), f"MachinePool {POOL}").kept == 2


async def test_labels_change_machines_in_place(planner: Planner, planned: Planned) -> None:
    cluster = await planned.live()
    group(cluster)["metadata"] = {"labels": {"team": "shop"}}
    found = machines(one(await planner.plan([cluster])), "MachineDeployment md")
    assert (found.updated, found.replaced) == (2, 0)
    assert "metadata.labels.team" in found.fields


async def test_a_group_of_workers_goes_and_another_comes(
    planner: Planner, planned: Planned
) -> None:
    cluster = await planned.live()
    workers = cluster["spec"]["topology"]["workers"]
    workers["machineDeployments"] = [worker_group("other", 1)]
    plan = one(await planner.plan([cluster]))
    assert machines(plan, "MachineDeployment md").deleted == 2
    assert machines(plan, "MachineDeployment other").created == 1


async def test_the_audit_log_contains_no_write(
    audited: Audited, planner: Planner, planned: Planned
) -> None:
    """After all other tests. The log is complete when it has the requests of this plan."""
    before = audited.verbs()
    one(await planner.plan([await planned.live()]))
    verbs = await until(audited.verbs, lambda verbs: verbs["list"] > before.get("list", 0) + 10)
    assert verbs.keys() <= {"get", "list", "watch"}
