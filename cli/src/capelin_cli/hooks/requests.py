"""The request of a call: from a file, from a Cluster, or about a sample cluster."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import typer
import yaml
from capelin.api import Unstructured
from capelin.client import NotFound
from capelin.errors import InvalidInputError, MissingError
from capelin.runtime import AnyHook, CatalogError
from capelin.runtime.fixtures import (
    ClusterFixture,
    UsedPatch,
    cluster_from,
    request_for,
    sample_cluster,
)
from capelin.runtime.v1alpha1 import DiscoverVariables, GeneratePatches, ValidateTopology

from capelin_cli.environments.connection import client_of, find_environment

_EXAMPLE = ("example", "conformance")
_OF_PATCHES: tuple[AnyHook, ...] = (GeneratePatches, ValidateTopology, DiscoverVariables)
_ALL_VARIABLES = (
    "No patch of the ClusterClass names {}: all variables of the Cluster are sent. Cluster API"
    " would send those that the patch's own DiscoverVariables describes."
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
