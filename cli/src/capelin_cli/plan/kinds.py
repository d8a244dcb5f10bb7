"""The kinds of Cluster API and its providers that a management cluster serves."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from capelin.api import CONTRACTS, Resource, Unstructured
from capelin.api.core import CustomResourceDefinition
from capelin.client import Client, ClientError
from capelin.errors import UserError
from capelin.runtime import CatalogError, Version

from capelin_cli.explain.facts import at, text_at

_CRDS: Final = CustomResourceDefinition.resource
_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
CORE_GROUPS: Final = frozenset(
    {
        "addons.cluster.x-k8s.io",
        "cluster.x-k8s.io",
        "clusterctl.cluster.x-k8s.io",
        "ipam.cluster.x-k8s.io",
        "runtime.cluster.x-k8s.io",
    }
)
"""The groups whose CRDs belong to Cluster API's core."""
_CORE_VERSION: Final = "v1beta2"
_LOADED: Final = frozenset({"cluster.x-k8s.io", "runtime.cluster.x-k8s.io"})


@dataclass(frozen=True)
class Kinds:
    """Resources by group and kind, in the versions that Cluster API uses."""

    by_kind: Mapping[tuple[str, str], Resource]

    def find(self, group: str, kind: str) -> Resource | None:
        return self.by_kind.get((group, kind))

    @property
    def of_providers(self) -> list[Resource]:
        """The kinds of providers."""
        return [each for each in self.by_kind.values() if each.group not in CORE_GROUPS]


async def read_kinds(client: Client) -> Kinds:
    """The kinds that follow a contract of Cluster API, and those of its core."""
    try:
        listed = await client.request("GET", _CRDS.path(), accept=_METADATA)
    except ClientError as error:
        raise UserError(
            "The kinds of the management cluster cannot be read.",
            reason=f"{error}.",
            hint="Use credentials that may list CustomResourceDefinitions.",
        ) from None
    chosen: dict[str, str] = {}
    for item in cast("list[Unstructured]", at(listed, "items") or []):
        name = text_at(item, "metadata", "name")
        group = name.partition(".")[2]
        version = chosen_version(
            group, cast("dict[str, str]", at(item, "metadata", "labels") or {})
        )
        if version:
            chosen[name] = version
    versions = {(name.partition(".")[2], version) for name, version in chosen.items()}
    served = await asyncio.gather(
        *(client.resources(f"{group}/{version}") for group, version in sorted(versions))
    )
    return Kinds(
        {
            (resource.group, resource.kind): resource
            for resources in served
            for resource in resources
            if chosen.get(f"{resource.plural}.{resource.group}") == resource.version
        }
    )


def chosen_version(group: str, labels: Mapping[str, str]) -> str:
    """The version in which Cluster API reads a kind. Empty for kinds that it does not read."""
    if group in CORE_GROUPS:
        return _CORE_VERSION if group in _LOADED else ""
    for contract in reversed(CONTRACTS):
        if versions := labels.get(f"cluster.x-k8s.io/{contract}", ""):
            return max(versions.split("_"), key=_order)
    return ""


def _order(version: str) -> Version:
    """The order of versions such as v1alpha1, v1beta2 and v1. Other texts come first."""
    try:
        return Version.parse(version)
    except CatalogError:
        return Version(-1, 0, 0)


async def read_definitions(client: Client, resources: Iterable[Resource]) -> list[Unstructured]:
    """The CRDs of these kinds, for a server that has none of their webhooks."""
    wanted = list(resources)
    found = await asyncio.gather(
        *(client.request("GET", _CRDS.path(name=f"{each.plural}.{each.group}")) for each in wanted)
    )
    return [
        without_conversion(crd, resource.version)
        for crd, resource in zip(found, wanted, strict=True)
    ]


def without_conversion(crd: Unstructured, version: str) -> Unstructured:
    """A CRD that stores one version, and serves no other."""
    metadata: dict[str, Any] = crd["metadata"]
    spec = {key: value for key, value in crd["spec"].items() if key != "conversion"}
    spec["versions"] = [
        {**each, "storage": True, "served": True}
        for each in crd["spec"]["versions"]
        if each["name"] == version
    ]
    labels = cast("dict[str, str]", metadata.get("labels") or {})
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": metadata["name"], "labels": labels},
        "spec": spec,
    }
