"""ConfigMaps and Secrets that policies name: manifests and credentials."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from capelin.api import Unstructured
from capelin.api.core import ConfigMap, Secret
from capelin.client import Client

from capelin_lifecycle.api.actions import ClientCertificate, SecretKey, Source
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.sandbox.pool import SANDBOX, ManifestError, Owner


class SourceError(Exception):
    """A source is missing, or contains no valid manifests. The message names the source."""


async def source_problems(client: Client, policy: KnownPolicy, namespace: str) -> list[str]:
    """Problems of the sources that a policy names. The namespace is the extension's own."""
    namespace = policy.namespace or namespace
    action, owner = policy.spec.action, policy.owner(namespace)
    credentials = (action.http.token, action.http.client_certificate) if action.http else ()
    problems: list[str] = []
    for source in (*(action.apply.sources if action.apply else ()), *filter(None, credentials)):
        try:
            if isinstance(source, Source):
                await read_source(client, owner, namespace, source)
            else:
                await read_secret(client, namespace, source)
        except SourceError as error:
            problems.append(str(error))
    return problems


async def read_secret(
    client: Client, namespace: str, credential: SecretKey | ClientCertificate
) -> Mapping[str, bytes]:
    """The Secret with a credential.

    Raises:
        SourceError: it is missing, or lacks a key.
    """
    name = f"Secret {namespace}/{credential.name}"
    secret = await client.find(Secret, credential.name, namespace)
    if secret is None:
        raise SourceError(f"there is no {name}")
    keys = (credential.key,) if isinstance(credential, SecretKey) else ("tls.crt", "tls.key")
    if missing := [key for key in keys if key not in secret.data]:
        raise SourceError(f"{name} has no key {' and no key '.join(missing)}")
    return secret.data


async def read_source(
    client: Client, owner: Owner, namespace: str, source: Source
) -> list[Unstructured]:
    """The manifests of a source.

    Raises:
        SourceError: it is missing, or holds something else.
    """
    if source.config_map is not None:
        name = f"ConfigMap {namespace}/{source.config_map}"
        config_map = await client.find(ConfigMap, source.config_map, namespace)
        texts = None if config_map is None else dict(config_map.data)
    else:
        name = f"Secret {namespace}/{source.secret}"
        secret = await client.find(Secret, source.secret or "", namespace)
        texts = None if secret is None else secret.data
    if texts is None:
        raise SourceError(f"there is no {name}")
    found: list[Unstructured] = []
    for key in sorted(texts):
        try:
            found += objects_of(await SANDBOX.manifests(owner, _text(texts[key])))
        except ManifestError as error:
            raise SourceError(f"{key} of {name} contains no valid manifests: {error}") from None
    return found


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
    if (
        not isinstance(manifest.get("apiVersion"), str)
        or not isinstance(manifest.get("kind"), str)
        or not isinstance(metadata, dict)
        or not isinstance(cast("dict[str, Any]", metadata).get("name"), str)
    ):
        raise ManifestError("each needs apiVersion, kind and metadata.name")
