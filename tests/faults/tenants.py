"""Three honest tenants work while another tenant attacks the managers that all of them share.

The attacks are seeded and mutated: deep, wide and long objects, odd Unicode, expressions and YAML
that expand, API servers that never end or never answer, and forged calls of hooks.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass
from capelin.api.core import Namespace
from capelin.client import Client, ClientOptions, Config
from capelin.embedded.addresses import NETWORK
from capelin.embedded.management import (
    CORE,
    Environment,
    UpRequest,
    bring_up,
    remove_environment,
)
from capelin.embedded.processes import Process
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_infra.clusters.demo import demo_manifests
from capelin_infra.clusters.topology import DEMO_CLASS, ClusterOptions, new_cluster
from capelin_lifecycle.api import LifecyclePolicy, LifecycleResult
from capelin_machine_pool.api import CapelinMachinePool
from rich.console import Console
from rich.table import Table

from tests.bench.rows import percentile
from tests.faults.attacker import (
    ATTACKER,
    CAPI,
    CORE_API,
    FAILURES,
    NEXT_VERSION,
    POLICIES,
    VERSION,
    Attacker,
    grant,
    policy,
    validate,
)
from tests.faults.attacks import ATTACKS, GATED, SECRET, SHOP
from tests.faults.hostile import ALLOWED, CLIENT, HostileServers, hostile_servers

HONEST: Final = ("honest-0", "honest-1", "honest-2")
MANAGERS: Final = (
    "control-plane-capelin",
    "infrastructure-capelin",
    "runtime-extension-lifecycle",
)
_SERVERS: Final = ("kube-apiserver", "etcd", CORE.label)
P99_SECONDS: Final = 5.0
MEMORY_LIMIT_MIB: Final = 512
"""The memory limit of the charts."""
_LANES: Final = 2
"""How many attacks the attacker carries out at the same time."""
_CALM: Final = 0.2
"""The time before the attacks, as a part of theirs."""
_PATIENCE: Final = 60.0
_OPENED: Final = "a gate opened"
_LOG_LINES: Final = {
    f"No requests to cluster {ATTACKER}/": "circuits opened",
    "cannot be read": "unreadable objects logged",
}


@dataclass
class TenantReport:
    """The figures of a campaign."""

    seed: int
    minutes: float = 0.0
    is_attacked: bool = False
    calm: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Seconds from a change to its reconcile, by kind, before the attacks."""
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """The same during the attacks."""
    failures: Counter[str] = field(default_factory=Counter[str])
    """Requests of honest tenants that failed."""
    attacks: Counter[str] = field(default_factory=Counter[str])
    accepted: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    """Writes that the API server refused, with its reason."""
    calls: Counter[str] = field(default_factory=Counter[str])
    """Forged calls of hooks, by outcome."""
    requests: Counter[str] = field(default_factory=Counter[str])
    """Requests that arrived at hostile servers, by server and client."""
    results: Counter[str] = field(default_factory=Counter[str])
    """Results of the attacker's policies, by action and outcome."""
    logged: Counter[str] = field(default_factory=Counter[str])
    memory: dict[str, float] = field(default_factory=dict[str, float])
    """The most MiB that each manager used with its own helper processes."""
    processor: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds of processor time that each process of the environment took during the attacks."""
    lateness: list[float] = field(default_factory=list[float])
    """Seconds by which the campaign itself was late, since its machine is busy."""
    problems: list[str] = field(default_factory=list[str])

    def table(self) -> Table:
        """The latencies of the honest tenants."""
        table = Table("change of", "", "times", "p50 s", "p99 s", "longest s")
        for title, times in (("calm", self.calm), ("attacked", self.seconds)):
            for name, seconds in sorted(times.items()):
                figures = (percentile(seconds, 0.5), percentile(seconds, 0.99), max(seconds))
                cells = (f"{figure:.2f}" for figure in figures)
                table.add_row(name, title, f"{len(seconds)}", *cells)
        return table

    def lines(self) -> list[str]:
        """The other figures, a line each."""
        counters = {
            "failed requests of honest tenants": self.failures,
            "attacks": self.attacks,
            "accepted": self.accepted,
            "refused": self.refused,
            "forged calls": self.calls,
            "requests to hostile servers": self.requests,
            "results of the attacker's policies": self.results,
            "logged": self.logged,
        }
        lines = [
            f"{title}: {name}: {number}"
            for title, counter in counters.items()
            for name, number in sorted(counter.items())
        ]
        memory = [f"{name}: {mib:.0f} MiB at most" for name, mib in sorted(self.memory.items())]
        memory += [f"{name}: {used:.0f} s of CPU time" for name, used in self.processor.items()]
        late = percentile(self.lateness, 0.99), max(self.lateness)
        own = f"the campaign itself: p99 {late[0]:.2f} s late, {late[1]:.2f} s at most"
        return [*lines, *memory, own]


async def tenants_campaign(
    folder: Path, minutes: float, seed: int, console: Console
) -> TenantReport:
    """Let honest tenants work under attack for so many minutes."""
    report = TenantReport(seed, minutes)
    environment = Environment(folder / "capelin" / "tenants")
    # Of the hostile servers, managers may reach those at one address, so that limits are tested
    # that come after the check of addresses.
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
                Attacker(environment, client, token, servers, Random(f"{seed}/{lane}"))  # noqa: S311
                for lane in range(_LANES)
            ]
            await _run(environment, client, attackers, minutes * 60, report)
            _add_attacks(report, attackers, servers)
            report.logged = _logged(environment)
    finally:
        with suppress(FileNotFoundError):
            await remove_environment(environment)
    return report


async def _run(
    environment: Environment,
    client: Client,
    attackers: list[Attacker],
    seconds: float,
    report: TenantReport,
) -> None:
    names = (CORE.label, *MANAGERS)
    pids = {name: _pid(environment, name) for name in names}
    report.problems += [f"{name} does not run" for name, pid in pids.items() if pid is None]
    tasks = [
        asyncio.create_task(work)
        for work in (
            *(_repeat(_change, 0.5, client, namespace, report) for namespace in HONEST),
            *(_repeat(_draft, 5, client, namespace, report) for namespace in HONEST),
            *(_attack(attacker, report, seconds) for attacker in attackers),
            _watch_lateness(report),
            _watch_memory(environment, report),
            _watch_gates(client, report),
            _watch_neighbours(attackers[0], report),
        )
    ]
    timeout = (1 + _CALM) * seconds
    done, pending = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_EXCEPTION)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    report.problems += [f"the campaign ended early: {task.exception()!r}" for task in done]
    report.problems += [
        f"{name} restarted" for name, pid in pids.items() if _pid(environment, name) != pid
    ]
    report.problems += broken_limits(report)


async def _attack(attacker: Attacker, report: TenantReport, seconds: float) -> None:
    await asyncio.sleep(_CALM * seconds)
    report.is_attacked = True
    before = _cpu_seconds(attacker.environment)
    try:
        await attacker.attack(ATTACKS)
    finally:
        after = _cpu_seconds(attacker.environment)
        report.processor = {name: after.get(name, 0) - used for name, used in before.items()}


def broken_limits(report: TenantReport) -> list[str]:
    """Figures that are above their limits."""
    return [
        *(
            f"{name} used {mib:.0f} MiB, more than {MEMORY_LIMIT_MIB}"
            for name, mib in report.memory.items()
            if mib > MEMORY_LIMIT_MIB
        ),
        *(
            f"changes of {name}: p99 above {P99_SECONDS:g} s"
            for name, times in report.seconds.items()
            if percentile(times, 0.99) > P99_SECONDS
        ),
    ]


def _add_attacks(report: TenantReport, attackers: list[Attacker], servers: HostileServers) -> None:
    for attacker in attackers:
        report.attacks += attacker.attacks
        report.accepted += attacker.accepted
        report.refused += attacker.refused
        report.calls += attacker.calls
        report.problems += dict.fromkeys(attacker.problems)
    report.requests = servers.requests
    report.problems += dict.fromkeys(servers.problems)
    if not servers.reached_by(CLIENT):
        report.problems.append("no request of a Capelin manager reached a hostile server")
    if not report.results:
        report.problems.append("no policy of the attacker was carried out")


def _logged(environment: Environment) -> Counter[str]:
    """How often managers logged that a limit was reached."""
    counted: Counter[str] = Counter()
    for name in MANAGERS:
        process = Process.adopt(environment.processes, name)
        text = "" if process is None else process.log.read_text(errors="replace")
        for line in text.splitlines():
            for part, title in _LOG_LINES.items():
                if part in line:
                    counted[f"{name}: {title}"] += 1
    return counted


def _cpu_seconds(environment: Environment) -> dict[str, float]:
    """The processor time of each process of the environment itself, without its children."""
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


# The honest tenants


async def _prepare(client: Client) -> None:
    """Namespaces, clusters and policies of the honest tenants; the gates; the attacker's rights."""
    for namespace in (*HONEST, ATTACKER):
        await client.apply(Namespace.of(namespace))
        for manifest in demo_manifests():
            manifest["metadata"]["namespace"] = namespace
            await client.apply(manifest)
        await _create_cluster(client, SHOP, namespace)
        await until(lambda namespace=namespace: _is_available(client, namespace), within=400)
    for namespace in HONEST:
        notes = validate("size(object.metadata.name) > 0")
        await client.apply(policy("notes", namespace, notes))
        drafts = validate("has(object.metadata.labels) && 'approved' in object.metadata.labels")
        await client.apply(policy("drafts", namespace, drafts, "BeforeClusterCreate"))
    await client.apply(_patch_policy())
    for name, hook in (("gate", "BeforeClusterCreate"), ("upgrades", "BeforeClusterUpgrade")):
        await client.apply(_gate(name, hook))
    await grant(client)
    await until(lambda: _are_valid(client))
    await _create_cluster(client, GATED, ATTACKER)
    upgrade = {"spec": {"topology": {"version": NEXT_VERSION}}}
    await client.patch(Cluster, SHOP, ATTACKER, upgrade)
    await until(lambda: _wait_for_gates(client))


async def _create_cluster(client: Client, name: str, namespace: str) -> None:
    cluster_class = await client.get(ClusterClass, DEMO_CLASS, namespace)
    options = ClusterOptions(
        cluster_class=DEMO_CLASS, version=VERSION, control_plane_replicas=1, workers=1
    )
    await client.create(new_cluster(name, namespace, VERSION, options, cluster_class))


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


async def _repeat(
    step: Callable[[Client, str, int, TenantReport], Awaitable[None]],
    pause: float,
    client: Client,
    namespace: str,
    report: TenantReport,
) -> None:
    """Do a tenant's work again and again; requests that fail are counted."""
    for number in count(1):
        try:
            await step(client, namespace, number, report)
        except FAILURES as error:
            report.failures[f"{namespace}: {type(error).__name__}"] += 1
        await asyncio.sleep(pause)


async def _change(client: Client, namespace: str, number: int, report: TenantReport) -> None:
    """Change a control plane, a pool and a policy in turn; measure until each is reconciled."""
    timeout = {"spec": {"deletion": {"nodeDrainTimeoutSeconds": number}}}
    order = ("Newest", "Oldest")[number % 2]
    for kind, patch in (
        (CapelinControlPlane, {"machineTemplate": timeout}),
        (CapelinMachinePool, {"rollingUpdate": {"deletePolicy": order}}),
        (LifecyclePolicy, {"order": number % 1000}),
    ):
        items = (await client.list(kind, namespace)).items
        obj = next(item for item in items if item.name.startswith((SHOP, "notes")))
        began = time.monotonic()
        changed = await client.patch(kind, obj.name, namespace, {"spec": patch})
        generation = changed.metadata.generation or 0

        async def is_reconciled(
            kind: Any = kind, name: str = obj.name, generation: int = generation
        ) -> bool:
            status = (await client.get(kind, name, namespace)).status
            return status is not None and (status.observed_generation or 0) >= generation

        await _measure(report, kind.__name__, namespace, began, is_reconciled)


async def _draft(client: Client, namespace: str, number: int, report: TenantReport) -> None:
    """Create a Cluster that a policy holds up; measure until its result shows so."""
    name = f"draft-{number}"
    began = time.monotonic()
    await _create_cluster(client, name, namespace)

    async def is_decided() -> bool:
        results = (await client.list(LifecycleResult, namespace)).items
        return any(r.spec.cluster.name == name and r.status is not None for r in results)

    await _measure(report, "Cluster, by its hook", namespace, began, is_decided)
    await client.delete(Cluster, name, namespace)


async def _measure(
    report: TenantReport, name: str, namespace: str, began: float, is_done: Callable[[], Any]
) -> None:
    try:
        await until(is_done, within=_PATIENCE)
    except AssertionError:
        report.problems.append(f"{namespace}: {name} not reconciled in {_PATIENCE:g} s")
    seconds = report.seconds if report.is_attacked else report.calm
    seconds.setdefault(name, []).append(time.monotonic() - began)


# What must not happen


async def _watch_lateness(report: TenantReport) -> None:
    while True:
        due = time.monotonic() + 0.1
        await asyncio.sleep(0.1)
        report.lateness.append(time.monotonic() - due)


async def _watch_memory(environment: Environment, report: TenantReport) -> None:
    while True:
        for name in MANAGERS:
            pid = _pid(environment, name)
            if pid is not None:
                used = await asyncio.to_thread(_tree_memory, pid, _program(pid))
                report.memory[name] = max(used, report.memory.get(name, 0))
        await asyncio.sleep(0.5)


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


async def _watch_gates(client: Client, report: TenantReport) -> None:
    """The attacker's clusters wait for approvals that no administrator gives."""
    outcomes: dict[str, str] = {}
    while not any(problem.startswith(_OPENED) for problem in report.problems):
        with suppress(*FAILURES):
            results = (await client.list(LifecycleResult, ATTACKER)).items
            opened = await _opened_gates(client, results)
            report.problems += [f"{_OPENED}: {text}" for text in opened]
            for result in results:
                if result.status and result.spec.policy.kind == "LifecyclePolicy":
                    text = f"{result.spec.action}: {result.status.phase}"
                    outcomes[result.name] = f"{text}: {_summary(result.status.message)}"
            report.results = Counter(outcomes.values())
        await asyncio.sleep(1)
    await asyncio.Event().wait()


async def _opened_gates(client: Client, results: list[LifecycleResult]) -> list[str]:
    gated = await client.get(Cluster, GATED, ATTACKER)
    (control_plane,) = (await client.list(CapelinControlPlane, ATTACKER)).items
    opened = [
        f"{result.spec.policy.name} is done"
        for result in results
        if result.spec.policy.kind == "ClusterLifecyclePolicy"
        and result.status
        and result.status.phase == "Done"
    ]
    if gated.spec.control_plane_ref or gated.spec.infrastructure_ref:
        opened.append(f"{GATED} was created")
    if control_plane.spec.version != VERSION:
        opened.append(f"{SHOP} was upgraded")
    return opened


def _summary(message: str) -> str:
    """The end of a message, which names the limit; without what a tenant wrote."""
    printable = "".join(c for c in message if c.isascii() and c.isprintable() and not c.isdigit())
    return printable[-60:]


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
    leaked: set[str] = set()
    while True:
        for group, plural in kinds:
            with suppress(*FAILURES):
                if SECRET.encode() in await attacker.read(group, plural) and plural not in leaked:
                    leaked.add(plural)
                    report.problems.append(f"the attacker's {plural} hold a neighbour's secret")
        await asyncio.sleep(5)


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
