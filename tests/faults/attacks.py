"""The attacks of a hostile tenant, each of them mutated by the seed of the campaign."""

import asyncio
import base64
import json
import ssl
from contextlib import suppress
from http.client import HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass, ExtensionConfig
from capelin.embedded.management import CORE, Environment
from capelin.runtime.v1alpha1 import (
    BeforeClusterCreate,
    BeforeClusterUpgrade,
    DiscoverVariables,
    GeneratePatches,
)
from capelin.testing.extensions import fake_request
from capelin_infra.clusters.topology import DEMO_CLASS
from capelin_lifecycle.api import LifecycleResult

from tests.faults.attacker import (
    ATTACKER,
    CAPI,
    CORE_API,
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
"""The attacker's cluster that runs; its upgrade waits for an administrator."""
GATED: Final = "gated"
"""The attacker's Cluster whose creation waits for an administrator."""
VICTIM_POLICY: Final = "honest-0/proxy"
SECRET: Final = "known-to-honest-0-only"
_APPROVAL: Final = "approval.runtime.capelin.cluster.x-k8s.io"
_GATES: Final = ("gate", "upgrades")
_APPROVER: Final = "admin@example.com"
_CONTROL_PLANES: Final = "/apis/controlplane.cluster.x-k8s.io/v1alpha1/capelincontrolplanes"


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


async def deep_cluster(attacker: Attacker) -> None:
    """A Cluster with nested values."""
    levels = attacker.random.choice([150, 199, 201, 500, 989, 1100, 5000, 9000])
    opening, closing = attacker.random.choice([("[", "]"), ('{"a":', "}")])
    value = opening * levels + "1" + closing * levels
    variables = f'[{{"name": "deep", "value": {value}}}]'
    await attacker.create("clusters", _cluster(attacker.name(), variables), CAPI)


async def wide_cluster(attacker: Attacker) -> None:
    """A Cluster with many values."""
    count = attacker.random.choice([1_000, 50_000, 200_000])
    variables = f'[{{"name": "wide", "value": [{",".join("1" * count)}]}}]'
    await attacker.create("clusters", _cluster(attacker.name(), variables), CAPI)


async def long_cluster(attacker: Attacker) -> None:
    """A Cluster with a long text."""
    text = json.dumps(attacker.odd(attacker.random.choice([10, 1_000, 60_000])))
    variables = f'[{{"name": "long", "value": {text}}}]'
    await attacker.create("clusters", _cluster(attacker.name(), variables), CAPI)


async def deep_policy(attacker: Attacker) -> None:
    """A policy with a nested Job."""
    levels = attacker.random.choice([150, 201, 1100, 5000])
    template = '{"a":' * levels + "1" + "}" * levels
    body = json.dumps(policy(attacker.name(), ATTACKER, {"job": {"template": "TEMPLATE"}}))
    await attacker.create("lifecyclepolicies", body.replace('"TEMPLATE"', template), POLICIES)


async def odd_policy(attacker: Attacker) -> None:
    """A policy with characters that Go and Python may read differently."""
    url = f"https://{attacker.random.choice([ALLOWED, FORBIDDEN, 'a.example'])}/"
    window = {"schedule": attacker.odd(12), "duration": "1h"}
    action: Unstructured = attacker.random.choice(
        [
            {"http": {"url": url + attacker.odd(8)}},
            {"http": {"url": url + "%2f" * 20}},
            {"approval": {"window": window}},
            {"approval": {"window": {**window, "schedule": "0 0 31 2 *"}}},
            {"approval": {"window": {**window, "timeZone": attacker.odd(6)}}},
            {"apply": {"sources": [{"configMap": "a", "versions": attacker.odd(6)}]}},
            {"approval": {"approvers": [attacker.odd(6)]}},
            {"backup": {"velero": {"spec": {attacker.odd(6): attacker.odd(6)}}}},
            validate(attacker.odd(30)),
        ]
    )
    await attacker.create("lifecyclepolicies", policy(attacker.name(), ATTACKER, action), POLICIES)


async def expression(attacker: Attacker) -> None:
    """A rule that takes much memory or time; its hook is called for a Cluster that waits."""
    random = attacker.random
    maps = "".join(".map(x, x + x)" for _ in range(random.choice([2, 3, 12, 24])))
    numbers = "[" + ",".join("7" * random.choice([9, 90, 300])) + "]"
    text = random.choice(
        [
            f"""size('''a'b''') > 0 ? size(["{"a" * 200}"]{maps}) > 0 : false // '""",
            f"quantity('1e{random.choice([300_000, 10**6, 99_999_999])}').asInteger() > 0",
            "['" + "a" * random.randrange(100, 255) + "'].join('" + "b" * 255 + "') != ''",
            "object.metadata.name.matches('(a*)*b') && [1,2,3].all(x, x > 0)",
            f"{numbers}.map(a, {numbers}.map(b, {numbers}.map(c, a*b*c))) != []",
            f"{numbers}.all(a, {numbers}.exists(b, a == b + 1))",
            f"object.?a{'.optMap(x, x)' * random.choice([4, 20, 60])}.hasValue()",
        ]
    )
    hook = random.choice(["BeforeClusterCreate", "BeforeClusterUpgrade"])
    body = policy(attacker.name(), ATTACKER, validate(text), hook)
    await attacker.create("lifecyclepolicies", body, POLICIES)


async def aliases(attacker: Attacker) -> None:
    """Manifests whose aliases expand, to be applied before an upgrade."""
    name, levels = attacker.name(), attacker.random.randrange(4, 12)
    lines = ["a0: &a0 lol"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    body: Unstructured = {"metadata": {"name": name}, "data": {"manifests.yaml": "\n".join(lines)}}
    await attacker.create("configmaps", body, CORE_API)
    action = {"apply": {"sources": [{"configMap": name}]}}
    await attacker.create("lifecyclepolicies", policy(name, ATTACKER, action), POLICIES)


# API servers


def _kubeconfig(attacker: Attacker) -> tuple[str, int, str]:
    """Host and port of a hostile API server, and a kubeconfig of it in base64."""
    random = attacker.random
    host = random.choice([ALLOWED, ALLOWED, ALLOWED, FORBIDDEN])
    port = attacker.servers.ports[random.choice(sorted(attacker.servers.ports))]
    scheme = random.choice(["http", "http", "http", "https"])
    suffix = random.choice(["", "", "", "/internal?ignored=", "/#x"])
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"{scheme}://{host}:{port}{suffix}"}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    return host, port, base64.b64encode(json.dumps(kubeconfig).encode()).decode()


async def hostile_api_server(attacker: Attacker) -> None:
    """A Cluster whose API server is one of the attacker's, with a machine that needs it."""
    name = attacker.name()
    host, port, kubeconfig = _kubeconfig(attacker)
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
            "controlPlaneEndpoint": {"host": host, "port": port},
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
    _, _, kubeconfig = _kubeconfig(attacker)
    patch = {"metadata": {"ownerReferences": None}, "data": {"value": kubeconfig}}
    await attacker.change(f"{CORE_API}/secrets/{SHOP}-kubeconfig", patch)


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
    administrator = attacker.administrator
    shop = await administrator.get(Cluster, SHOP, ATTACKER)
    reference = shop.spec.control_plane_ref
    control_plane = f"{_CONTROL_PLANES}/{reference.name if reference else ''}"
    references = {
        "controlPlaneRef": {
            "apiGroup": "controlplane.cluster.x-k8s.io",
            "kind": "CapelinControlPlane",
            "name": GATED,
        },
    }
    match attacker.random.randrange(4):
        case 0:
            changed = await attacker.change(f"{CAPI}/clusters/{GATED}", {"spec": references})
        case 1:
            changed = await attacker.change(control_plane, {"spec": {"version": NEXT_VERSION}})
        case 2:
            changed = await attacker.delete(control_plane)
        case _:
            # A tenant may delete results; the gate has to close again.
            changed = False
            for result in (await administrator.list(LifecycleResult, ATTACKER)).items[:3]:
                await attacker.delete(f"{POLICIES}/lifecycleresults/{result.name}")
    if changed:
        attacker.problems.append("a write around a gate was accepted")


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
        await asyncio.sleep(3)
        await attacker.change(path, {"spec": {"topology": {"classRef": {"name": DEMO_CLASS}}}})


async def forged_call(attacker: Attacker) -> None:
    """Calls of hooks with Cluster API's own certificate, as the worst proxy could send them."""
    administrator = attacker.administrator
    gated, shop = [await administrator.get(Cluster, n, ATTACKER) for n in (GATED, SHOP)]
    upgrade = fake_request(BeforeClusterUpgrade)
    versions = {"fromKubernetesVersion": VERSION, "toKubernetesVersion": NEXT_VERSION}
    settings = {"policy": VICTIM_POLICY, "version": "v1"}
    uid = attacker.random.choice([shop.uid, str(uuid4())])
    hook, request = attacker.random.choice(
        [
            (
                BeforeClusterCreate,
                {**fake_request(BeforeClusterCreate), "cluster": _approved(gated)},
            ),
            (BeforeClusterUpgrade, {**upgrade, **versions, "cluster": _approved(shop)}),
            (GeneratePatches, _patches_request(attacker, settings, uid)),
            (DiscoverVariables, fake_request(DiscoverVariables, settings=settings)),
            (BeforeClusterCreate, '{"a":' * 100_000),
            (GeneratePatches, "[" + ",".join("1" * 5_000_000) + "]"),
        ]
    )
    config = await administrator.get(ExtensionConfig, "lifecycle")
    names = [
        handler.name.partition(".")[0]
        for handler in config.status.handlers
        if handler.request_hook.hook == hook.id.name
    ]
    if not names:
        attacker.calls[f"{hook.id.name}: no handler"] += 1
    body = request if isinstance(request, str) else json.dumps(request)
    for handler in names:
        for certified in (False, True):
            path, environment = hook.id.path(handler), attacker.environment
            answer = await asyncio.to_thread(
                _call, environment, config, path, body, certified=certified
            )
            outcome = outcome_of(answer)
            attacker.calls[f"{hook.id.name}{'' if certified else ' uncertified'}: {outcome}"] += 1
            if SECRET in answer:
                attacker.problems.append(f"{hook.id.name}: a policy of a neighbour was read")
            if answer and not certified:
                attacker.problems.append(f"{hook.id.name}: answered without a certificate")
            if outcome == "let through" and handler.endswith("-gate"):
                attacker.problems.append(f"{hook.id.name}: {handler} opened for a forged call")


def outcome_of(answer: str) -> str:
    """A hook's answer in a word: it lets the Cluster through, blocks it or fails."""
    if not answer:
        return "no answer"
    try:
        body: Any = json.loads(answer)
        status = body["status"]
    except (ValueError, KeyError, TypeError):
        return "no response of a hook"
    if status != "Success":
        return "fails"
    return "blocks" if body.get("retryAfterSeconds") else "let through"


def _approved(cluster: Cluster) -> Unstructured:
    """A Cluster as a forger shows it: approved, and with its references."""
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
) -> str:
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
            return connection.getresponse().read().decode()
        finally:
            connection.close()
    return ""


ATTACKS: Final[tuple[Attack, ...]] = (
    deep_cluster,
    wide_cluster,
    long_cluster,
    deep_policy,
    odd_policy,
    expression,
    aliases,
    hostile_api_server,
    replaced_kubeconfig,
    forged_approval,
    around_a_gate,
    borrowed_patches,
    forged_call,
)
