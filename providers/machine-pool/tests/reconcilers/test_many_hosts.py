"""Two hundred hosts bootstrap at once within bounded time and memory."""

import asyncio
import re
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh
import pytest
from capelin.api.core import Secret
from capelin.client import Client, Config
from capelin.contract import KUBECONFIG_KEY
from capelin.testing.waiting import until
from capelin_machine_pool.hosts.api import CapelinHost

from tests.support.sshd import new_key

from .fake_core import NAME
from .rack import DATA, HostWorld

pytestmark = [
    pytest.mark.integration,
    pytest.mark.repetitive,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("provider_crds"),
]
COUNT = 200
DEAD = 20
MOST_MEMORY = 250 * 2**20
BOOTSTRAP_SECONDS = 5.0
_UID = re.compile(r"^uid='?([^'\n]+)'?$", re.MULTILINE)


@dataclass
class Answers:
    """A host that answers the scripts of the engine without running them."""

    marker: str | None = None
    started: float | None = None
    bootstraps: int = 0

    def answer(self, script: str) -> str:
        """The output of a script."""
        uid = _UID.search(script)
        if "facts-end=" in script:
            return "cpus=4\nmemory=8000000\nfacts-end=\n"
        if "marker.new" in script:
            self.marker = uid[1] if uid else None
        elif "job=bootstrap" in script and "systemd-run" in script:
            self.started, self.bootstraps = time.monotonic(), self.bootstraps + 1
        elif "job=clean" in script and "systemd-run" in script:
            self.marker = self.started = None
        elif 'echo "boot=' in script:
            return "\n".join(self._state())
        return ""

    def _state(self) -> list[str]:
        lines = ["boot=1", "hostname=host"]
        if self.marker is not None:
            lines.append(f"marker={self.marker}")
        if self.started is not None:
            is_over = time.monotonic() - self.started > BOOTSTRAP_SECONDS
            lines.append(f"bootstrap.alive={'no' if is_over else 'yes'}")
            lines += ["bootstrap.exit=0 yes"] if is_over else []
        return [*lines, "end=", ""]


@dataclass
class Hall:
    """One SSH server that is all hosts. The name of the user is that of the host."""

    port: int
    host_key: str
    user_key: bytes = field(repr=False)
    hosts: dict[str, Answers] = field(default_factory=dict[str, Answers])


class _Server(asyncssh.SSHServer):
    def begin_auth(self, username: str) -> bool:
        del username
        return True


@asynccontextmanager
async def hall() -> AsyncGenerator[Hall]:
    host, user = new_key(), new_key()

    async def serve(process: asyncssh.SSHServerProcess[str]) -> None:
        name = str(process.get_extra_info("username"))
        script = await process.stdin.read()
        process.stdout.write(served.hosts.setdefault(name, Answers()).answer(script))
        process.exit(0)

    authorized = asyncssh.import_authorized_keys(user.export_public_key().decode())
    listener = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=_Server,
        server_host_keys=[host],
        authorized_client_keys=authorized,
        process_factory=serve,
    )
    public = " ".join(host.export_public_key().decode().split()[:2])
    served = Hall(listener.get_port(), public, user.export_private_key())
    try:
        yield served
    finally:
        listener.close()
        await listener.wait_closed()


def peak_memory(pid: int) -> int:
    """The largest resident memory of a process so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


async def test_two_hundred_hosts_bootstrap_at_once(
    client: Client,
    namespace: str,
    kubeconfig: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    async with hall() as hosts:
        world = HostWorld(client, namespace, [])
        secret = Secret.of("data", namespace, data={"value": DATA.encode()})
        await client.create(secret)
        await client.create(Secret.of("ssh", namespace, data={"ssh-privatekey": hosts.user_key}))
        for number in range(COUNT + DEAD):
            manifest = {
                "apiVersion": CapelinHost.resource.api_version,
                "kind": "CapelinHost",
                "metadata": {"name": f"host-{number}", "namespace": namespace},
                "spec": {
                    # An address of documentation, at which no machine answers.
                    "address": "127.0.0.1" if number < COUNT else "192.0.2.1",
                    "port": hosts.port,
                    "user": f"host-{number}",
                    "credentials": {"secretName": "ssh"},
                    "hostKeys": [hosts.host_key],
                },
            }
            await client.create(manifest, resource=CapelinHost.resource)
        await world.begin({}, 0, {"backend": "Hosts"})
        content = Config.from_kubeconfig(kubeconfig).flattened(name="workload")
        data = Secret.of("x", data={KUBECONFIG_KEY: content}).dump()["data"]
        await client.patch(Secret, f"{NAME}-kubeconfig", namespace, {"data": data})
        command = ("-m", "capelin_machine_pool", f"--kubeconfig={kubeconfig}")
        flags = (f"--namespace={namespace}", "--metrics-address=0", "--health-address=0")
        with (tmp_path / "provider.log").open("ab") as log:
            provider = await asyncio.create_subprocess_exec(
                sys.executable, *command, *flags, f"--state-folder={tmp_path}", stderr=log
            )
        living = asyncio.create_task(world.live())

        async def count(phase: str) -> int:
            return list((await world.phases()).values()).count(phase)

        try:
            began = time.monotonic()
            await until(lambda: count("Free"), lambda found: found == COUNT, within=240)
            record_property("seconds: hosts checked", round(time.monotonic() - began, 1))
            began = time.monotonic()
            await world.scale(COUNT)
            await until(lambda: count("Ready"), lambda found: found == COUNT, within=400)
            record_property("seconds: hosts ready", round(time.monotonic() - began, 1))
            memory = peak_memory(provider.pid)
            record_property("MiB: the provider's memory", round(memory / 2**20, 1))
            assert {host.bootstraps for host in hosts.hosts.values()} == {1}
            assert memory < MOST_MEMORY
        finally:
            provider.kill()
            await provider.wait()
            living.cancel()
            with suppress(asyncio.CancelledError):
                await living
