"""From what stands on the command line to an ExtensionConfig, and who calls it."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from capelin.api.views.capi import ExtensionClientConfig, ExtensionConfig, ExtensionConfigSpec
from capelin.client import Client, NotServed
from capelin.errors import InvalidInputError, MissingError
from capelin.runtime import Catalog, CatalogError, catalog_at
from capelin.runtime.calling import (
    Address,
    AddressError,
    Connections,
    Identity,
    address_of,
)
from capelin.runtime.v1alpha1 import CLUSTER_API
from pydantic import ValidationError

from capelin_infra.connection import client_of, the_environment


@dataclass(frozen=True, slots=True)
class Target:
    """An extension as the command line names it."""

    which: str
    environment: str
    ca: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    through: str | None = None
    catalog: Catalog = CLUSTER_API
    """The hooks that its handlers may be for."""

    @property
    def is_url(self) -> bool:
        """Whether nobody knows what its ExtensionConfig is called."""
        return self.which.startswith(("https://", "http://"))

    def identity(self) -> Identity | None:
        """What to show it.

        Raises:
            InvalidInputError: half of it was said.
        """
        if (self.client_cert is None) != (self.client_key is None):
            raise InvalidInputError(
                "A certificate to show needs its key, and a key its certificate.",
                reason="One of --client-cert and --client-key is missing.",
                hint="Say both or neither.",
            )
        if self.client_cert is None or self.client_key is None:
            return None
        return Identity(self.client_cert, self.client_key)

    def connections(self) -> Connections:
        """What to call it with."""
        return Connections(self.identity())

    async def config(self) -> ExtensionConfig:
        """Its ExtensionConfig.

        Raises:
            InvalidInputError: it is none.
            MissingError: there is none of this name.
        """
        if self.is_url:
            return _of_url(self.which, self.ca)
        if _is_file(self.which):
            return await asyncio.to_thread(_of_file, Path(self.which))
        return await self._of_name()

    def address(self, config: ExtensionConfig) -> Address:
        """Where it is.

        Raises:
            InvalidInputError: its ExtensionConfig leads nowhere.
        """
        try:
            found = address_of(config.spec.client_config)
        except AddressError as error:
            raise InvalidInputError(
                f"{self.which} cannot be called.",
                reason=f"{error}.",
                hint="Name another, or correct it.",
            ) from None
        return Address(found.host, found.port, found.prefix, found.ca, self.through)

    async def _of_name(self) -> ExtensionConfig:
        async with client_of(the_environment(self.environment)) as client:
            found = await registered(client)
        for one in found:
            if one.metadata.name == self.which:
                return one
        known = ", ".join(sorted({one.metadata.name for one in found})) or "none"
        raise MissingError(
            f"There is no ExtensionConfig {self.which}.",
            reason=f"Those that there are: {known}.",
            hint="Name one of them, a file that holds one, or a URL that begins with https://.",
        )


async def registered(client: Client) -> list[ExtensionConfig]:
    """All ExtensionConfigs; none where Cluster API's core is not installed."""
    try:
        return (await client.list(ExtensionConfig)).items
    except NotServed:
        return []


def known_hooks(places: Sequence[str]) -> Catalog:
    """Cluster API's hooks, and those of the catalogs at these places, as `module:name`.

    Raises:
        InvalidInputError: a catalog is not there.
    """
    # As with `python -m`, what lies where one works can be named.
    sys.path.insert(0, "")
    try:
        return CLUSTER_API.joined(*(catalog_at(place) for place in places))
    except CatalogError as error:
        raise InvalidInputError(
            "The hooks cannot be known.",
            reason=f"{error}.",
            hint="Name another catalog, or install its module.",
        ) from None
    finally:
        sys.path.remove("")


def _is_file(which: str) -> bool:
    return "/" in which or which.endswith((".yaml", ".yml", ".json")) or Path(which).is_file()


def _of_url(url: str, ca: Path | None) -> ExtensionConfig:
    made = ExtensionConfig.of("extension")
    said = ExtensionClientConfig(url=url, ca_bundle=ca.read_bytes() if ca else None)
    made.spec = ExtensionConfigSpec(client_config=said)
    return made


def _of_file(path: Path) -> ExtensionConfig:
    try:
        documents: list[Any] = list(yaml.safe_load_all(path.read_text()))
        (found,) = [one for one in documents if one and one.get("kind") == "ExtensionConfig"]
        return ExtensionConfig.read(found)
    except OSError as error:
        why = f"It cannot be read ({error.strerror})."
    except (yaml.YAMLError, UnicodeDecodeError):
        why = "It is neither YAML nor JSON."
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        why = f"{where} is not what an ExtensionConfig has there."
    except (ValueError, AttributeError):
        why = "It does not hold exactly one ExtensionConfig."
    raise InvalidInputError(
        f"{path} cannot be used.", reason=why, hint="Name a file with one ExtensionConfig."
    )
