"""The extension that the command line names: its ExtensionConfig, endpoint and certificate."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from capelin.api.capi import ExtensionClientConfig, ExtensionConfig, ExtensionConfigSpec
from capelin.client import Client, NotServed
from capelin.errors import InvalidInputError, MissingError
from capelin.runtime import Catalog, CatalogError, load_catalog
from capelin.runtime.client import (
    ClientCertificate,
    Connections,
    Endpoint,
    EndpointError,
    endpoint_of,
)
from capelin.runtime.v1alpha1 import CLUSTER_API
from capelin_embedded.management import CORE
from pydantic import ValidationError

from capelin_cli.environments.connection import client_of, find_environment


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
            return _from_url(self.name, self.ca)
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


def _from_url(url: str, ca: Path | None) -> ExtensionConfig:
    config = ExtensionConfig.of("extension")
    client_config = ExtensionClientConfig(url=url, ca_bundle=ca.read_bytes() if ca else None)
    config.spec = ExtensionConfigSpec(client_config=client_config)
    return config


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
