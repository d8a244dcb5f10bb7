"""Sources that policies name: manifests and charts, and Secrets with credentials."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from capelin.api import Unstructured
from capelin.api.core import ConfigMap, Secret
from capelin.client import Client

from capelin_lifecycle.actions.archives import chart_of, texts_of
from capelin_lifecycle.actions.artifacts import ARTIFACTS
from capelin_lifecycle.actions.registry import (
    Access,
    ArtifactError,
    Layer,
    Reference,
    login_of,
)
from capelin_lifecycle.api.actions import OciArtifact, Source
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.sandbox.pool import SANDBOX, ManifestError, Owner

_TEMPLATE: Final = re.compile(r"^# Source: (\S{1,200})$", re.MULTILINE)
_LOGINS: Final = ".dockerconfigjson"


class SourceError(Exception):
    """A source is missing, or contains no valid manifests. The message names the source."""


async def source_problems(client: Client, policy: KnownPolicy, namespace: str) -> list[str]:
    """Problems of the sources that a policy names. The namespace is the extension's own."""
    namespace = policy.namespace or namespace
    apply, owner = policy.spec.action.apply, policy.owner(namespace)
    problems: list[str] = []
    for source in apply.sources if apply else ():
        try:
            await read_source(client, owner, namespace, source)
        except SourceError as error:
            problems.append(str(error))
    return problems


async def read_source(
    client: Client, owner: Owner, namespace: str, source: Source, version: str | None = None
) -> list[Unstructured]:
    """The manifests of a source.

    Args:
        client: A client of the management cluster.
        owner: The policy, and the namespace of its Cluster.
        namespace: The namespace of ConfigMaps and Secrets.
        source: The source.
        version: The version of Kubernetes. Without it, a chart is checked, and not rendered.

    Raises:
        SourceError: it is missing, or contains something else.
    """
    name = _name_of(source, namespace)
    stored = None if source.oci else await _stored(client, namespace, source, name)
    try:
        layers: Sequence[Layer] = ()
        if source.oci is not None:
            layers = await _layers(client, owner, namespace, source.oci)
        if source.chart is not None:
            ARTIFACTS.check_helm()
            archive = chart_of(layers) if stored is None else _only(stored)
            if version is None:
                return []
            documents = await ARTIFACTS.documents(owner, archive, source.chart, version)
            texts: Mapping[str, str | bytes] = dict(map(_origin, enumerate(documents)))
        elif stored is None:
            texts = await asyncio.to_thread(texts_of, layers)
        else:
            texts = stored
    except ArtifactError as error:
        raise SourceError(f"{name} cannot be used: {error}") from None
    found: list[Unstructured] = []
    for key in sorted(texts):
        try:
            found += objects_of(await SANDBOX.manifests(owner, _text(texts[key])))
        except ManifestError as error:
            raise SourceError(f"{key} of {name} contains no valid manifests: {error}") from None
    return found


def _name_of(source: Source, namespace: str) -> str:
    if source.oci is not None:
        return f"artifact {source.oci.reference.partition('@')[0]}"
    if source.config_map is not None:
        return f"ConfigMap {namespace}/{source.config_map}"
    return f"Secret {namespace}/{source.secret}"


async def _stored(
    client: Client, namespace: str, source: Source, name: str
) -> Mapping[str, str | bytes]:
    """The content of a ConfigMap or Secret."""
    if source.config_map is not None:
        config_map = await client.find(ConfigMap, source.config_map, namespace)
        if config_map is not None:
            # Only archives of charts are binary.
            return {**config_map.data, **(config_map.binary_data if source.chart else {})}
    else:
        secret = await client.find(Secret, source.secret or "", namespace)
        if secret is not None:
            return secret.data
    raise SourceError(f"there is no {name}")


async def _layers(
    client: Client, owner: Owner, namespace: str, oci: OciArtifact
) -> Sequence[Layer]:
    login = None
    if oci.pull_secret is not None:
        name = f"Secret {namespace}/{oci.pull_secret}"
        secret = await client.find(Secret, oci.pull_secret, namespace)
        if secret is None:
            raise SourceError(f"there is no {name}")
        if _LOGINS not in secret.data:
            raise SourceError(f"{name} has no key {_LOGINS}")
        try:
            login = login_of(secret.data[_LOGINS], Reference.parse(oci.reference).host)
        except ValueError:
            raise SourceError(f"{_LOGINS} of {name} is not usable") from None
    return await ARTIFACTS.layers(owner, oci.reference, Access(login, oci.ca_bundle))


def _only(stored: Mapping[str, str | bytes]) -> bytes:
    """The only content of a ConfigMap or Secret."""
    contents = [content for content in stored.values() if isinstance(content, bytes)]
    if len(stored) != 1 or not contents:
        raise ArtifactError("it needs one key with the archive of a chart, in binaryData or data")
    return contents[0]


def _origin(numbered: tuple[int, str]) -> tuple[str, str]:
    """A rendered document with the name of its template, in the order of Helm."""
    number, document = numbered
    template = _TEMPLATE.search(document)
    return f"{number:03d} {template[1] if template else 'a document'}", document


def _text(content: str | bytes) -> str:
    if isinstance(content, str):
        return content
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ManifestError("it is not text") from None


def objects_of(documents: Sequence[Any]) -> list[Unstructured]:
    """The objects of some documents, those of lists one by one.

    Raises:
        ManifestError: they hold something else.
    """
    found: list[Unstructured] = []
    for document in documents:
        if document is None:
            continue
        items: list[Any] = [document]
        if isinstance(document, dict) and "items" in document:
            listed: Any = cast("dict[str, Any]", document)["items"]
            items = cast("list[Any]", listed) if isinstance(listed, list) else []
        for item in items:
            _check(item)
            found.append(item)
    return found


def _check(item: Any) -> None:
    manifest = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
    metadata: Any = manifest.get("metadata")
    names = cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
    if (
        not isinstance(manifest.get("apiVersion"), str)
        or not isinstance(manifest.get("kind"), str)
        or not isinstance(names.get("name", names.get("generateName")), str)
    ):
        raise ManifestError("each needs apiVersion, kind, and a name or generateName in metadata")
