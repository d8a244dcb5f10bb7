"""Behaviour of control planes."""

import base64
import binascii
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, Final

from capelin.api import Unstructured
from capelin.api.capi import Machine
from capelin.client import Client, ClientError, Config, ConfigError
from capelin.contract import CLUSTER_NAME_LABEL, CONTROL_PLANE_LABEL, KUBECONFIG_KEY, SECRET_TYPE
from capelin.versions import Version

from capelin_conformance.providers.bench import CLUSTER
from capelin_conformance.providers.benches import ControlPlaneBench
from capelin_conformance.providers.fields import items_at, mapping_at, value_at
from capelin_conformance.providers.lifecycle import BehaviourCheck
from capelin_conformance.providers.rules import NotApplicableError, Rule, UntriedError, rule

_CERTIFICATES: Final = ("ca", "etcd", "proxy", "sa")


@rule("control-plane")
async def endpoint(bench: ControlPlaneBench) -> AsyncIterator[str]:
    """The Cluster of an initialized control plane has an endpoint.

    Source: control-plane#controlplane-endpoint
    Fix: write spec.controlPlaneEndpoint before the control plane is initialized.
    """
    if bench.world.subject.kind.field("spec.controlPlaneEndpoint") is None:
        raise NotApplicableError("the kind has no spec.controlPlaneEndpoint: others provide it")
    await bench.provision()

    async def is_known() -> bool:
        cluster = await bench.client.get(CLUSTER, bench.name, bench.namespace)
        path = "spec.controlPlaneEndpoint"
        return bool(value_at(cluster, f"{path}.host") and value_at(cluster, f"{path}.port"))

    if not await bench.becomes(is_known):
        yield "the Cluster has no spec.controlPlaneEndpoint with a host and a port"


@rule("control-plane")
async def kubeconfig(bench: ControlPlaneBench) -> AsyncIterator[str]:
    """The secret CLUSTER-kubeconfig has the type, the label and the key that core looks for.

    Source: control-plane#cluster-kubeconfig-management
    Fix: use the type cluster.x-k8s.io/secret, the label cluster.x-k8s.io/cluster-name and the key
    value.
    """
    secret = await _kubeconfig_secret(bench)
    if secret is None:
        yield f"there is no Secret {bench.name}-kubeconfig"
        return
    if secret.get("type") != SECRET_TYPE:
        yield f"its type is {secret.get('type')}"
    label = mapping_at(secret, "metadata.labels").get(CLUSTER_NAME_LABEL)
    if label != bench.name:
        yield f"its label {CLUSTER_NAME_LABEL} is {label}"
    if KUBECONFIG_KEY not in mapping_at(secret, "data"):
        yield f"it has no key {KUBECONFIG_KEY}"


@rule("control-plane")
async def kubeconfig_usable(bench: ControlPlaneBench) -> AsyncIterator[str]:
    """The kubeconfig of an initialized control plane leads to an API server that responds.

    Source: control-plane#cluster-kubeconfig-management
    Fix: write certificates and keys inline, without exec plugins, and initialize the control plane
    only when its API server responds.
    """
    data = mapping_at(await _kubeconfig_secret(bench), "data")
    if KUBECONFIG_KEY not in data:
        raise UntriedError("there is no kubeconfig")
    try:
        config = Config.from_secret(base64.b64decode(data[KUBECONFIG_KEY]))
    except (ConfigError, binascii.Error) as error:
        yield f"core cannot use it: {error}"
        return
    try:
        async with Client(config) as workload:
            # Core reads this, too. Unlike /version, it requires a valid certificate.
            await workload.request("GET", "/api")
    except ClientError as error:
        yield f"{config.server.address} does not respond to it: {error}"


@rule("control-plane")
async def versions(bench: ControlPlaneBench) -> AsyncIterator[str]:
    """A control plane with spec.version reports its versions, the oldest first.

    Source: control-plane#controlplane-version
    Fix: write status.versions: without it core creates no Machines of a MachineDeployment.
    """
    if value_at(await bench.provision(), "spec.version") is None:
        raise NotApplicableError("the sample has no spec.version")

    async def is_reported() -> bool:
        return bool(_reported_versions(await bench.get()))

    if not await bench.becomes(is_reported):
        yield "neither status.versions nor status.version has a value"
        return
    reported = _reported_versions(await bench.get())
    try:
        parsed = [Version.parse(version) for version in reported]
    except ValueError:
        yield f"not all of them are versions such as v1.36.3: {', '.join(reported)}"
        return
    for older, newer in pairwise(parsed):
        if newer.precedes(older):
            yield f"{newer} comes after {older}"


@rule("control-plane", advice=True)
async def external_control_plane(bench: ControlPlaneBench) -> AsyncIterator[str]:
    """Without Machines of its own, a control plane has status.externalManagedControlPlane: true.

    Source: control-plane#controlplane-machines
    Fix: set it. Otherwise core neither drains nor deletes the Nodes of deleted Machines.
    """
    obj = await bench.provision()
    selector = {CLUSTER_NAME_LABEL: bench.name, CONTROL_PLANE_LABEL: ""}
    if (await bench.client.list(Machine.resource, bench.namespace, labels=selector)).items:
        raise NotApplicableError("the control plane has Machines")
    value = value_at(obj, "status.externalManagedControlPlane")
    if value is not True:
        yield f"there are no Machines, and status.externalManagedControlPlane is {value}"


@rule("control-plane")
async def certificates_kept(bench: ControlPlaneBench) -> AsyncIterator[str]:
    """The provider keeps the Cluster's certificate authorities if the status is lost.

    Source: control-plane#cluster-certificate-management
    Fix: look for existing secrets before you create certificates.
    """
    await bench.provision()
    before = await _certificates(bench)
    if not before:
        raise NotApplicableError("the provider publishes no certificate authorities")
    await bench.remove_status()
    await bench.becomes(bench.reached)
    await bench.hold()
    after = await _certificates(bench)
    for name, data in before.items():
        if after.get(name) != data:
            yield f"Secret {bench.name}-{name} has changed"


def _reported_versions(control_plane: Unstructured) -> list[str]:
    """The versions in the status, as core reads them."""
    if entries := items_at(control_plane, "status.versions"):
        return [str(entry.get("version")) for entry in entries]
    single = value_at(control_plane, "status.version")
    return [str(single)] if single else []


async def _kubeconfig_secret(bench: ControlPlaneBench) -> Unstructured | None:
    await bench.provision()

    async def exists() -> bool:
        return await bench.secret("kubeconfig") is not None

    await bench.becomes(exists)
    return await bench.secret("kubeconfig")


async def _certificates(bench: ControlPlaneBench) -> dict[str, Any]:
    found = {name: await bench.secret(name) for name in _CERTIFICATES}
    return {name: secret.get("data") for name, secret in found.items() if secret is not None}


CONTROL_PLANE_RULES: Final[tuple[Rule[BehaviourCheck], ...]] = (
    endpoint,
    kubeconfig,
    kubeconfig_usable,
    versions,
    external_control_plane,
    certificates_kept,
)
