"""Cluster API's reference extension and the drop-in give equivalent answers."""

import base64
import json
import ssl
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest
from capelin.runtime import AnyHook
from capelin.runtime import v1alpha1 as v1
from capelin.runtime.dispatch import handler_runners
from capelin.runtime.messages import read_json
from capelin.runtime.topology import apply_json_patch
from capelin_embedded.apiserver import ApiServer

from tests.bench.runtime_payload import generate_patches, validate_topology
from tests.extensions import HOST, certificates, reference
from tests.integration import reference_extension

pytestmark = pytest.mark.needs_programs("test-extension")

KUBEADM = {
    "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
    "kind": "KubeadmConfig",
    "metadata": {"name": "demo"},
    "spec": {"files": [{"path": "/a", "content": "x"}]},
}
MORE_FILES = {"files": [{"path": "/a", "content": "x"}, {"path": "/b", "content": "y"}]}
DEV = {
    "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
    "kind": "DevMachine",
    "metadata": {"name": "demo"},
    "spec": {"backend": {"docker": {"customImage": "image"}}},
}
SPEC = {
    "clusterName": "demo",
    "version": "v1.33.0",
    "bootstrap": {"dataSecretName": "demo"},
    "infrastructureRef": {"apiGroup": "example.com", "kind": "DevMachine", "name": "demo"},
}
CORE = {"apiVersion": "cluster.x-k8s.io/v1beta2", "metadata": {"name": "a", "namespace": "b"}}
MACHINE = {**CORE, "kind": "Machine", "spec": SPEC}
NEWER = {**MACHINE, "spec": {**SPEC, "version": "v1.34.0"}}


def template(of: dict[str, Any]) -> dict[str, Any]:
    return {**of, "kind": f"{of['kind']}Template", "spec": {"template": {"spec": of["spec"]}}}


def machine_set(of: dict[str, Any]) -> dict[str, Any]:
    spec = {"clusterName": "demo", "selector": {}, "template": {"spec": of["spec"]}}
    return {**CORE, "kind": "MachineSet", "spec": spec}


def plan(start: str) -> dict[str, Any]:
    return {
        "cluster": {"metadata": {"name": "demo"}, "spec": {}},
        "fromControlPlaneKubernetesVersion": start,
        "fromWorkersKubernetesVersion": "v1.33.12",
        "toKubernetesVersion": "v1.36.1",
    }


def update(machine: str, infrastructure: str, bootstrap: str, **settings: str) -> dict[str, Any]:
    """A request to change version and files of a machine or a set of machines."""
    more = {**KUBEADM, "spec": MORE_FILES}
    now, then = [MACHINE, DEV, KUBEADM], [NEWER, DEV, more]
    if machine == "machineSet":
        now, then = ([machine_set(a), template(b), template(c)] for a, b, c in (now, then))
    names = (machine, infrastructure, bootstrap)
    return {
        "settings": {"extensionConfigName": "any", **settings},
        "current": dict(zip(names, now, strict=True)),
        "desired": dict(zip(names, then, strict=True)),
    }


SINGLE = ("machine", "infrastructureMachine", "bootstrapConfig")
SET = ("machineSet", "infrastructureMachineTemplate", "bootstrapConfigTemplate")
QUESTIONS: dict[str, tuple[AnyHook, str, dict[str, Any]]] = {
    "patches": (v1.GeneratePatches, "generate-patches", generate_patches()),
    "topology": (v1.ValidateTopology, "validate-topology", validate_topology([])),
    "plan": (v1.GenerateUpgradePlan, "generate-upgrade-plan", plan("v1.33.12")),
    "plan for workers": (v1.GenerateUpgradePlan, "generate-upgrade-plan", plan("v1.36.1")),
    "machine": (v1.CanUpdateMachine, "can-update-machine", update(*SINGLE)),
    "set": (v1.CanUpdateMachineSet, "can-update-machineset", update(*SET)),
    "machine, not in place": (
        v1.CanUpdateMachine,
        "can-update-machine",
        update(*SINGLE, disableInPlaceUpdates="true"),
    ),
    "update": (
        v1.UpdateMachine,
        "update-machine",
        {
            "settings": {"extensionConfigName": "any"},
            "desired": dict(zip(SINGLE, (NEWER, DEV, KUBEADM), strict=True)),
        },
    ),
}


@pytest.fixture(scope="module")
async def original(
    api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[aiohttp.ClientSession]:
    """Cluster API's reference extension."""
    folder = tmp_path_factory.mktemp("original")
    trusted = ssl.create_default_context(cadata=certificates(folder).decode())
    connector = aiohttp.TCPConnector(ssl=trusted)
    async with (
        reference(folder, api_server.kubeconfig) as running,
        aiohttp.ClientSession(f"https://{HOST}:{running.port}", connector=connector) as session,
    ):
        yield session


@pytest.mark.parametrize("question", QUESTIONS)
async def test_both_extensions_give_equivalent_answers(
    original: aiohttp.ClientSession, question: str
) -> None:
    hook, handler, request = QUESTIONS[question]
    path = hook.id.path(handler)
    async with original.post(path, json=request) as answer:
        theirs = await answer.read()
    assert read_json(hook.response_type(), theirs).dump() == json.loads(theirs)
    ours = await handler_runners(reference_extension.ext)[path].respond(
        json.dumps(request).encode()
    )
    assert effect(request, json.loads(ours.body)) == effect(request, json.loads(theirs))


def effect(request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """The effect of an answer: its fields, and patched objects."""
    effect = {key: value for key, value in response.items() if value and key not in HEAD}
    items = {item["uid"]: item["patch"] for item in effect.pop("items", ())}
    for item in request.get("items", ()):
        if "uid" in item:
            effect[item["uid"]] = patched(item["object"], items[item["uid"]])
    for name, now in request.get("current", {}).items():
        if patch := effect.pop(f"{name}Patch", None):
            effect[name] = patched(now, patch["patch"])
    return effect


HEAD = {"apiVersion", "kind"}


def patched(document: Any, patch: str) -> Any:
    after = apply_json_patch(document, json.loads(base64.b64decode(patch)))
    # Go's types add an empty status to objects.
    after.pop("status", None)
    return after
