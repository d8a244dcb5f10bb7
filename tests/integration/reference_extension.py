"""A drop-in for Cluster API's reference extension, on the Runtime SDK.

Tests set the responses of hooks in a ConfigMap, where the extension records its calls.
"""

import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from copy import deepcopy
from functools import reduce
from typing import Annotated, Any

import orjson
import yaml
from capelin.api import Model
from capelin.api.core import ConfigMap
from capelin.client import Client, Config
from capelin.runtime import Call, Extension, Failure, Hook, Response, retry_after
from capelin.runtime import v1alpha1 as v1
from capelin.runtime.messages import read
from capelin.runtime.server import serve
from capelin.runtime.topology import Mutations, Template, json_patch
from pydantic import Field


class Management:
    """The management cluster, open while the extension answers."""

    client: Client


@asynccontextmanager
async def connected() -> AsyncGenerator[None]:
    """Keep a client open."""
    async with Client(Config.find(), manager="test-extension") as Management.client:
        yield


ext = Extension("reference", lifespan=connected)


class File(Model):
    """A file to put on every machine."""

    path: str | None = None
    content: str | None = None
    content_format: str | None = None


class Variables(Model):
    """Variables of the ClusterClass."""

    kubeadm_control_plane_max_surge: Annotated[str, Field(examples=["0"])] = ""
    files: list[File] = []
    pre_kubeadm_commands: list[str] = []
    kubeadm_config_template_annotations: dict[str, str] = {}
    image_repository: Annotated[str, Field(examples=["kindest"])]


class Settings(Model):
    """Settings in the ExtensionConfig."""

    extension_config_name: str
    default_all_handlers_to_blocking: bool = False
    disable_in_place_updates: bool = False


mutations = Mutations(Variables, unknown_kinds="fail")
ext.handler(v1.GeneratePatches, name="generate-patches")(mutations.patches)
ext.handler(v1.DiscoverVariables, name="discover-variables")(mutations.described)


@ext.handler(v1.ValidateTopology)
def validate_topology(_: Call[v1.ValidateTopology, None]) -> None:
    """Accept every topology."""


def mark(metadata: dict[str, Any]) -> None:
    """Add a label and an annotation."""
    for sign in ("label", "annotation"):
        metadata.setdefault(f"{sign}s", {})[f"top-level-{sign}-1"] = f"top-level-{sign}-value-1"


def add_argument(to: Template[Variables], *where: str, name: str = "v", value: str = "2") -> None:
    """Add an argument to a component, in the form of the template's API version."""
    if to.api_version.endswith("/v1beta1"):
        to.mapping(*where)[name] = value
    else:
        to.sequence(*where).append({"name": name, "value": value})


def add_files_and_commands(template: Template[Variables], *where: str) -> None:
    """Add the user's files and commands to the existing ones."""
    variables, owned = template.variables, {"owner": "root:root", "permissions": "0600"}
    if variables.files:
        files = (file.model_dump(exclude_none=True) | owned for file in variables.files)
        template.sequence(*where, "files").extend(files)
    if variables.pre_kubeadm_commands:
        template.sequence(*where, "preKubeadmCommands").extend(variables.pre_kubeadm_commands)


@mutations.on("DevClusterTemplate")
def load_balancer_image(template: Template[Variables]) -> None:
    """Use the user's image of the load balancer."""
    mark(template.metadata)
    if (docker := template.mapping("backend").get("docker")) is not None:
        balancer = docker.setdefault("loadBalancer", {})
        balancer["imageRepository"] = template.variables.image_repository


@mutations.on("KubeadmControlPlaneTemplate")
def control_plane(template: Template[Variables]) -> None:
    """Raise the log level, and add the user's settings of control planes."""
    if (builtin := template.builtin.control_plane) is None:
        raise Failure("a control plane's template has no control plane")
    mark(template.metadata)
    for part in ("apiServer", "controllerManager", "scheduler"):
        add_argument(template, "kubeadmConfigSpec", "clusterConfiguration", part, "extraArgs")
    labels = f"kubernetesVersion={builtin.version.replace('+', '_')}"
    for part in ("initConfiguration", "joinConfiguration"):
        where = ("kubeadmConfigSpec", part, "nodeRegistration", "kubeletExtraArgs")
        add_argument(template, *where)
        add_argument(template, *where, name="node-labels", value=labels)
    if surge := template.variables.kubeadm_control_plane_max_surge:
        old = template.api_version.endswith("/v1beta1")
        strategy = template.mapping(*(["rolloutStrategy"] if old else ["rollout", "strategy"]))
        rolling = {"maxSurge": int(surge) if surge.isdecimal() else surge}
        strategy.setdefault("rollingUpdate", {}).update(rolling)
        strategy.update({} if old else {"type": "RollingUpdate"})
    add_files_and_commands(template, "kubeadmConfigSpec")


@mutations.on("KubeadmConfigTemplate")
def workers(template: Template[Variables]) -> None:
    """Raise the log level, and add the user's settings of workers."""
    mark(template.own_metadata)
    add_argument(template, "joinConfiguration", "nodeRegistration", "kubeletExtraArgs")
    add_files_and_commands(template)
    annotations = template.variables.kubeadm_config_template_annotations
    template.own_metadata["annotations"].update(annotations)


@mutations.on("DevMachineTemplate")
@mutations.on("DevMachinePoolTemplate")
def machine_image(template: Template[Variables]) -> None:
    """The image for the desired version of machines."""
    pool, builtin = template.kind == "DevMachinePoolTemplate", template.builtin
    mark(template.metadata if pool else template.own_metadata)
    owner = builtin.machine_pool if pool else builtin.control_plane or builtin.machine_deployment
    if owner is None:
        raise Failure("no version is known for a machine's template")
    if (docker := template.mapping("backend").get("docker")) is not None:
        docker["customImage"] = f"kindest/node:{owner.version}"


VERSIONS = ("from_kubernetes_version", "to_kubernetes_version", "kubernetes_version")


def lifecycle(hook: type[Hook[Any, Any]]) -> None:
    """Answer a hook with the response in a ConfigMap, and record the call there."""

    async def answer(call: Call[Hook[Any, Any], Settings]) -> Response:
        client, cluster, settings = Management.client, call.request.cluster, call.settings
        versions = [getattr(call.request, name, "") for name in VERSIONS]
        key = "-".join([hook.id.name, *filter(None, versions)]).replace("+", "_")
        name = f"{cluster.name}-{settings.extension_config_name}-test-extension-hookresponses"
        place = name, cluster.namespace
        found = await client.find(ConfigMap, *place) or await client.create(ConfigMap.of(*place))
        wait = 5 if settings.default_all_handlers_to_blocking else 0
        preloaded = found.data.get(f"{key}-preloadedResponse", f"RetryAfterSeconds: {wait}")
        answer_fields = {"Status": "Success", "RetryAfterSeconds": 0} | yaml.safe_load(preloaded)
        response = read(hook.response_type(), answer_fields)
        status = response.status
        if hook.blocks():
            status = f"Status: {status}, RetryAfterSeconds: {response.retry_after_seconds}"
        await client.patch(ConfigMap, *place, {"data": {f"{key}-actualResponseStatus": status}})
        return response

    name = re.sub("(?<=[a-z])(?=[A-Z])", "-", hook.id.name).lower()
    ext.handler(hook, name=name, settings=Settings)(answer)


for _hook in (hook for hook in v1.CLUSTER_API if hook.tag == "Lifecycle Hooks"):
    lifecycle(_hook)

NEWEST = {33: "v1.33.12", 34: "v1.34.8", 35: "v1.35.5", 36: "v1.36.1"}


@ext.handler(v1.GenerateUpgradePlan)
def generate_upgrade_plan(call: Call[v1.GenerateUpgradePlan, None]) -> Response:
    """Plan the newest version of each minor, with as few upgrades of workers as possible."""
    target = call.request.to_kubernetes_version
    start = call.request.from_control_plane_kubernetes_version
    minors = range(int(start.split(".")[1]) + 1, int(target.split(".")[1]))
    steps = [*(NEWEST.get(minor, f"v1.{minor}.0") for minor in minors), target]
    upgrades = [v1.UpgradeStep(version=step) for step in steps if start != target]
    return v1.GenerateUpgradePlanResponse(status="Success", control_plane_upgrades=upgrades)


IN_PLACE = {
    "Machine": ("failureDomain", "version"),
    "KubeadmConfig": ("clusterConfiguration.etcd.local.imageTag", "files"),
    "DevMachine": ("backend.docker.bootstrapTimeout",),
}


def in_place(part: str, current: Any, desired: Any, *spec: str) -> v1.Patch:
    """A patch with the fields that can change in place."""
    after = deepcopy(current)
    kind = "Machine" if part.startswith("machine") else current["kind"].removesuffix("Template")
    for field in IN_PLACE.get(kind, ()):
        *parents, last = (*spec, *field.split("."))
        is_, shall = (reduce(lambda at, key: at.get(key, {}), parents, o) for o in (after, desired))
        if is_.get(last) != shall.get(last):
            reduce(lambda at, key: at.setdefault(key, {}), parents, after)[last] = shall.get(last)
    return v1.Patch(patch_type="JSONPatch", patch=orjson.dumps(json_patch(current, after)))


def can_update(hook: type[Hook[Any, Any]], name: str, *spec: str) -> None:
    """Answer a hook with the changes that are possible in place."""

    def answer(call: Call[Hook[Any, Any], Settings]) -> Response:
        answer_fields: dict[str, Any] = {"status": "Success"}
        now, then = (getattr(call.request, side).dump() for side in ("current", "desired"))
        for part in () if call.settings.disable_in_place_updates else now:
            answer_fields[f"{part}Patch"] = in_place(part, now[part], then[part], *spec)
        return read(hook.response_type(), answer_fields)

    ext.handler(hook, name=name, settings=Settings)(answer)


can_update(v1.CanUpdateMachine, "can-update-machine", "spec")
can_update(v1.CanUpdateMachineSet, "can-update-machineset", "spec", "template", "spec")
began: dict[str, float] = {}


@ext.handler(v1.UpdateMachine, settings=Settings)
async def update_machine(call: Call[v1.UpdateMachine, Settings]) -> Response | None:
    """Simulate a slow update."""
    if call.settings.disable_in_place_updates:
        raise Failure("UpdateMachine must not run if in-place updates are disabled")
    name, now = call.request.desired.machine.name, time.monotonic()
    if now - began.setdefault(name, now) < 15:
        return retry_after(5, "Extension is updating Machine")
    del began[name]
    return None


if __name__ == "__main__":
    serve(ext)
