"""What an environment is made of, with Cluster API's own providers rendered from its Go module."""

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, cast

from capelin.api import Unstructured
from capelin.embedded.apiserver.server import ETCD, KUBE_APISERVER, KUBE_CONTROLLER_MANAGER
from capelin.embedded.binaries import CLUSTER_API, KUBERNETES, Binaries, parse_component
from capelin.embedded.management.environment import Target
from capelin.embedded.management.plan import (
    VARIABLES,
    Component,
    python_component,
    upstream_component,
)
from capelin.embedded.management.providers import Upstream, discover, upstream
from capelin.embedded.management.substitution import substitute
from capelin.embedded.processes import private_folder, write_private
from capelin.errors import UserError
from capelin.yaml import read_all_yaml

CLUSTER_API_VERSION: Final = CLUSTER_API.versions[-1]


def programs(
    kubernetes_version: str, requested: Iterable[str], *, target: Target = "process"
) -> list[str]:
    """The programs that an environment needs, as the binaries are asked for."""
    needed = [
        *((KUBE_APISERVER, KUBE_CONTROLLER_MANAGER, ETCD) if target == "process" else ()),
        *(program for provider in discover() for program in provider.programs),
    ]
    ours = [
        f"{name}@{kubernetes_version}"
        if parse_component(name).component.project is KUBERNETES
        else name
        for name in dict.fromkeys(needed)
    ]
    return [*ours, "kubectl", *(each.program for each in upstream(requested))]


async def gather(requested: Iterable[str], binaries: Binaries) -> list[Component]:
    """Everything that an environment is made of, Cluster API's core first.

    Raises:
        UserError: if the components of a provider cannot be rendered.
    """
    asked = upstream(requested)
    found = await binaries.fetch(each.program for each in asked)
    ours = [
        upstream_component(
            each,
            version=CLUSTER_API_VERSION,
            program=found[each.program].path,
            manifests=await _manifests(each, binaries),
        )
        for each in asked
    ]
    return [*ours, *map(python_component, discover())]


def parse(text: str, variables: Mapping[str, str]) -> list[Unstructured]:
    """The objects of a YAML template."""
    return [each for each in read_all_yaml(substitute(text, variables)) if each]


async def _manifests(provider: Upstream, binaries: Binaries) -> list[Unstructured]:
    """What clusterctl would install for a provider, with our feature gates."""
    given = hashlib.sha256(json.dumps(VARIABLES, sort_keys=True).encode()).hexdigest()[:12]
    folder = binaries.cache.root / "components" / f"{CLUSTER_API_VERSION}-{given}"
    cached = folder / f"{provider.label}.json"
    if (found := _read(cached)) is not None:
        return found
    source = await binaries.module_dir(provider.source, CLUSTER_API_VERSION)
    text = await _kustomize(await binaries.path("kubectl"), source / provider.kustomization)
    rendered = parse(text, VARIABLES)
    private_folder(folder)
    write_private(cached, json.dumps(rendered).encode())
    return rendered


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
        raise UserError(
            f"The components in {folder} cannot be rendered.",
            reason=f"kubectl kustomize says: {err.decode(errors='replace').strip()}",
            hint="Remove that folder, so that it is unpacked anew, and try again.",
        )
    return out.decode()
