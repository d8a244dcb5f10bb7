"""The attacks of a hostile tenant, each of them mutated by the seed of the campaign."""

import asyncio
import base64
import json
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass, ExtensionConfig
from capelin.api.core import Secret
from capelin.runtime import AnyHook
from capelin.runtime.v1alpha1 import (
    BeforeClusterCreate,
    BeforeClusterUpgrade,
    DiscoverVariables,
    GeneratePatches,
)
from capelin.testing.extensions import fake_request
from capelin_cli.clusters.topology import DEMO_CLASS
from capelin_embedded.management import CORE, Environment
from capelin_lifecycle.api import LifecycleResult

from tests.faults.attacker import (
    ATTACKER,
    CAPI,
    CORE_API,
    FAILURES,
    NEXT_VERSION,
    POLICIES,
    VERSION,
    Attack,
    Attacker,
    policy,
    validate,
)
from tests.faults.hostile import ALLOWED, FORBIDDEN, TOKEN

SHOP: Final = "shop"
"""The attacker's running cluster, whose upgrade waits for an administrator."""
GATED: Final = "gated"
"""The attacker's Cluster whose creation waits for an administrator."""
VICTIM_POLICY: Final = "honest-0/proxy"
SECRET: Final = "known-to-honest-0-only"
_APPROVAL: Final = "approval.runtime.capelin.cluster.x-k8s.io"
_GATES: Final = ("gate", "upgrades")
_RESTORED: Final = "the kubeconfig was restored"
_CLOSED: Final = "the gates closed again"
_SIZED_HOOKS: Final[tuple[AnyHook, ...]] = (
    BeforeClusterCreate,
    BeforeClusterUpgrade,
    GeneratePatches,
)
_APPROVER: Final = "admin@example.com"
_CONTROL_PLANES: Final = "/apis/controlplane.cluster.x-k8s.io/v1alpha1/capelincontrolplanes"


def _cluster(name: str, variables: str) -> str:
    """The JSON of a Cluster of a missing class, with variables as raw JSON."""
    return (
        '{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "'
        + name
        + '"}, "spec": {"topology": {"classRef": {"name": "none"}, "version": "'
        + VERSION
        + '", "variables": '
        + variables
        + "}}}"
    )


async def deep_cluster(attacker: Attacker) -> None:
    """A Cluster with nested values.

    Of 9,000 levels, which Kubernetes accepts, its API server itself takes gigabytes to write.
    """
    levels = attacker.random.choice([150, 199, 201, 500, 1100])
    opening, closing = attacker.random.choice([("[", "]"), ('{"a":', "}")])
    value = opening * levels + "1" + closing * levels
    variables = f'[{{"name": "deep", "value": {value}}}]'
    await attacker.create("clusters", _cluster(attacker.name(), variables), CAPI)


async def wide_cluster(attacker: Attacker) -> None:
    """A Cluster with many values, and one with more than the API server accepts."""
    for count in (attacker.random.choice([1_000, 50_000, 200_000]), 2_000_000):
        variables = f'[{{"name": "wide", "value": [{",".join("1" * count)}]}}]'
        await attacker.create("clusters", _cluster(attacker.name(), variables), CAPI)


async def odd_cluster(attacker: Attacker) -> None:
    """Clusters with odd characters: in a long value, and in a version."""
    text = json.dumps(attacker.odd(attacker.random.choice([10, 1_000, 60_000])))
    variables = f'[{{"name": "long", "value": {text}}}]'
    await attacker.create("clusters", _cluster(attacker.name(), variables), CAPI)
    version = VERSION + attacker.odd(3)
    body = _cluster(attacker.name(), "[]").replace(f'"{VERSION}"', json.dumps(version))
    await attacker.create("clusters", body, CAPI)


async def deep_policy(attacker: Attacker) -> None:
    """A policy with a nested Job."""
    levels = attacker.random.choice([201, 500, 1100])
    template = '{"a":' * levels + "1" + "}" * levels
    body = json.dumps(policy(attacker.name(), ATTACKER, {"job": {"template": "TEMPLATE"}}))
    await attacker.create("lifecyclepolicies", body.replace('"TEMPLATE"', template), POLICIES)


async def odd_policy(attacker: Attacker) -> None:
    """Policies with characters that Go and Python may read differently."""
    window = {"schedule": attacker.odd(12), "duration": "1h"}
    actions: list[Unstructured] = [
        {"approval": {"window": window}},
        {"approval": {"window": {**window, "schedule": "0 0 31 2 *"}}},
        {"approval": {"window": {**window, "timeZone": attacker.odd(6)}}},
        {"apply": {"sources": [{"configMap": "a", "versions": attacker.odd(6)}]}},
        {"approval": {"approvers": [attacker.odd(6)]}},
        {"apply": {"sources": [{"configMap": "a", "until": attacker.odd(6)}]}},
        validate(attacker.odd(30)),
    ]
    for action in attacker.random.sample(actions, 3):
        body = policy(attacker.name(), ATTACKER, action)
        await attacker.create("lifecyclepolicies", body, POLICIES)


async def _expression(attacker: Attacker, text: str) -> None:
    """A rule for a waiting Cluster, so that its hook is called."""
    hook = attacker.random.choice(["BeforeClusterCreate", "BeforeClusterUpgrade"])
    body = policy(attacker.name(), ATTACKER, validate(text), hook)
    await attacker.create("lifecyclepolicies", body, POLICIES)


def _numbers(count: int) -> str:
    return f"[{','.join(['7'] * count)}]"


def _text(length: int) -> str:
    return f"'{'x' * length}'"


async def growing_expression(attacker: Attacker) -> None:
    """A rule that could double a value again and again, hidden by quotes and a comment."""
    maps = ".map(x, x + x)" * attacker.random.choice([4, 12, 24])
    text = f"""size('''a'b''') > 0 ? size(["{"a" * 200}"]{maps}) > 0 : false // '"""
    await _expression(attacker, text)


async def slow_expression(attacker: Attacker) -> None:
    """A rule that needs much time."""
    numbers, text = _numbers(attacker.random.randrange(90, 99)), _text(3000)
    slow = f"{text}.matches('(x+x+)+y')"
    await _expression(attacker, f"{numbers}.all(a, {numbers}.all(b, !{slow}))")


async def large_expression(attacker: Attacker) -> None:
    """A rule that needs much memory."""
    numbers = _numbers(attacker.random.randrange(80, 99))
    added = " + ".join(["s"] * 20)
    inner = f"{numbers}.map(a, {numbers}.map(b, {added}))"
    await _expression(attacker, f"[{_text(1500)}].map(s, {inner}) != []")


async def expression_with_large_values(attacker: Attacker) -> None:
    """A rule with values of bounded size, or with more steps than a rule may have."""
    numbers = _numbers(90)
    zeros = attacker.random.choice([300_000, 10**6, 99_999_999])
    texts = [
        f"quantity('1e{zeros}').asInteger() > 0",
        f"{numbers}.map(n, {_text(2000)}).join({_text(1000)}) != ''",
        f"{numbers}.map(a, {numbers}.map(b, {numbers}.map(c, a*b*c))) != []",
        f"object.?a{'.optMap(x, x)' * attacker.random.choice([20, 60])}.hasValue()",
    ]
    await _expression(attacker, attacker.random.choice(texts))


async def _manifests(attacker: Attacker, text: str) -> None:
    """Manifests to be applied before an upgrade."""
    name = attacker.name()
    body: Unstructured = {"metadata": {"name": name}, "data": {"manifests.yaml": text}}
    await attacker.create("configmaps", body, CORE_API)
    action = {"apply": {"sources": [{"configMap": name}]}}
    await attacker.create("lifecyclepolicies", policy(name, ATTACKER, action), POLICIES)


async def aliases(attacker: Attacker) -> None:
    """Manifests whose aliases expand."""
    lines = ["a0: &a0 lol"]
    levels = range(1, attacker.random.randrange(4, 12))
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in levels]
    await _manifests(attacker, "\n".join(lines))


async def slow_manifests(attacker: Attacker) -> None:
    """Manifests that need much time to parse."""
    await _manifests(attacker, attacker.random.choice(["{a: ", "["]) * 60_000)


async def large_manifests(attacker: Attacker) -> None:
    """Manifests that need much memory to parse."""
    await _manifests(attacker, "- " * attacker.random.randrange(150_000, 250_000))


# API servers


@dataclass(frozen=True, slots=True)
class Server:
    """How a kubeconfig names a hostile API server."""

    responder: str = ""
    """Its kind, or any."""
    host: str = ALLOWED
    scheme: str = "http"
    suffixes: tuple[str, ...] = ("",)


def _kubeconfig(attacker: Attacker, server: Server) -> tuple[int, str]:
    """The port of a hostile API server, and a kubeconfig of it in base64."""
    ports = attacker.servers.ports
    port = ports[server.responder or attacker.random.choice(sorted(ports))]
    address = f"{server.scheme}://{server.host}:{port}{attacker.random.choice(server.suffixes)}"
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    return port, base64.b64encode(json.dumps(kubeconfig).encode()).decode()


async def hostile_api_server(attacker: Attacker, server: Server) -> None:
    """A Cluster whose API server is one of the attacker's, with a machine that needs it."""
    name = attacker.name()
    port, kubeconfig = _kubeconfig(attacker, server)
    labels = {"cluster.x-k8s.io/cluster-name": name}
    secret = {
        "metadata": {"name": f"{name}-kubeconfig", "labels": labels},
        "type": "cluster.x-k8s.io/secret",
        "data": {"value": kubeconfig},
    }
    await attacker.create("secrets", secret, CORE_API)
    data: Unstructured = {"metadata": {"name": f"{name}-data"}, "data": {"value": ""}}
    await attacker.create("secrets", data, CORE_API)
    infrastructure = {"apiGroup": "infrastructure.cluster.x-k8s.io", "name": name}
    cluster: Unstructured = {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": {"name": name},
        "spec": {
            "controlPlaneEndpoint": {"host": server.host, "port": port},
            "infrastructureRef": {**infrastructure, "kind": "CapelinCluster"},
        },
    }
    await attacker.create("clusters", cluster, CAPI)
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
    await attacker.create("machines", machine, CAPI)


async def replaced_kubeconfig(attacker: Attacker) -> None:
    """The kubeconfig Secret of a running cluster leads to a hostile API server."""
    _, kubeconfig = _kubeconfig(attacker, Server())
    patch = {"metadata": {"ownerReferences": None}, "data": {"value": kubeconfig}}
    name = f"{SHOP}-kubeconfig"
    if await attacker.change(f"{CORE_API}/secrets/{name}", patch):

        async def is_restored() -> bool:
            secret = await attacker.administrator.get(Secret, name, ATTACKER)
            return secret.data.get("value") != base64.b64decode(kubeconfig)

        attacker.follow_up(_expect(attacker, is_restored, "replaced-kubeconfig", _RESTORED))


async def _expect(
    attacker: Attacker, is_so: Callable[[], Awaitable[bool]], attack: str, text: str
) -> None:
    """Record whether something happens within half a minute."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with suppress(*FAILURES):
            if await is_so():
                attacker.answered(text, attack)
                return
        await asyncio.sleep(1)


# Gates and neighbours


async def forged_approval(attacker: Attacker) -> None:
    """The annotation of an approval in the name of an administrator."""
    results = (await attacker.administrator.list(LifecycleResult, ATTACKER)).items
    codes = [result.id[:8] for result in results if result.spec.policy.name in _GATES]
    code = attacker.random.choice([*codes, "00000000", attacker.odd(8)])
    user = attacker.random.choice([_APPROVER, f"system:serviceaccount:{ATTACKER}:{ATTACKER}"])
    cluster = attacker.random.choice([GATED, SHOP])
    annotations = {f"{_APPROVAL}/{gate}": f"{code}:{user}" for gate in _GATES}
    await attacker.change(f"{CAPI}/clusters/{cluster}", {"metadata": {"annotations": annotations}})


async def around_a_gate(attacker: Attacker) -> None:
    """Writes that a gate of the Cluster does not notice."""
    shop = await attacker.administrator.get(Cluster, SHOP, ATTACKER)
    reference = shop.spec.control_plane_ref
    control_plane = f"{_CONTROL_PLANES}/{reference.name if reference else ''}"
    references = {
        "controlPlaneRef": {
            "apiGroup": "controlplane.cluster.x-k8s.io",
            "kind": "CapelinControlPlane",
            "name": GATED,
        },
    }
    accepted = [
        await attacker.change(f"{CAPI}/clusters/{GATED}", {"spec": references}),
        await attacker.change(control_plane, {"spec": {"version": NEXT_VERSION}}),
        await attacker.delete(control_plane),
    ]
    if any(accepted):
        attacker.problems.append("a write around a gate was accepted")


async def deleted_results(attacker: Attacker) -> None:
    """A tenant may delete results, but the gates must close again."""
    gates = await _gates(attacker)
    for result in gates:
        await attacker.delete(f"{POLICIES}/lifecycleresults/{result.name}")
    before = {result.uid for result in gates}

    async def are_closed() -> bool:
        again = await _gates(attacker)
        phases = [gate.status.phase for gate in again if gate.status and gate.uid not in before]
        return phases == ["Waiting"] * len(_GATES)

    attacker.follow_up(_expect(attacker, are_closed, "deleted-results", _CLOSED))


async def _gates(attacker: Attacker) -> list[LifecycleResult]:
    results = (await attacker.administrator.list(LifecycleResult, ATTACKER)).items
    return [result for result in results if result.spec.policy.name in _GATES]


async def borrowed_patches(attacker: Attacker) -> None:
    """A ClusterClass that names the patches of another namespace, for a running cluster."""
    demo = await attacker.administrator.get(ClusterClass, DEMO_CLASS, ATTACKER)
    spec = demo.dump()["spec"]
    external = {
        "generatePatchesExtension": "generate-patches-v1.lifecycle",
        "settings": {"policy": VICTIM_POLICY, "version": "v1"},
    }
    name = attacker.name()
    body: Unstructured = {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "ClusterClass",
        "metadata": {"name": name},
        "spec": {**spec, "patches": [*spec["patches"], {"name": "a", "external": external}]},
    }
    if await attacker.create("clusterclasses", body, CAPI):
        path = f"{CAPI}/clusters/{SHOP}"
        await attacker.change(path, {"spec": {"topology": {"classRef": {"name": name}}}})

        async def is_refused() -> bool:
            shop = await attacker.administrator.get(Cluster, SHOP, ATTACKER)
            return any("cannot use policy" in c.message for c in shop.status.conditions)

        async def follow() -> None:
            await _expect(attacker, is_refused, "borrowed-patches", "cannot use policy")
            body = {"spec": {"topology": {"classRef": {"name": DEMO_CLASS}}}}
            with suppress(*FAILURES):
                await attacker.administrator.patch(Cluster, SHOP, ATTACKER, body)

        attacker.follow_up(follow())


async def forged_create(attacker: Attacker) -> None:
    """A call before the creation of a Cluster, with approvals that no administrator gave."""
    gated = await attacker.administrator.get(Cluster, GATED, ATTACKER)
    request = {**fake_request(BeforeClusterCreate), "cluster": _approved(gated)}
    await _send_call(attacker, BeforeClusterCreate, json.dumps(request))


async def forged_upgrade(attacker: Attacker) -> None:
    """A call before an upgrade, with approvals that no administrator gave."""
    shop = await attacker.administrator.get(Cluster, SHOP, ATTACKER)
    versions = {"fromKubernetesVersion": VERSION, "toKubernetesVersion": NEXT_VERSION}
    request = {**fake_request(BeforeClusterUpgrade), **versions, "cluster": _approved(shop)}
    await _send_call(attacker, BeforeClusterUpgrade, json.dumps(request))


async def forged_patches(attacker: Attacker) -> None:
    """A call for the patches of a neighbour."""
    shop = await attacker.administrator.get(Cluster, SHOP, ATTACKER)
    uid = attacker.random.choice([shop.uid, str(uuid4())])
    request = _patches_request(attacker, _victim_settings("v1"), uid)
    await _send_call(attacker, GeneratePatches, json.dumps(request))


async def forged_variables(attacker: Attacker) -> None:
    """Calls for the variables of a neighbour's policy, and for a version that it lacks."""
    for version in ("v1", attacker.odd(3)):
        request = fake_request(DiscoverVariables, settings=_victim_settings(version))
        await _send_call(attacker, DiscoverVariables, json.dumps(request))


async def deep_call(attacker: Attacker) -> None:
    """A call with more nested levels than parsers have."""
    await _send_call(attacker, BeforeClusterCreate, '{"a":' * 100_000)


async def oversized_call(attacker: Attacker) -> None:
    """A call of more bytes than a request may have."""
    numbers = ",".join("1" * 11_000_000)
    await _send_call(attacker, attacker.random.choice(_SIZED_HOOKS), f"[{numbers}]")


async def uncertified_call(attacker: Attacker) -> None:
    """A call without Cluster API's certificate."""
    hook = attacker.random.choice(_SIZED_HOOKS)
    await _send_call(attacker, hook, json.dumps(fake_request(hook)), certified=False)


async def _send_call(
    attacker: Attacker, hook: AnyHook, body: str, *, certified: bool = True
) -> None:
    """Call a hook with Cluster API's own certificate, like a hostile proxy, or without it."""
    config = await attacker.administrator.get(ExtensionConfig, "lifecycle")
    handlers = [
        handler.name.partition(".")[0]
        for handler in config.status.handlers
        if handler.request_hook.hook == hook.id.name
    ]
    if not handlers:
        attacker.answered("no handler")
    for handler in handlers:
        path, environment = hook.id.path(handler), attacker.environment
        status, answer = await asyncio.to_thread(
            _call, environment, config, path, body, certified=certified
        )
        outcome = outcome_of(status, answer)
        attacker.answered(f"{outcome} {answer[:300]}")
        if SECRET in answer:
            attacker.problems.append(f"{hook.id.name}: a policy of a neighbour was read")
        if answer and not certified:
            attacker.problems.append(f"{hook.id.name}: answered without a certificate")
        if outcome == "let through" and handler.endswith("-gate"):
            attacker.problems.append(f"{hook.id.name}: {handler} opened for a forged call")


def _victim_settings(version: str) -> dict[str, str]:
    return {"policy": VICTIM_POLICY, "version": version}


def outcome_of(status: int, answer: str) -> str:
    """A hook's answer in a word: it lets the Cluster through, blocks it or fails."""
    if status == 0:
        return "no answer"
    if status != 200:
        return f"HTTP {status}"
    try:
        body: Any = json.loads(answer)
        result = body["status"]
    except (ValueError, KeyError, TypeError):
        return "no response of a hook"
    if result != "Success":
        return "fails"
    return "blocks" if body.get("retryAfterSeconds") else "let through"


def _approved(cluster: Cluster) -> Unstructured:
    """A forged Cluster with approvals and references."""
    manifest = cluster.dump()
    annotations = {f"{_APPROVAL}/{gate}": f"00000000:{_APPROVER}" for gate in _GATES}
    manifest["metadata"].setdefault("annotations", {}).update(annotations)
    manifest["metadata"].setdefault("labels", {})["approved"] = "yes"
    return manifest


def _patches_request(attacker: Attacker, settings: dict[str, str], uid: str) -> Unstructured:
    """A request for patches of the attacker's Cluster, or for one that claims to be a victim's."""
    request = fake_request(GeneratePatches, settings=settings)
    namespace = attacker.random.choice([ATTACKER, VICTIM_POLICY.partition("/")[0]])
    cluster = request["variables"][0]["value"]["cluster"]
    cluster.update({"namespace": namespace, "name": SHOP, "uid": uid})
    for item in request["items"]:
        item["holderReference"].update({"namespace": namespace, "name": SHOP})
        if item["holderReference"].get("fieldPath") == "spec.controlPlaneRef":
            item["object"]["kind"] = "CapelinControlPlaneTemplate"
    return request


def _call(
    environment: Environment, config: ExtensionConfig, path: str, body: str, *, certified: bool
) -> tuple[int, str]:
    client = config.spec.client_config
    address = urlsplit(client.url or "")
    trust = ssl.create_default_context(cadata=(client.ca_bundle or b"").decode())
    if certified:
        folder = environment.credentials / CORE.label
        trust.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    connection = HTTPSConnection(address.hostname or "", address.port, context=trust, timeout=15)
    with suppress(OSError, HTTPException):
        try:
            head = {"Content-Type": "application/json"}
            connection.request("POST", f"{address.path}{path}?timeout=10s", body, head)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()
    return 0, ""


_TOO_DEEP: Final = "more than 200 nested levels"
_TOO_LARGE: Final = "more than 16 MiB"
_UNREACHABLE: Final = "does not answer, or not in time"
_CPU: Final = "ms of CPU time"
_MEMORY: Final = "MiB of memory"


def _servers() -> Iterator[Attack]:
    """The attacks of hostile API servers."""
    for name, server, limit in (
        ("endless-server", Server("endless"), _TOO_LARGE),
        ("bomb-server", Server("bomb"), _TOO_LARGE),
        ("deep-server", Server("deep"), _TOO_DEEP),
        ("silent-server", Server("silent"), _UNREACHABLE),
        ("slow-server", Server("slow"), _UNREACHABLE),
        ("redirecting-server", Server("redirect"), "302"),
        ("forbidden-address", Server(host=FORBIDDEN), "is not allowed"),
        ("server-without-tls", Server(scheme="https"), _UNREACHABLE),
        ("server-with-query", Server(suffixes=("/internal?ignored=", "/#x")), "query"),
    ):
        yield Attack(name, partial(hostile_api_server, server=server), (limit,))


ATTACKS: Final[tuple[Attack, ...]] = (
    Attack("deep-cluster", deep_cluster, (_TOO_DEEP,)),
    Attack("wide-cluster", wide_cluster, ("413",)),
    Attack("odd-cluster", odd_cluster, ("Invalid", "BadRequest")),
    Attack("deep-policy", deep_policy, (_TOO_DEEP,)),
    Attack("odd-policy", odd_policy, ("Invalid",)),
    Attack("growing-expression", growing_expression, ("may call map 3 times",)),
    Attack("slow-expression", slow_expression, (_CPU,)),
    Attack("large-expression", large_expression, (_MEMORY,)),
    Attack(
        "expression-with-large-values",
        expression_with_large_values,
        ("is not a quantity", "65536 characters", "Iteration budget", "optFlatMap"),
    ),
    Attack("aliases", aliases, ("anchors, aliases",)),
    Attack("slow-manifests", slow_manifests, (_CPU,)),
    Attack("large-manifests", large_manifests, (_MEMORY,)),
    *_servers(),
    Attack(
        "replaced-kubeconfig",
        replaced_kubeconfig,
        (_RESTORED, _TOO_LARGE, _TOO_DEEP, _UNREACHABLE, "302"),
    ),
    Attack("forged-approval", forged_approval, ("approval",)),
    Attack("around-a-gate", around_a_gate, ("403", "422")),
    Attack("deleted-results", deleted_results, (_CLOSED,)),
    Attack("borrowed-patches", borrowed_patches, ("cannot use policy",)),
    Attack("forged-create", forged_create, ("blocks", "fails")),
    Attack("forged-upgrade", forged_upgrade, ("blocks", "fails")),
    Attack("forged-patches", forged_patches, ("fails",)),
    Attack("forged-variables", forged_variables, ("fails",)),
    Attack("deep-call", deep_call, ("fails", "HTTP 4")),
    Attack("oversized-call", oversized_call, ("accepts no request above",)),
    Attack("uncertified-call", uncertified_call, ("no answer",)),
)
