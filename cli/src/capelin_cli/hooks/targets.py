"""The extension that the command line names, and the request of a call."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import typer
import yaml
from capelin.api import Unstructured
from capelin.api.capi import ExtensionClientConfig, ExtensionConfig, ExtensionConfigSpec
from capelin.client import Client, NotFound, NotServed
from capelin.errors import InvalidInputError, MissingError
from capelin.runtime import AnyHook, Catalog, CatalogError, load_catalog
from capelin.runtime.client import (
    ClientCertificate,
    Connections,
    Endpoint,
    EndpointError,
    endpoint_of,
)
from capelin.runtime.fixtures import (
    ClusterFixture,
    UsedPatch,
    cluster_from,
    request_for,
    sample_cluster,
)
from capelin.runtime.v1alpha1 import (
    CLUSTER_API,
    DiscoverVariables,
    GeneratePatches,
    ValidateTopology,
)
from capelin_embedded.management import CORE
from pydantic import ValidationError

from capelin_cli.environments.connection import client_of, find_environment

_EXAMPLE = ("example", "conformance")
_OF_PATCHES: tuple[AnyHook, ...] = (GeneratePatches, ValidateTopology, DiscoverVariables)
_ALL_VARIABLES = (
    "No patch of the ClusterClass names {}: all variables of the Cluster are sent. Cluster API"
    " would send those that the patch's own DiscoverVariables describes."
)


@dataclass(frozen=True, slots=True)
class Target:
    """An extension as the command line names it."""

    name: str
    """A URL, a file with an ExtensionConfig, or the name of one in the environment."""
    environment: str
    ca: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    through: str | None = None
    catalog: Catalog = CLUSTER_API
    """The known hooks."""

    @property
    def is_url(self) -> bool:
        """Whether it is a URL, and the name of its ExtensionConfig unknown."""
        return self.name.startswith(("https://", "http://"))

    @property
    def client_certificate(self) -> ClientCertificate | None:
        """The certificate to show, by default that of the environment's own core provider.

        The environment's extensions accept no other client.
        """
        if (self.client_cert is None) != (self.client_key is None):
            raise InvalidInputError(
                "A client certificate needs its key, and a key its certificate.",
                reason="One of --client-cert and --client-key is missing.",
                hint="Give both or neither.",
            )
        if self.client_cert is not None and self.client_key is not None:
            return ClientCertificate(self.client_cert, self.client_key)
        if self.is_url or _is_file(self.name):
            return None
        folder = find_environment(self.environment).credentials / CORE.label
        own = ClientCertificate(folder / "tls.crt", folder / "tls.key")
        return own if own.certificate.exists() and own.key.exists() else None

    def connections(self) -> Connections:
        """Connections with the client certificate."""
        return Connections(self.client_certificate)

    async def config(self) -> ExtensionConfig:
        """Its ExtensionConfig."""
        if self.is_url:
            config = ExtensionConfig.of("extension")
            ca = self.ca.read_bytes() if self.ca else None
            client_config = ExtensionClientConfig(url=self.name, ca_bundle=ca)
            config.spec = ExtensionConfigSpec(client_config=client_config)
            return config
        if _is_file(self.name):
            return await asyncio.to_thread(_from_file, Path(self.name))
        async with client_of(find_environment(self.environment)) as client:
            return await registered_as(
                client,
                self.name,
                hint="Name one of them, a file that holds one, or a URL that starts with https://.",
            )

    def endpoint(self, config: ExtensionConfig) -> Endpoint:
        """Its endpoint."""
        try:
            endpoint = endpoint_of(config.spec.client_config)
        except EndpointError as error:
            raise InvalidInputError(
                f"Capelin cannot call {self.name}.",
                reason=f"{error}.",
                hint="Name another, or correct it.",
            ) from None
        return Endpoint(endpoint.host, endpoint.port, endpoint.prefix, endpoint.ca, self.through)


async def registered(client: Client) -> list[ExtensionConfig]:
    """All ExtensionConfigs. Empty if Cluster API's core is not installed."""
    try:
        return (await client.list(ExtensionConfig)).items
    except NotServed:
        return []


async def registered_as(client: Client, name: str, *, hint: str) -> ExtensionConfig:
    """The ExtensionConfig of a name."""
    configs = {config.name: config for config in await registered(client)}
    if name not in configs:
        raise MissingError(
            f"There is no ExtensionConfig {name}.",
            reason=f"ExtensionConfigs: {', '.join(sorted(configs)) or 'none'}.",
            hint=hint,
        )
    return configs[name]


def known_hooks(references: Sequence[str]) -> Catalog:
    """Cluster API's hooks, and those of the catalogs `module:name`."""
    # As with `python -m`, modules of the working directory can be named.
    sys.path.insert(0, "")
    try:
        return CLUSTER_API.joined(*(load_catalog(reference) for reference in references))
    except CatalogError as error:
        raise InvalidInputError(
            "The catalog cannot be loaded.",
            reason=f"{error}.",
            hint="Name another catalog, or install its module.",
        ) from None
    finally:
        sys.path.remove("")


def _is_file(name: str) -> bool:
    return "/" in name or name.endswith((".yaml", ".yml", ".json")) or Path(name).is_file()


def _from_file(path: Path) -> ExtensionConfig:
    try:
        documents: list[Any] = list(yaml.safe_load_all(path.read_text()))
        (found,) = [doc for doc in documents if doc and doc.get("kind") == "ExtensionConfig"]
        return ExtensionConfig.read(found)
    except OSError as error:
        reason = f"It cannot be read ({error.strerror})."
    except (yaml.YAMLError, UnicodeDecodeError):
        reason = "It is neither YAML nor JSON."
    except ValidationError as error:
        field = ".".join(str(part) for part in error.errors()[0]["loc"])
        reason = f"Its field {field} is invalid."
    except (ValueError, AttributeError):
        reason = "It does not hold exactly one ExtensionConfig."
    raise InvalidInputError(
        f"{path} cannot be used.", reason=reason, hint="Name a file with one ExtensionConfig."
    )


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The source of a request, from the command line."""

    file: Path | None = None
    cluster: str | None = None
    to_version: str | None = None
    patch: str | None = None

    async def cluster_fixture(self, environment: str) -> ClusterFixture:
        """The cluster of the request."""
        if self.cluster is None:
            if self.to_version is None:
                return sample_cluster(*_EXAMPLE)
            return sample_cluster(*_EXAMPLE, to_version=self.to_version)
        namespace, _, name = self.cluster.rpartition("/")
        async with client_of(find_environment(environment)) as client:
            try:
                return await cluster_from(
                    client, name, namespace or "default", to_version=self.to_version
                )
            except NotFound as error:
                raise MissingError(
                    f"Capelin cannot make a request from cluster {self.cluster}.",
                    reason=f"{error}.",
                    hint=f"See capelin status -e {environment}.",
                ) from None

    async def request(
        self, hook: AnyHook, handler: str, environment: str, settings: dict[str, str]
    ) -> Unstructured:
        """The request of a hook for a handler, named as ClusterClasses name it."""
        if self.patch is not None and self.cluster is None:
            raise InvalidInputError(
                f"Patch {self.patch} is of no ClusterClass.",
                reason="No Cluster is named.",
                hint="Add --cluster, or leave --patch out.",
            )
        if self.file is not None:
            return await asyncio.to_thread(_of_file, self.file)
        fixture = await self.cluster_fixture(environment)
        if self.cluster is not None and hook in _OF_PATCHES:
            patch = patch_of(fixture, hook, handler, self.patch)
            if patch is not None:
                fixture = fixture.visible_to(patch, hook)
                settings = {**settings, **patch.settings}
            elif hook is not DiscoverVariables:
                typer.echo(_ALL_VARIABLES.format(handler), err=True)
        try:
            return request_for(hook, fixture, settings)
        except CatalogError as error:
            raise InvalidInputError(
                "Capelin cannot make a request.", reason=f"{error}.", hint="Use --request FILE."
            ) from None


def patch_of(
    fixture: ClusterFixture, hook: AnyHook, handler: str, name: str | None
) -> UsedPatch | None:
    """The patch of the class that names the handler, if one does.

    A handler whose extension is not known goes without its name, as `handler`.
    """
    found: list[UsedPatch] = []
    for patch in fixture.patches:
        named = patch.handlers.get(hook.id.name, "")
        if handler in (named, named.partition(".")[0]):
            found.append(patch)
    names = ", ".join(patch.name for patch in found)
    if name is not None:
        for patch in found:
            if patch.name == name:
                return patch
        raise MissingError(
            f"No patch {name} of the ClusterClass names {handler}.",
            reason=f"Those that do: {names or 'none'}.",
            hint="Name one of them, or leave --patch out.",
        )
    if len(found) > 1:
        raise InvalidInputError(
            "Capelin cannot make a request.",
            reason=f"Several patches of the ClusterClass name {handler}: {names}.",
            hint="Choose one with --patch: each has variables and settings of its own.",
        )
    return found[0] if found else None


def _of_file(path: Path) -> Unstructured:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
        found: Any = yaml.safe_load(text)
        if isinstance(found, dict):
            return cast("Unstructured", found)
        why = "It is not an object."
    except OSError as error:
        why = f"It cannot be read ({error.strerror})."
    except (yaml.YAMLError, UnicodeDecodeError):
        why = "It is neither JSON nor YAML."
    raise InvalidInputError(
        f"{path} is not a request.", reason=why, hint="See --show-request for how one looks."
    )
