"""A machine for kubeadm: namespaces with its own /etc, /var/lib and addresses."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml
from capelin.testing.waiting import until

ADDRESS: Final = "192.0.2.10"
_UNSHARE: Final = ("unshare", "--user", "--map-root-user", "--mount", "--net")
_SET_UP: Final = """
mount --bind {etc} /etc
mount --bind {lib} /var/lib
ip link set lo up
ip address add {address}/32 dev lo
touch {ready}
exec sleep infinity
"""


def is_possible() -> bool:
    """Whether this user may create such namespaces."""
    programs = ("unshare", "nsenter", "ip")
    if any(shutil.which(program) is None for program in programs):
        return False
    return subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode == 0


@dataclass
class KubeadmMachine:
    """A machine that runs static pods as plain processes."""

    folder: Path
    environment: Mapping[str, str]
    wrapper: tuple[str, ...]
    """Runs a command on the machine."""
    components: dict[str, asyncio.subprocess.Process] = field(
        default_factory=dict[str, asyncio.subprocess.Process]
    )

    async def start(self, component: str) -> None:
        """Start a component with the command of its static pod, or restart it."""
        await self.stop(component)
        manifest = self.folder / "etc" / "kubernetes" / "manifests" / f"{component}.yaml"
        command = yaml.safe_load(manifest.read_text())["spec"]["containers"][0]["command"]
        with (self.folder / f"{component}.log").open("ab") as log:
            self.components[component] = await asyncio.create_subprocess_exec(
                *(*self.wrapper, *command), env=dict(self.environment), stdout=log, stderr=log
            )

    async def stop(self, component: str) -> None:
        process = self.components.pop(component, None)
        if process is not None:
            if process.returncode is None:
                process.terminate()
            await process.wait()


@asynccontextmanager
async def kubeadm_machine(
    folder: Path, environment: Mapping[str, str]
) -> AsyncGenerator[KubeadmMachine]:
    """A machine that sees only its own files in /etc and /var/lib, and has only its own ports."""
    etc, lib, ready = folder / "etc", folder / "lib", folder / "ready"
    etc.mkdir(parents=True)
    lib.mkdir()
    set_up = _SET_UP.format(etc=etc, lib=lib, ready=ready, address=ADDRESS)
    anchor = await asyncio.create_subprocess_exec(*_UNSHARE, "bash", "-ec", set_up)
    inside = ("--user", "--mount", "--net", "--preserve-credentials")
    machine = KubeadmMachine(
        folder, {**os.environ, **environment}, ("nsenter", f"--target={anchor.pid}", *inside)
    )
    try:
        await until(ready.exists)
        yield machine
    finally:
        for component in [*machine.components]:
            await machine.stop(component)
        anchor.terminate()
        await anchor.wait()
