"""Three honest tenants work while another tenant attacks the shared managers.

The attacks are seeded and mutated: deep, wide and long objects, odd Unicode, expressions and YAML
that expand, API servers that never end or never answer, and forged calls of hooks. Each kind of
attack has to reach the limit or the check that stops it.
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

from capelin.api import ObjectMeta, Resource, Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Namespace
from capelin.client import Client, ClientOptions, Config
from capelin.testing.waiting import until
from capelin_cli.clusters.demo import demo_manifests
from capelin_control_plane.api import CapelinControlPlane
from capelin_embedded.addresses import NETWORK
from capelin_embedded.management import (
    CORE,
    Environment,
    UpRequest,
    bring_up,
    remove_environment,
)
from capelin_embedded.processes import Process
from capelin_lifecycle.api import LifecyclePolicy, LifecycleResult
from capelin_machine_pool.api import CapelinMachine
from rich.console import Console

from tests.faults.attacker import (
    ATTACKER,
    CAPI,
    CORE_API,
    FAILURES,
    NEXT_VERSION,
    POLICIES,
    VERSION,
    Attacker,
    Evidence,
    grant,
    policy,
    rounds,
    validate,
)
from tests.faults.attacks import ATTACKS, GATED, SECRET, SHOP
from tests.faults.honest import CANARY, HonestTenant, create_cluster
from tests.faults.hostile import ALLOWED, CLIENT, HostileServers, hostile_servers
from tests.faults.tenant_report import TenantReport, broken_limits

HONEST: Final = ("honest-0", "honest-1", "honest-2")
MANAGERS: Final = (
    "control-plane-capelin",
    "infrastructure-capelin",
    "runtime-extension-lifecycle",
)
_SERVERS: Final = ("kube-apiserver", "etcd", CORE.label)
_LANES: Final = 2
"""The number of simultaneous attacks."""
_CALM: Final = 0.2
"""The time before the attacks as a fraction of their time."""
_QUOTAS: Final = Resource("", "v1", "ResourceQuota", "resourcequotas")
_QUOTA: Final[dict[str, Any]] = {
    "count/clusters.cluster.x-k8s.io": 30,
    "count/machines.cluster.x-k8s.io": 30,
    "count/lifecyclepolicies.runtime.capelin.cluster.x-k8s.io": 60,
    "count/configmaps": 60,
    "count/secrets": 120,
}
"""The quota of each tenant from docs/security.md, since memory and time grow with objects."""
_NOTES: Final = "notes"
"""A policy of an honest tenant that changes."""
_ABOUT: Final = re.compile(rf"{ATTACKER}/([a-z-]+-\d+)")
_CIRCUITS: Final = "No requests to cluster"


async def tenants_campaign(
    folder: Path, minutes: float, seed: int, console: Console
) -> TenantReport:
    """Let honest tenants work under attack for some minutes."""
    report = TenantReport(seed, minutes, Evidence(ATTACKS))
    environment = Environment(folder / "capelin" / "tenants")
    # Managers may reach the hostile servers at one address, to test the limits after the check of
    # addresses.
    os.environ["CAPELIN_ALLOWED_NETWORKS"] = f"{NETWORK},{ALLOWED}/32"
    try:
        providers = ("kubeadm-bootstrap", "lifecycle")
        await bring_up(environment, UpRequest(kubernetes_version=VERSION, providers=providers))
        config = Config.from_kubeconfig(environment.kubeconfig)
        async with (
            Client(config, options=ClientOptions(qps=0)) as client,
            hostile_servers() as servers,
        ):
            console.print("the environment is up")
            await _prepare(client)
            console.print("three honest tenants have clusters")
            token = (await client.create_token(ATTACKER, ATTACKER, seconds=7200)).value
            attackers = [
                Attacker(
                    environment,
                    client,
                    token,
                    servers,
                    Random(f"{seed}/{lane}"),  # noqa: S311 - the same attacks every time
                    report.evidence,
                )
                for lane in range(_LANES)
            ]
            async with _processes(environment, report):
                await _run(client, attackers, minutes * 60, report)
            _read_logs(environment, report)
            _add_servers(report, servers)
    finally:
        with suppress(FileNotFoundError):
            await remove_environment(environment)
    for attacker in attackers:
        report.problems += dict.fromkeys(attacker.problems)
    report.problems += broken_limits(report)
    return report


async def _run(
    client: Client, attackers: list[Attacker], seconds: float, report: TenantReport
) -> None:
    """Let all tenants work for some seconds, after some time without attacks."""
    attacks = rounds(ATTACKS, Random(f"{report.seed}"))  # noqa: S311 - the same order every time
    tasks = [
        asyncio.create_task(work)
        for work in (
            *(HonestTenant(client, name, report).work(SHOP, _NOTES) for name in HONEST),
            _watch_results(client, report),
            _watch_gated_cluster(client, report),
            _watch_control_plane(client, report),
            _watch_messages(client, report),
            _watch_neighbours(attackers[0], report),
        )
    ]
    try:
        await _wait(tasks, _CALM * seconds, report)
        report.is_attacked = True
        before = _cpu_seconds(attackers[0].environment)
        tasks += [asyncio.create_task(attacker.attack(attacks)) for attacker in attackers]
        await _wait(tasks, seconds, report)
        after = _cpu_seconds(attackers[0].environment)
        report.processor = {name: after.get(name, 0) - used for name, used in before.items()}
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wait(tasks: list[asyncio.Task[Any]], seconds: float, report: TenantReport) -> None:
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        report.problem(f"the campaign ended early: {task.exception()!r}")


@asynccontextmanager
async def _processes(environment: Environment, report: TenantReport) -> AsyncGenerator[None]:
    """Watch the managers' memory and restarts."""
    names = (CORE.label, *MANAGERS)
    pids = {name: _pid(environment, name) for name in names}
    report.problems += [f"{name} does not run" for name, pid in pids.items() if pid is None]
    memory = asyncio.create_task(_watch_memory(environment, report))
    try:
        yield
    finally:
        memory.cancel()
    for name, pid in pids.items():
        process = Process.adopt(environment.processes, name)
        has_restarted = process is None or process.pid != pid
        report.checks[f"{name}: restarts"] = int(has_restarted)
        if has_restarted:
            report.problems.append(f"{name} restarted")


def _add_servers(report: TenantReport, servers: HostileServers) -> None:
    for name, number in servers.requests.items():
        report.requests[f"requests to hostile server {name}"] = number
    report.problems += dict.fromkeys(servers.problems)
    if not servers.reached_by(CLIENT):
        report.problems.append("no request of a Capelin manager reached a hostile server")


def _read_logs(environment: Environment, report: TenantReport) -> None:
    """Log lines of managers about the attacker's objects."""
    for manager in MANAGERS:
        process = Process.adopt(environment.processes, manager)
        text = "" if process is None else process.log.read_text(errors="replace")
        for line in text.splitlines():
            report.logged[f"{manager}: circuits opened"] += _CIRCUITS in line
            for name in _ABOUT.findall(line):
                report.evidence.add_about(name, line)


def _cpu_seconds(environment: Environment) -> dict[str, float]:
    """The CPU seconds of each process of the environment, without its children."""
    used: dict[str, float] = {}
    for name in (*_SERVERS, *MANAGERS):
        pid = _pid(environment, name)
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used


def _pid(environment: Environment, name: str) -> int | None:
    process = Process.adopt(environment.processes, name)
    return None if process is None else process.pid


# Preparation


async def _prepare(client: Client) -> None:
    """Prepare the honest tenants, the gates and the attacker's permissions."""
    for namespace in (*HONEST, ATTACKER):
        await client.apply(Namespace.of(namespace))
        await client.apply(_quota(namespace))
        await until(lambda namespace=namespace: _is_counted(client, namespace))
        for manifest in demo_manifests():
            manifest["metadata"]["namespace"] = namespace
            await client.apply(manifest)
        await create_cluster(client, SHOP, namespace)
        await until(lambda namespace=namespace: _is_available(client, namespace), within=400)
    for namespace in HONEST:
        await client.apply(ConfigMap(metadata=ObjectMeta(name=CANARY, namespace=namespace)))
        notes = validate("size(object.metadata.name) > 0")
        await client.apply(policy(_NOTES, namespace, notes))
        drafts = validate("has(object.metadata.labels) && 'approved' in object.metadata.labels")
        await client.apply(policy("drafts", namespace, drafts, "BeforeClusterCreate"))
    await client.apply(_patch_policy())
    for name, hook in (("gate", "BeforeClusterCreate"), ("upgrades", "BeforeClusterUpgrade")):
        await client.apply(_gate(name, hook))
    await grant(client)
    await until(lambda: _are_valid(client))
    await create_cluster(client, GATED, ATTACKER)
    upgrade = {"spec": {"topology": {"version": NEXT_VERSION}}}
    await client.patch(Cluster, SHOP, ATTACKER, upgrade)
    await until(lambda: _wait_for_gates(client))


async def _is_counted(client: Client, namespace: str) -> bool:
    quota = await client.get(_QUOTAS, "tenant", namespace)
    if quota.get("status", {}).get("used", {}).keys() == _QUOTA.keys():
        return True
    # The quota controller discovers new kinds every 30 s, and resyncs a quota every 5 minutes.
    await client.delete(_QUOTAS, "tenant", namespace)
    await client.apply(_quota(namespace))
    await asyncio.sleep(5)
    return False


async def _is_available(client: Client, namespace: str) -> bool:
    cluster = await client.get(Cluster, SHOP, namespace)
    return any(c.type == "Available" and c.status == "True" for c in cluster.status.conditions)


async def _are_valid(client: Client) -> bool:
    policies = [policy async for policy in client.iterate(LifecyclePolicy)]
    return all(
        policy.status is not None
        and any(c.type == "Valid" and c.status == "True" for c in policy.status.conditions)
        for policy in policies
    )


async def _wait_for_gates(client: Client) -> bool:
    results = (await client.list(LifecycleResult, ATTACKER)).items
    waiting = {r.spec.policy.name for r in results if r.status and r.status.phase == "Waiting"}
    return waiting == {"gate", "upgrades"}


# Safety checks


async def _watch_memory(environment: Environment, report: TenantReport) -> None:
    while True:
        for name in MANAGERS:
            pid = _pid(environment, name)
            if pid is not None:
                used = await asyncio.to_thread(_tree_memory, pid, _program(pid))
                report.memory[name] = max(used, report.memory.get(name, 0))
        await asyncio.sleep(1)


def _program(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return ""


def _tree_memory(pid: int, program: str) -> float:
    """The proportional memory of a manager and its helpers, in MiB.

    Children that run another program are parts of workload clusters, with limits of their own.
    """
    if _program(pid) != program:
        return 0
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for t in threads for child in (t / "children").read_text().split()]
    except OSError:
        return 0
    own = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return own / 1024 + sum(_tree_memory(int(child), program) for child in children)


def _check_gate(report: TenantReport, *, is_open: bool, text: str) -> None:
    """The attacker's clusters wait for approvals that no administrator gives."""
    report.checks["checks of the gates"] += 1
    if is_open:
        report.problem(f"a gate opened: {text}")


async def _watch_results(client: Client, report: TenantReport) -> None:
    """Results of gates stay open, and those of the attacker's policies show limits."""
    async with aclosing(client.watch(LifecycleResult, ATTACKER)) as events:
        async for event in events:
            name, status = event.object.spec.policy.name, event.object.status
            if event.object.spec.policy.kind == "ClusterLifecyclePolicy":
                is_done = status is not None and status.phase == "Done"
                _check_gate(report, is_open=is_done, text=f"{name} is done")
            elif status is not None:
                report.evidence.add_about(name, status.message)


async def _watch_gated_cluster(client: Client, report: TenantReport) -> None:
    fields = {"metadata.name": GATED}
    async with aclosing(client.watch(Cluster, ATTACKER, fields=fields)) as events:
        async for event in events:
            spec = event.object.spec
            is_open = bool(spec.control_plane_ref or spec.infrastructure_ref)
            _check_gate(report, is_open=is_open, text=f"{GATED} was created")


async def _watch_control_plane(client: Client, report: TenantReport) -> None:
    async with aclosing(client.watch(CapelinControlPlane, ATTACKER)) as events:
        async for event in events:
            is_open = event.object.spec.version != VERSION
            _check_gate(report, is_open=is_open, text=f"{event.object.name} was upgraded")


async def _watch_messages(client: Client, report: TenantReport) -> None:
    """Conditions of the attacker's objects show which limits attacks have reached."""

    async def watch(kind: type[LifecyclePolicy | CapelinMachine]) -> None:
        async with aclosing(client.watch(kind, ATTACKER)) as events:
            async for event in events:
                status = event.object.status
                name = event.object.name
                for condition in (status.conditions if status else None) or ():
                    report.evidence.add_about(name, condition.message or "")
                    if name.startswith(SHOP) and condition.status == "False":
                        report.evidence.add("replaced-kubeconfig", name, condition.message or "")

    await asyncio.gather(watch(LifecyclePolicy), watch(CapelinMachine))


async def _watch_neighbours(attacker: Attacker, report: TenantReport) -> None:
    """Nothing that the attacker can read holds a neighbour's secret."""
    control_planes = "/apis/controlplane.cluster.x-k8s.io/v1alpha1"
    kinds = (
        (CAPI, "clusters"),
        (control_planes, "capelincontrolplanes"),
        (control_planes, "capelincontrolplanetemplates"),
        (POLICIES, "lifecycleresults"),
        (POLICIES, "lifecyclepolicies"),
        (CORE_API, "configmaps"),
    )

    async def watch(group: str, plural: str) -> None:
        before = b""
        while True:
            with suppress(*FAILURES):
                async for piece in attacker.watch(group, plural):
                    # The secret may be split between two pieces.
                    before = before[-len(SECRET) :] + piece
                    report.checks["KiB that the attacker read"] += len(piece) // 1024
                    if SECRET.encode() in before:
                        report.problem(f"the attacker's {plural} hold a neighbour's secret")
            await asyncio.sleep(1)

    await asyncio.gather(*(watch(group, plural) for group, plural in kinds))


def _quota(namespace: str) -> Unstructured:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "tenant", "namespace": namespace},
        "spec": {"hard": _QUOTA},
    }


def _patch_policy() -> Unstructured:
    operation = {"path": "/spec/template/metadata/annotations/note", "value": SECRET}
    templates = [{"kind": "CapelinControlPlaneTemplate", "operations": [operation]}]
    action = {"patches": {"versions": [{"name": "v1", "templates": templates}]}}
    return policy("proxy", HONEST[0], action, "GeneratePatches")


def _gate(name: str, hook: str) -> Unstructured:
    return {
        "apiVersion": LifecyclePolicy.resource.api_version,
        "kind": "ClusterLifecyclePolicy",
        "metadata": {"name": name},
        "spec": {
            "hook": hook,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ATTACKER}},
            "action": {"approval": {"approvers": ["admin@example.com"]}},
        },
    }
