"""A provider's components, like clusterctl's, adapted to a local process."""

import asyncio
import base64
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from capelin.api import Resource, Unstructured
from capelin.client import ApiError, Client, NotServed
from capelin.contract import CLUSTERCTL_LABEL, PROVIDER_LABEL

ENVIRONMENT_LABEL: Final = "capelin.cluster.x-k8s.io/environment"
"""Label of everything that an environment installs into a shared API server."""

FIELD_MANAGER: Final = "capelin"
"""Field manager of an environment."""

WEBHOOKS: Final = tuple(
    Resource("admissionregistration.k8s.io", "v1", kind, f"{kind.lower()}s", namespaced=False)
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
)

_REPLACED: Final = frozenset({"Deployment", "Service", "Certificate", "Issuer"})
_WEBHOOK_KINDS: Final = frozenset(resource.kind for resource in WEBHOOKS)
_CERTIFICATE_INJECTION: Final = "cert-manager.io/inject-ca-from"


@dataclass(frozen=True, slots=True)
class WebhookEndpoint:
    """The address of a local process for the API server, and the CA of its certificate."""

    address: str
    port: int
    ca_pem: bytes

    def client_config(self, service: Mapping[str, Any]) -> Unstructured:
        """A webhook's `clientConfig` with a URL instead of a service."""
        return {
            "url": f"https://{self.address}:{self.port}{service.get('path', '')}",
            "caBundle": base64.b64encode(self.ca_pem).decode(),
        }


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """The settings of a provider's Deployment for its manager."""

    namespace: str
    service_account: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    """Only constant variables, without those from the downward API."""


def localize(
    components: Iterable[Unstructured], *, provider: str, listener: WebhookEndpoint | None
) -> list[Unstructured]:
    """The components of a provider for the API server, in the order to send them.

    It omits pods, services and cert-manager's objects: a process, an address and our own
    certificates replace them. Webhooks and conversions get the listener's address.
    """
    ours = [
        _labelled(_reached_at(component, listener), provider)
        for component in without_replaced(components)
    ]
    return sorted(ours, key=apply_order)


def without_replaced(components: Iterable[Unstructured]) -> list[Unstructured]:
    """The components of a provider that go to the API server."""
    return [component for component in components if component["kind"] not in _REPLACED]


def with_environment_label(manifest: Unstructured, mark: str) -> Unstructured:
    """The manifest with the label of the environment that installs it."""
    metadata = manifest["metadata"]
    labels = {**metadata.get("labels", {}), ENVIRONMENT_LABEL: mark}
    return {**manifest, "metadata": {**metadata, "labels": labels}}


def environment_label_of(obj: Unstructured) -> str | None:
    """The environment that installed an object, or None."""
    return obj["metadata"].get("labels", {}).get(ENVIRONMENT_LABEL)


def launch_spec(components: Iterable[Unstructured]) -> LaunchSpec:
    """The settings with which a provider's Deployment starts its manager.

    Raises:
        ValueError: There is not exactly one Deployment with exactly one container.
    """
    deployments = [component for component in components if component["kind"] == "Deployment"]
    if len(deployments) != 1:
        msg = f"a provider's components must have one Deployment, not {len(deployments)}"
        raise ValueError(msg)
    pod = deployments[0]["spec"]["template"]["spec"]
    containers = pod["containers"]
    if len(containers) != 1:
        msg = f"a provider's Deployment must have one container, not {len(containers)}"
        raise ValueError(msg)
    variables = containers[0].get("env", [])
    return LaunchSpec(
        namespace=deployments[0]["metadata"]["namespace"],
        service_account=pod["serviceAccountName"],
        arguments=tuple(containers[0].get("args", [])),
        environment={
            variable["name"]: variable["value"] for variable in variables if "value" in variable
        },
    )


INVENTORY_CRD: Final[Unstructured] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "providers.clusterctl.cluster.x-k8s.io",
        "labels": {CLUSTERCTL_LABEL: "", f"{CLUSTERCTL_LABEL}/core": "inventory"},
    },
    "spec": {
        "group": "clusterctl.cluster.x-k8s.io",
        "names": {
            "categories": ["cluster-api"],
            "kind": "Provider",
            "listKind": "ProviderList",
            "plural": "providers",
            "singular": "provider",
        },
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha3",
                "served": True,
                "storage": True,
                "subresources": {},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "providerName": {"type": "string"},
                            "type": {"type": "string"},
                            "version": {"type": "string"},
                            "watchedNamespace": {"type": "string"},
                        },
                    }
                },
                "additionalPrinterColumns": [
                    {"name": "Type", "type": "string", "jsonPath": ".type"},
                    {"name": "Provider", "type": "string", "jsonPath": ".providerName"},
                    {"name": "Version", "type": "string", "jsonPath": ".version"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
            }
        ],
    },
}
"""The kind of clusterctl's inventory. clusterctl creates it only during `init`."""


def inventory_entry(
    *, name: str, kind: str, label: str, version: str, namespace: str
) -> Unstructured:
    """The entry in clusterctl's inventory for an installed provider."""
    return {
        "apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3",
        "kind": "Provider",
        "metadata": {
            "name": label,
            "namespace": namespace,
            "labels": {
                CLUSTERCTL_LABEL: "",
                f"{CLUSTERCTL_LABEL}/core": "inventory",
                PROVIDER_LABEL: label,
            },
        },
        "providerName": name,
        "type": kind,
        "version": version,
    }


def apply_order(manifest: Unstructured) -> int:
    """The position of a manifest: requirements of others first, and webhooks last."""
    order = ("CustomResourceDefinition", "Namespace", "ServiceAccount")
    if is_webhook(manifest):
        return len(order) + 1
    return order.index(manifest["kind"]) if manifest["kind"] in order else len(order)


def _labelled(manifest: Unstructured, provider: str) -> Unstructured:
    metadata = manifest["metadata"]
    annotations = {
        key: value
        for key, value in metadata.get("annotations", {}).items()
        if key != _CERTIFICATE_INJECTION
    }
    labels = {**metadata.get("labels", {}), CLUSTERCTL_LABEL: "", PROVIDER_LABEL: provider}
    return {**manifest, "metadata": {**metadata, "labels": labels, "annotations": annotations}}


def _reached_at(manifest: Unstructured, listener: WebhookEndpoint | None) -> Unstructured:
    """The manifest, with URLs instead of the services that the API server calls."""
    match manifest["kind"]:
        case "CustomResourceDefinition":
            path = ("spec", "conversion", "webhook")
        case "ExtensionConfig":
            path = ("spec",)
        case kind if kind in _WEBHOOK_KINDS:
            hooks = [_called(webhook, (), listener) for webhook in manifest["webhooks"]]
            return {**manifest, "webhooks": hooks}
        case _:
            return manifest
    return _called(manifest, path, listener)


def _called(
    value: Unstructured, path: tuple[str, ...], listener: WebhookEndpoint | None
) -> Unstructured:
    """The value, with a `clientConfig` at the path changed to call the listener."""
    if path:
        head, *rest = path
        return (
            {**value, head: _called(value[head], tuple(rest), listener)} if head in value else value
        )
    service = value.get("clientConfig", {}).get("service")
    if service is None:
        return value
    if listener is None:
        msg = f"the API server would call the service {service['name']}, but no process serves it"
        raise ValueError(msg)
    return {**value, "clientConfig": listener.client_config(service)}


_AT_A_TIME: Final = 8
_POLL_SECONDS: Final = 0.05


async def apply_manifests(client: Client, manifests: Iterable[Unstructured]) -> None:
    """Apply manifests in the order of their kinds, and wait until new kinds are served.

    Raises:
        ApiError: The API server rejects one, which a note names.
    """
    ordered = sorted(manifests, key=apply_order)
    for _, group in groupby(ordered, key=apply_order):
        slots = asyncio.Semaphore(_AT_A_TIME)
        await do_all(_apply(client, manifest, slots) for manifest in group)
    await _established(client, filter(is_definition, ordered))


async def find_live(client: Client, manifests: Iterable[Unstructured]) -> list[Unstructured]:
    """The existing objects, in their current state."""
    slots = asyncio.Semaphore(_AT_A_TIME)
    found = await asyncio.gather(*(_live(client, manifest, slots) for manifest in manifests))
    return [obj for obj in found if obj is not None]


async def _live(
    client: Client, manifest: Unstructured, slots: asyncio.Semaphore
) -> Unstructured | None:
    metadata = manifest["metadata"]
    async with slots:
        try:
            resource = await client.resource_of(manifest)
            return await client.find(resource, metadata["name"], metadata.get("namespace"))
        except NotServed:
            return None


async def do_all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all coroutines concurrently. Raises the first error and cancels the others."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for coroutine in work:
                tasks.create_task(coroutine)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def _apply(client: Client, manifest: Unstructured, slots: asyncio.Semaphore) -> None:
    async with slots:
        try:
            await client.apply(manifest)
        except ApiError as error:
            error.add_note(f"This was about {manifest['kind']} {manifest['metadata']['name']}.")
            raise


async def _established(client: Client, definitions: Iterable[Unstructured]) -> None:
    """Wait until the API server serves the kinds of these definitions."""
    missing = {
        (definition["spec"]["group"], version["name"], definition["spec"]["names"]["plural"])
        for definition in definitions
        for version in definition["spec"]["versions"]
        if version["served"]
    }
    while missing:
        for group, version in sorted({(group, version) for group, version, _ in missing}):
            with suppress(NotServed):
                served = await client.resources(f"{group}/{version}")
                missing -= {(group, version, resource.plural) for resource in served}
        if missing:
            await asyncio.sleep(_POLL_SECONDS)


def is_definition(manifest: Unstructured) -> bool:
    return manifest["kind"] == "CustomResourceDefinition"


def is_webhook(manifest: Unstructured) -> bool:
    """Whether it makes the API server call a webhook on requests of other users."""
    return manifest["kind"] in _WEBHOOK_KINDS
