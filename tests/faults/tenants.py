"""Three honest tenants work while another tenant attacks the managers that all of them share.

The attacks are seeded and mutated: deep, wide and long objects, odd Unicode, expressions and YAML
that expand, API servers that never end or never answer, and forged calls of hooks.
"""

import asyncio
import base64
import gzip
import json
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPSConnection
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass, ExtensionConfig
from capelin.api.core import Namespace
from capelin.client import Client, ClientOptions, Config
from capelin.embedded.binaries import TESTED_KUBERNETES
from capelin.embedded.management import (
    CORE,
    Environment,
    UpRequest,
    bring_up,
    remove_environment,
)
from capelin.embedded.processes import Process
from capelin.runtime.v1alpha1 import BeforeClusterCreate, GeneratePatches
from capelin.testing.extensions import fake_request
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_infra.demo import demo_manifests
from capelin_infra.topology import DEMO_CLASS, ClusterOptions, new_cluster
from capelin_lifecycle.api import LifecyclePolicy, LifecycleResult
from capelin_machine_pool.api import CapelinMachinePool
from rich.console import Console
from rich.table import Table

from tests.bench.rows import percentile

HONEST: Final = ("honest-0", "honest-1", "honest-2")
ATTACKER: Final = "mallory"
GATED: Final = "gated"
MANAGERS: Final = (
    "control-plane-capelin",
    "infrastructure-capelin",
    "runtime-extension-lifecycle",
)
VERSION: Final = TESTED_KUBERNETES[-1]
SECRET: Final = "known-to-honest-0-only"
P99_SECONDS: Final = 5.0
MEMORY_LIMIT_MIB: Final = 512
"""The memory limit of the charts."""
_PATIENCE: Final = 60.0
_SPACES: Final = "\u00a0\u1680\u2003\u2028\u202f\u3000\ufeff\u200b\u0085\v\f"
_ODD: Final = _SPACES + "\u0660\u0967\uff11\u212a\u0130\u00df\u202e\u0301\U0001f41f"
_ATTACKER_RULES: Final = [
    {
        "apiGroups": [
            "cluster.x-k8s.io",
            "controlplane.cluster.x-k8s.io",
            "infrastructure.cluster.x-k8s.io",
            "runtime.capelin.cluster.x-k8s.io",
        ],
        "resources": ["*"],
        "verbs": ["*"],
    },
    {"apiGroups": [""], "resources": ["secrets", "configmaps"], "verbs": ["*"]},
]

Attack = Callable[["Attacker"], Awaitable[object]]


@dataclass
class TenantReport:
    """The figures of a campaign."""

    seed: int
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Seconds from a change to its reconcile, by kind."""
    attacks: dict[str, int] = field(default_factory=dict[str, int])
    memory: dict[str, float] = field(default_factory=dict[str, float])
    """The most MiB that each manager used with its children."""
    problems: list[str] = field(default_factory=list[str])

    def table(self) -> Table:
        """The latencies of the honest tenants."""
        table = Table("change of", "times", "p50 s", "p99 s", "longest s")
        for name, seconds in sorted(self.seconds.items()):
            figures = (percentile(seconds, 0.5), percentile(seconds, 0.99), max(seconds))
            table.add_row(name, f"{len(seconds)}", *(f"{figure:.2f}" for figure in figures))
        return table


async def tenants_campaign(
    folder: Path, minutes: float, seed: int, console: Console
) -> TenantReport:
    """Let honest tenants work under attack for so many minutes."""
    report = TenantReport(seed)
    environment = Environment(folder / "capelin" / "tenants")
    try:
        providers = ("kubeadm-bootstrap", "lifecycle")
        await bring_up(environment, UpRequest(kubernetes_version=VERSION, providers=providers))
        config = Config.from_kubeconfig(environment.kubeconfig)
        async with Client(config, options=ClientOptions(qps=0)) as client:
            await _prepare(client)
            console.print("three honest tenants have clusters")
            token = (await client.create_token(ATTACKER, ATTACKER, seconds=7200)).value
            async with _servers() as ports:
                attacker = Attacker(environment, client, token, ports, Random(seed))  # noqa: S311
                await _run(environment, client, attacker, minutes * 60, report)
    finally:
        with suppress(FileNotFoundError):
            await remove_environment(environment)
    return report


async def _run(
    environment: Environment,
    client: Client,
    attacker: "Attacker",
    seconds: float,
    report: TenantReport,
) -> None:
    pids = {name: _pid(environment, name) for name in MANAGERS}
    tasks = [
        asyncio.create_task(work)
        for work in (
            *(_work(client, namespace, report) for namespace in HONEST),
            attacker.attack(report),
            _watch_memory(environment, report),
            _watch_gate(client, report),
        )
    ]
    done, pending = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    report.problems += [f"the campaign ended early: {task.exception()!r}" for task in done]
    for name, pid in pids.items():
        if _pid(environment, name) != pid:
            report.problems.append(f"{name} restarted")
    for name, mib in report.memory.items():
        if mib > MEMORY_LIMIT_MIB:
            report.problems.append(f"{name} used {mib:.0f} MiB, more than {MEMORY_LIMIT_MIB}")
    for name, times in report.seconds.items():
        if percentile(times, 0.99) > P99_SECONDS:
            report.problems.append(f"changes of {name}: p99 above {P99_SECONDS:g} s")
    for problem in attacker.problems:
        report.problems.append(problem)


def _pid(environment: Environment, name: str) -> int | None:
    process = Process.adopt(environment.processes, name)
    return None if process is None else process.pid


# The honest tenants


async def _prepare(client: Client) -> None:
    """Namespaces, clusters and policies of the honest tenants; the gate; the attacker's rights."""
    for namespace in (*HONEST, ATTACKER):
        await client.apply(Namespace.of(namespace))
        for manifest in demo_manifests():
            manifest["metadata"]["namespace"] = namespace
            await client.apply(manifest)
    for namespace in HONEST:
        await client.apply(_policy("notes", namespace, _validate("size(object.metadata.name) > 0")))
        await _create_cluster(client, "shop", namespace)
    await client.apply(_patch_policy())
    await client.apply(_gate())
    await _grant(client)
    for namespace in HONEST:
        await until(lambda namespace=namespace: _is_available(client, namespace), within=300)
    await _create_cluster(client, GATED, ATTACKER)


async def _create_cluster(client: Client, name: str, namespace: str) -> None:
    cluster_class = await client.get(ClusterClass, DEMO_CLASS, namespace)
    options = ClusterOptions(
        cluster_class=DEMO_CLASS, version=VERSION, control_plane_replicas=1, workers=1
    )
    await client.create(new_cluster(name, namespace, VERSION, options, cluster_class))


async def _is_available(client: Client, namespace: str) -> bool:
    cluster = await client.get(Cluster, "shop", namespace)
    return any(c.type == "Available" and c.status == "True" for c in cluster.status.conditions)


async def _work(client: Client, namespace: str, report: TenantReport) -> None:
    """Change a control plane, a pool and a policy in turn; measure until each is reconciled."""
    number = 0
    while True:
        number += 1
        timeout = {"spec": {"deletion": {"nodeDrainTimeoutSeconds": number}}}
        order = ("Newest", "Oldest")[number % 2]
        for kind, patch in (
            (CapelinControlPlane, {"machineTemplate": timeout}),
            (CapelinMachinePool, {"rollingUpdate": {"deletePolicy": order}}),
            (LifecyclePolicy, {"order": number % 1000}),
        ):
            name = kind.__name__
            (obj,) = (
                (await client.list(kind, namespace)).items
                if kind is not LifecyclePolicy
                else [await client.get(LifecyclePolicy, "notes", namespace)]
            )
            began = time.monotonic()
            changed = await client.patch(kind, obj.name, namespace, {"spec": patch})
            generation = changed.metadata.generation or 0

            async def is_reconciled(
                kind: Any = kind, name: str = obj.name, generation: int = generation
            ) -> bool:
                status = (await client.get(kind, name, namespace)).status
                return status is not None and (status.observed_generation or 0) >= generation

            try:
                await until(is_reconciled, within=_PATIENCE)
            except AssertionError:
                report.problems.append(f"{namespace}: {name} not reconciled in {_PATIENCE:g} s")
            report.seconds.setdefault(name, []).append(time.monotonic() - began)
        await asyncio.sleep(0.5)


async def _watch_memory(environment: Environment, report: TenantReport) -> None:
    while True:
        for name in MANAGERS:
            pid = _pid(environment, name)
            if pid is not None:
                used = await asyncio.to_thread(_tree_memory, pid)
                report.memory[name] = max(used, report.memory.get(name, 0))
        await asyncio.sleep(0.5)


def _tree_memory(pid: int) -> float:
    """The proportional memory of a process and its children, in MiB."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    own = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return own / 1024 + sum(_tree_memory(int(child)) for child in children)


async def _watch_gate(client: Client, report: TenantReport) -> None:
    """The attacker's cluster waits for an approval that no administrator gives."""
    while True:
        cluster = await client.get(Cluster, GATED, ATTACKER)
        results = (await client.list(LifecycleResult, ATTACKER)).items
        done = [
            r.name for r in results if r.status and r.status.phase == "Done" and GATED in r.name
        ]
        if cluster.spec.control_plane_ref is not None or done:
            report.problems.append(f"the gate opened: {cluster.spec.control_plane_ref} {done}")
            return
        await asyncio.sleep(1)


def _policy(name: str, namespace: str, action: Unstructured, hook: str = "") -> Unstructured:
    return {
        "apiVersion": LifecyclePolicy.resource.api_version,
        "kind": "LifecyclePolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hook": hook or "BeforeClusterUpgrade", "action": action},
    }


def _validate(expression: str) -> Unstructured:
    return {"validate": {"rules": [{"expression": expression, "message": "no"}]}}


def _patch_policy() -> Unstructured:
    patch = {"op": "add", "path": "/spec/template/metadata/annotations", "value": {"note": SECRET}}
    action = {
        "patches": {
            "versions": [
                {
                    "name": "v1",
                    "patches": [
                        {
                            "selector": {
                                "apiVersion": "controlplane.cluster.x-k8s.io/v1alpha1",
                                "kind": "CapelinControlPlaneTemplate",
                                "matchResources": {"controlPlane": True},
                            },
                            "jsonPatches": [patch],
                        }
                    ],
                }
            ]
        }
    }
    return _policy("proxy", HONEST[0], action, "GeneratePatches")


def _gate() -> Unstructured:
    return {
        "apiVersion": LifecyclePolicy.resource.api_version,
        "kind": "ClusterLifecyclePolicy",
        "metadata": {"name": "gate"},
        "spec": {
            "hook": "BeforeClusterCreate",
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ATTACKER}},
            "action": {"approval": {}},
        },
    }


async def _grant(client: Client) -> None:
    """Give the attacker the rights of a tenant who may also write policies."""
    rbac, group = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    metadata = {"name": ATTACKER, "namespace": ATTACKER}
    await client.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    role = {"apiVersion": rbac, "kind": "Role", "metadata": metadata, "rules": _ATTACKER_RULES}
    await client.apply(role)
    await client.apply(
        {
            "apiVersion": rbac,
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": ATTACKER},
            "subjects": [{"kind": "ServiceAccount", "name": ATTACKER, "namespace": ATTACKER}],
        }
    )


# The attacker


@dataclass
class Attacker:
    """A tenant with a token, who writes bytes that no client library would write."""

    environment: Environment
    administrator: Client
    token: str
    ports: dict[str, int]
    random: Random
    problems: list[str] = field(default_factory=list[str])
    written: list[str] = field(default_factory=list[str])
    """The paths of the attacker's objects, oldest first."""

    async def attack(self, report: TenantReport) -> None:
        """Attack until cancelled; a few objects of each attack stay."""
        while True:
            attack = self.random.choice(ATTACKS)
            name = attack.__name__.removeprefix("_")
            report.attacks[name] = report.attacks.get(name, 0) + 1
            with suppress(OSError, TimeoutError):
                await attack(self)
            while len(self.written) > 60:
                await self.send("DELETE", self.written.pop(0), b"")
            await asyncio.sleep(self.random.uniform(0, 1))

    async def create(self, plural: str, body: str | Unstructured, group: str) -> None:
        """Create an object in the attacker's namespace; the API server may refuse it."""
        text = body if isinstance(body, str) else json.dumps(body)
        path = f"{group}/namespaces/{ATTACKER}/{plural}"
        status, answer = await self.send("POST", path, text.encode("utf-8", "surrogatepass"))
        if status == 201:
            self.written.append(f"{path}/{json.loads(answer)['metadata']['name']}")

    async def send(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Send bytes to the management API server as the attacker."""
        return await asyncio.to_thread(self._send, method, path, body)

    def _send(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        server = Config.from_kubeconfig(self.environment.kubeconfig).server
        trust = ssl.create_default_context(cadata=_pem(server.ca))
        address = urlsplit(server.address)
        connection = HTTPSConnection(
            address.hostname or "", address.port, context=trust, timeout=30
        )
        try:
            head = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            connection.request(method, path, body, head)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def name(self) -> str:
        """A fresh name."""
        return f"evil-{self.random.randrange(10**9)}"

    def odd(self, length: int) -> str:
        """Text of characters that parsers read differently."""
        return "".join(self.random.choice(_ODD + "az09/:.-") for _ in range(length))


def _pem(source: bytes | Path | None) -> str:
    assert source is not None
    return (source.read_bytes() if isinstance(source, Path) else source).decode()


_CAPI: Final = "/apis/cluster.x-k8s.io/v1beta2"
_POLICIES: Final = "/apis/runtime.capelin.cluster.x-k8s.io/v1alpha1"
_CORE: Final = "/api/v1"


def _cluster(name: str, variables: str) -> str:
    """The JSON of a Cluster of a missing class; variables are raw JSON."""
    return (
        '{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "'
        + name
        + '"}, "spec": {"topology": {"classRef": {"name": "none"}, "version": "'
        + VERSION
        + '", "variables": '
        + variables
        + "}}}"
    )


async def _deep_cluster(attacker: Attacker) -> None:
    levels = attacker.random.choice([150, 199, 201, 500, 989, 1100, 5000, 9000])
    opening, closing = attacker.random.choice([("[", "]"), ('{"a":', "}")])
    value = opening * levels + "1" + closing * levels
    variables = f'[{{"name": "deep", "value": {value}}}]'
    await attacker.create("clusters", _cluster(attacker.name(), variables), _CAPI)


async def _wide_cluster(attacker: Attacker) -> None:
    count = attacker.random.choice([1_000, 50_000, 200_000])
    variables = f'[{{"name": "wide", "value": [{",".join("1" * count)}]}}]'
    await attacker.create("clusters", _cluster(attacker.name(), variables), _CAPI)


async def _long_cluster(attacker: Attacker) -> None:
    text = json.dumps(attacker.odd(attacker.random.choice([10, 1_000, 60_000])))
    variables = f'[{{"name": "long", "value": {text}}}]'
    await attacker.create("clusters", _cluster(attacker.name(), variables), _CAPI)


async def _deep_policy(attacker: Attacker) -> None:
    levels = attacker.random.choice([150, 201, 1100, 5000])
    template = '{"a":' * levels + "1" + "}" * levels
    body = json.dumps(_policy(attacker.name(), ATTACKER, {"job": {"template": "TEMPLATE"}}))
    await attacker.create("lifecyclepolicies", body.replace('"TEMPLATE"', template), _POLICIES)


async def _odd_policy(attacker: Attacker) -> None:
    url = f"https://a.example/{attacker.odd(8)}"
    action: Unstructured = attacker.random.choice(
        [
            {"http": {"url": url}},
            {"approval": {"window": {"schedule": attacker.odd(12), "duration": "1h"}}},
            {"job": {"configMapRef": {"name": attacker.odd(6)}}},
            _validate(attacker.odd(30)),
        ]
    )
    await attacker.create(
        "lifecyclepolicies", _policy(attacker.name(), ATTACKER, action), _POLICIES
    )


async def _expression(attacker: Attacker) -> None:
    random = attacker.random
    maps = "".join(".map(x, x + x)" for _ in range(random.randrange(2, 25)))
    expression = random.choice(
        [
            f"""size('''a'b''') > 0 ? size(["{"a" * 200}"]{maps}) > 0 : false // '""",
            f"quantity('1e{random.choice([300_000, 10**6, 99_999_999])}').asInteger() > 0",
            "['" + "a" * random.randrange(100, 255) + "'].join('" + "b" * 255 + "') != ''",
            "object.metadata.name.matches('(a*)*b') && [1,2,3].all(x, x > 0)",
            "[1,2,3,4,5,6,7,8,9].map(a, [1,2,3,4,5,6,7,8,9].map(b, [1,2,3].map(c, a*b*c))) != []",
        ]
    )
    body = _policy(attacker.name(), ATTACKER, _validate(expression), "BeforeClusterCreate")
    await attacker.create("lifecyclepolicies", body, _POLICIES)


async def _aliases(attacker: Attacker) -> None:
    name, levels = attacker.name(), attacker.random.randrange(4, 12)
    lines = ["a0: &a0 lol"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    body: Unstructured = {"metadata": {"name": name}, "data": {"manifests.yaml": "\n".join(lines)}}
    await attacker.create("configmaps", body, _CORE)
    action = {"apply": {"sources": [{"kind": "ConfigMap", "name": name}]}}
    policy = _policy(name, ATTACKER, action, "AfterControlPlaneInitialized")
    await attacker.create("lifecyclepolicies", policy, _POLICIES)


async def _hostile_api_server(attacker: Attacker) -> None:
    """A Cluster whose API server is one of the attacker's, with a machine that needs it."""
    name = attacker.name()
    port = attacker.ports[attacker.random.choice(sorted(attacker.ports))]
    scheme = attacker.random.choice(["http", "http", "https"])
    suffix = attacker.random.choice(["", "/internal?ignored=", "/#x"])
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"{scheme}://127.0.0.1:{port}{suffix}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    value = base64.b64encode(json.dumps(kubeconfig).encode()).decode()
    labels = {"cluster.x-k8s.io/cluster-name": name}
    secret = {
        "metadata": {"name": f"{name}-kubeconfig", "labels": labels},
        "type": "cluster.x-k8s.io/secret",
        "data": {"value": value},
    }
    await attacker.create("secrets", secret, _CORE)
    data: Unstructured = {"metadata": {"name": f"{name}-data"}, "data": {"value": ""}}
    await attacker.create("secrets", data, _CORE)
    infrastructure = {"apiGroup": "infrastructure.cluster.x-k8s.io", "name": name}
    cluster: Unstructured = {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": {"name": name},
        "spec": {
            "controlPlaneEndpoint": {"host": "127.0.0.1", "port": port},
            "infrastructureRef": {**infrastructure, "kind": "CapelinCluster"},
        },
    }
    await attacker.create("clusters", cluster, _CAPI)
    infra = "/apis/infrastructure.cluster.x-k8s.io/v1alpha1"
    for plural, kind in (
        ("capelinclusters", "CapelinCluster"),
        ("capelinmachines", "CapelinMachine"),
    ):
        body: Unstructured = {
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, "labels": labels},
            "spec": {},
        }
        await attacker.create(plural, body, infra)
    machine: Unstructured = {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Machine",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "clusterName": name,
            "version": VERSION,
            "bootstrap": {"dataSecretName": f"{name}-data"},
            "infrastructureRef": {**infrastructure, "kind": "CapelinMachine"},
        },
    }
    await attacker.create("machines", machine, _CAPI)


async def _forged_call(attacker: Attacker) -> None:
    """Calls of hooks with Cluster API's own certificate, in the forms of the worst proxy."""
    gated = await attacker.administrator.get(Cluster, GATED, ATTACKER)
    manifest = gated.model_dump(mode="json", by_alias=True, exclude_none=True)
    manifest["metadata"].setdefault("annotations", {}).update(
        {"runtime.capelin.cluster.x-k8s.io/approval.gate": "admin@example.com"}
    )
    forged = {**fake_request(BeforeClusterCreate), "cluster": manifest}
    leak = fake_request(GeneratePatches, settings={"policy": f"{HONEST[0]}/proxy"})
    hook, request = attacker.random.choice([(BeforeClusterCreate, forged), (GeneratePatches, leak)])
    config = await attacker.administrator.get(ExtensionConfig, "lifecycle")
    names = [
        handler.name.partition(".")[0]
        for handler in config.status.handlers
        if handler.request_hook.hook == hook.id.name
    ]
    for handler in names:
        for with_certificate in (False, True):
            answer = await asyncio.to_thread(
                _call,
                attacker.environment,
                config,
                hook.id.path(handler),
                request,
                with_certificate,
            )
            if SECRET in answer:
                attacker.problems.append(f"{hook.id.name}: a policy of {HONEST[0]} was read")
            if answer and not with_certificate:
                attacker.problems.append(f"{hook.id.name}: answered without a certificate")


def _call(
    environment: Environment,
    config: ExtensionConfig,
    path: str,
    request: Unstructured,
    with_certificate: bool,
) -> str:
    client = config.spec.client_config
    address = urlsplit(client.url or "")
    trust = ssl.create_default_context(cadata=(client.ca_bundle or b"").decode())
    if with_certificate:
        folder = environment.credentials / CORE.label
        trust.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    connection = HTTPSConnection(address.hostname or "", address.port, context=trust, timeout=15)
    try:
        connection.request("POST", f"{address.path}{path}?timeout=10s", json.dumps(request))
        return connection.getresponse().read().decode()
    except OSError:
        return ""
    finally:
        connection.close()


ATTACKS: Final[tuple[Attack, ...]] = (
    _deep_cluster,
    _wide_cluster,
    _long_cluster,
    _deep_policy,
    _odd_policy,
    _expression,
    _aliases,
    _hostile_api_server,
    _forged_call,
)


# Hostile API servers

_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


async def _endless(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD + b"\r\n" + b'{"items": ["')
    while True:
        writer.write(b"a" * 65536)
        await writer.drain()


async def _bomb(writer: asyncio.StreamWriter) -> None:
    packed = gzip.compress(b"a" * (64 << 20))
    head = _HEAD + b"Content-Encoding: gzip\r\n"
    writer.write(head + f"Content-Length: {len(packed)}\r\n\r\n".encode() + packed)
    await writer.drain()


async def _deep(writer: asyncio.StreamWriter) -> None:
    body = b"[" * 100_000 + b"]" * 100_000
    writer.write(_HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()


async def _silent(writer: asyncio.StreamWriter) -> None:
    await writer.drain()
    await asyncio.sleep(3600)


async def _slow(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD + b"\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(1)


@asynccontextmanager
async def _servers() -> AsyncGenerator[dict[str, int]]:
    """One hostile server of each kind, on loopback."""
    answers = {"endless": _endless, "bomb": _bomb, "deep": _deep, "silent": _silent, "slow": _slow}
    servers: dict[str, asyncio.Server] = {}
    for name, answer in answers.items():

        async def serve(
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
            answer: Callable[[asyncio.StreamWriter], Awaitable[None]] = answer,
        ) -> None:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await reader.readuntil(b"\r\n\r\n")
                await answer(writer)
            writer.close()

        servers[name] = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield {name: server.sockets[0].getsockname()[1] for name, server in servers.items()}
    finally:
        for server in servers.values():
            server.close()
