"""An extension that keeps every request as it came, for the test of the real core.

`hooked.py FOLDER ...` writes requests to FOLDER; the rest are the options of every extension.
"""

import sys
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from unittest.mock import patch

from capelin.api import Model
from capelin.runtime import Call, Extension, Failure, Verdict, proceed, retry_after
from capelin.runtime.server import app
from capelin.runtime.server.bodies import Receive, read_body
from capelin.runtime.topology import Mutations, Template, control_plane
from capelin.runtime.v1alpha1 import (
    AfterControlPlaneInitialized,
    BeforeClusterCreate,
    BeforeClusterDelete,
    DiscoverVariables,
    GeneratePatches,
    ValidateTopology,
)

ext = Extension("hooked")


class Variables(Model):
    """What users of the ClusterClass set."""

    motto: str
    """What to write on every node."""
    loud: bool = False


mutations = Mutations(Variables)
ext.handler(GeneratePatches, name="motto-v1")(mutations.patches)
ext.handler(DiscoverVariables, name="variables-v1")(mutations.described)


@mutations.on("KubeadmControlPlaneTemplate", control_plane)
def motto(template: Template[Variables]) -> None:
    """The motto of the day."""
    text = template.variables.motto
    if template.variables.loud:
        text = text.upper()
    files = template.sequence("kubeadmConfigSpec", "files")
    files.append({"path": "/etc/motd", "content": text})


@ext.handler(ValidateTopology)
def has_a_motto(call: Call[ValidateTopology, None]) -> Verdict:
    """All patches are in, ours too."""
    for item in call.request.items:
        if item.object["kind"] == "KubeadmControlPlaneTemplate":
            spec = item.object["spec"]["template"]["spec"]
            if not spec["kubeadmConfigSpec"].get("files"):
                return Failure("a control plane without a motto")
    return proceed()


class Settings(Model):
    """What the ExtensionConfig says."""

    gate: str


@ext.handler(BeforeClusterCreate, settings=Settings)
def gate(call: Call[BeforeClusterCreate, Settings]) -> Verdict:
    """Wait for somebody to open the gate."""
    if Path(call.settings.gate).exists():
        return proceed()
    return retry_after(1, f"the gate of {call.request.cluster.name} is closed")


@ext.handler(AfterControlPlaneInitialized)
async def initialized(_: Call[AfterControlPlaneInitialized, None]) -> Verdict:
    """Nothing to do but to be called."""
    return proceed()


@ext.handler(BeforeClusterDelete)
async def deleted(_: Call[BeforeClusterDelete, None]) -> Verdict:
    """Nothing to do but to be called."""
    return proceed()


def keeping(folder: Path) -> Callable[[Receive], Awaitable[bytes]]:
    """Reads a body, and writes it to a file of its own."""
    numbers = count(1)

    async def read_and_keep(receive: Receive) -> bytes:
        body = await read_body(receive)
        (folder / f"{next(numbers)}.json").write_bytes(body)
        return body

    return read_and_keep


if __name__ == "__main__":
    with patch.object(app, "read_body", keeping(Path(sys.argv[1]))):
        ext.run(sys.argv[2:])
