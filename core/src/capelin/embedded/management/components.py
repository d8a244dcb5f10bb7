"""The components of Cluster API's own providers, rendered from the pinned Go module once."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import yaml

from capelin.api import Unstructured
from capelin.embedded.binaries import Binaries
from capelin.embedded.management.plan import VARIABLES
from capelin.embedded.management.problems import ProblemError
from capelin.embedded.management.providers import Upstream
from capelin.embedded.management.substitution import substitute
from capelin.embedded.processes import private_folder, write_private

# Ten times as fast where PyYAML was built with libyaml, as its wheels are.
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


async def components_of(provider: Upstream, version: str, binaries: Binaries) -> list[Unstructured]:
    """What clusterctl would install for a provider, with our feature gates, from the cache.

    Raises:
        ProblemError: if the kustomization of the module cannot be rendered.
    """
    cached = binaries.cache.root / "components" / version / f"{provider.label}.json"
    if (found := _read(cached)) is not None:
        return found
    source = await binaries.source(provider.source, version)
    text = await _kustomize(await binaries.path("kubectl"), source / provider.kustomization)
    rendered = parse(text, VARIABLES)
    private_folder(cached.parent)
    write_private(cached, json.dumps(rendered).encode())
    return rendered


def parse(text: str, variables: Mapping[str, str]) -> list[Unstructured]:
    """The objects of a YAML template."""
    documents = yaml.load_all(substitute(text, variables), Loader=_Loader)
    return [cast("Unstructured", each) for each in documents if each]


def _read(path: Path) -> list[Unstructured] | None:
    try:
        return cast("list[Unstructured]", json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError):
        return None


async def _kustomize(kubectl: Path, folder: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        kubectl,
        "kustomize",
        folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    if process.returncode:
        raise ProblemError(
            f"The components in {folder} cannot be rendered.",
            f"kubectl kustomize says: {err.decode(errors='replace').strip()}",
            "Remove the folder, so that it is unpacked anew, and try again.",
        )
    return out.decode()
