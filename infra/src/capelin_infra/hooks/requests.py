"""The request that a call is made with: from a file, from a Cluster, or about a made-up one."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from capelin.api import Unstructured
from capelin.client import NotFound
from capelin.embedded.management.problems import BadInputError, MissingError
from capelin.runtime import AnyHook, CatalogError
from capelin.runtime.requests import Scene, example_scene, request_for, scene_of

from capelin_infra.connection import client_of, the_environment

_EXAMPLE = ("example", "conformance")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request is to be made from, as the command line says it."""

    file: Path | None = None
    cluster: str | None = None
    to_version: str | None = None

    async def scene(self, environment: str) -> Scene:
        """What requests are about.

        Raises:
            MissingError: there is no such Cluster.
        """
        if self.cluster is None:
            if self.to_version is None:
                return example_scene(*_EXAMPLE)
            return example_scene(*_EXAMPLE, to_version=self.to_version)
        namespace, _, name = self.cluster.rpartition("/")
        async with client_of(the_environment(environment)) as client:
            try:
                return await scene_of(
                    client, name, namespace or "default", to_version=self.to_version
                )
            except NotFound as error:
                raise MissingError(
                    f"No request can be made from cluster {self.cluster}.",
                    f"{error}.",
                    f"See capelin status --name {environment}.",
                ) from None

    async def request(
        self, hook: AnyHook, environment: str, settings: dict[str, str]
    ) -> Unstructured:
        """The request of a hook.

        Raises:
            BadInputError: the file holds none, or the hook needs one.
            MissingError: there is no such Cluster.
        """
        if self.file is not None:
            return await asyncio.to_thread(_of_file, self.file)
        try:
            return request_for(hook, await self.scene(environment), settings)
        except CatalogError as error:
            raise BadInputError(
                "No request can be made.", f"{error}.", "Say --request FILE."
            ) from None


def _of_file(path: Path) -> Unstructured:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
        found: Any = yaml.safe_load(text)
        if isinstance(found, dict):
            return cast("Unstructured", found)
        why = "It is no object."
    except OSError as error:
        why = f"It cannot be read ({error.strerror})."
    except (yaml.YAMLError, UnicodeDecodeError):
        why = "It is neither JSON nor YAML."
    raise BadInputError(f"{path} is no request.", why, "See --show-request for how one looks.")
