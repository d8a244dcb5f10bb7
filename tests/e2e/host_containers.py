"""Hosts for the backend `Hosts`: containers of kind's node image with systemd and an SSH server."""

import asyncio
import json
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import asyncssh
from capelin.testing.waiting import until

from .machines import docker, remove_machine, start_machine

SSHD: Final = Path("/usr/sbin/sshd")
_CONFIG: Final = """\
HostKey /etc/ssh/host
AuthorizedKeysFile /etc/ssh/authorized
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
MaxSessions 20
"""
_CHANGING: Final = r"\.(log|pid|sock)$|^/etc/(resolv.conf|mtab|\.pwd\.lock|.*-)$|machine-id"
_STATE: Final = f"""
find /etc /root /opt /usr/local /var/lib/kubelet /var/lib/cni /var/lib/etcd /run/kubeadm \\
    /run/cluster-api -xdev \\( -type f -o -type l \\) 2>/dev/null | grep -vE '{_CHANGING}' | sort |
    while read -r path; do echo "$path $(sha256sum <"$path" 2>/dev/null)"; done
cut -d' ' -f2 /proc/mounts | grep -v -e '^/proc' -e containerd | sort
ls /sys/class/net
iptables-save | grep -e '^-A' -e '^:[A-Z]*-' | sort
getent passwd
ps -eo comm= | grep -E '^(kube|etcd|coredns|kindnet|pause|containerd-shim)' | sort
crictl pods --quiet 2>/dev/null
true
"""


@dataclass(frozen=True)
class HostContainer:
    """A machine that only its SSH server makes reachable."""

    name: str
    address: str
    host_key: str
    fresh: frozenset[str] = field(repr=False)
    """Its files, mounts, links, rules, users and processes before any bootstrap."""

    async def state(self) -> frozenset[str]:
        """The same at this moment."""
        return await state_of(self.name)

    async def clean_output(self) -> str:
        """The output of its last clean-up, and the processes that run now."""
        command = "cat /var/lib/capelin/clean/output; ps -eo pid,ppid,stat,lstart,args"
        return await docker("exec", self.name, "sh", "-c", command)


async def state_of(name: str) -> frozenset[str]:
    return frozenset((await docker("exec", name, "sh", "-c", _STATE)).splitlines())


def missing() -> str:
    """The missing requirement besides those of kind. Empty if these hosts can run."""
    return "" if SSHD.exists() else f"no {SSHD} (apt-get install openssh-server)"


@asynccontextmanager
async def network(name: str) -> AsyncGenerator[str]:
    """A network of its own for hosts. Yields the address of this machine in it."""
    await docker("network", "create", name)
    try:
        inspected = json.loads(await docker("network", "inspect", name))
        yield inspected[0]["IPAM"]["Config"][0]["Gateway"]
    finally:
        await docker("network", "rm", name)


@asynccontextmanager
async def host_containers(
    network_name: str, count: int, user: asyncssh.SSHKey
) -> AsyncGenerator[list[HostContainer]]:
    """Hosts in a network. The user's key may log in as root."""
    names = [f"{network_name}-{number}" for number in range(count)]
    try:
        yield [await _started(name, network_name, user) for name in names]
    finally:
        for name in names:
            await remove_machine(name)


async def _started(name: str, network_name: str, user: asyncssh.SSHKey) -> HostContainer:
    await start_machine(name, network=network_name)
    host = asyncssh.generate_private_key("ssh-ed25519")  # pyright: ignore[reportUnknownMemberType]
    files = {
        "/etc/ssh/host": host.export_private_key(),
        "/etc/ssh/authorized": user.export_public_key(),
        "/etc/ssh/config": _CONFIG.encode(),
    }
    await _install_sshd(name)
    for path, content in files.items():
        write = f"umask 077; mkdir -p /etc/ssh; cat >{path}"
        await docker("exec", "--interactive", name, "sh", "-c", write, content=content)
    await docker("exec", name, "sh", "-c", "useradd --system sshd; mkdir -p /run/sshd; true")
    serve = ("systemd-run", "--unit=sshd", str(SSHD), "-D", "-f", "/etc/ssh/config")
    await docker("exec", name, *serve)
    await until(lambda: _listens(name), within=30)
    inspected = json.loads(await docker("inspect", name))
    address = inspected[0]["NetworkSettings"]["Networks"][network_name]["IPAddress"]
    key = " ".join(host.export_public_key().decode().split()[:2])
    return HostContainer(name, address, key, await state_of(name))


async def _install_sshd(name: str) -> None:
    """Copy this machine's server and its libraries, as far as the host does not have them."""
    linked = await asyncio.to_thread(
        subprocess.run, ["ldd", str(SSHD)], capture_output=True, text=True, check=True
    )
    libraries = [word for word in linked.stdout.split() if word.startswith("/")]
    archive = await asyncio.to_thread(
        subprocess.run,
        ["tar", "--create", "--dereference", "--absolute-names", str(SSHD), *libraries],
        capture_output=True,
        check=True,
    )
    extract = ("tar", "--extract", "--absolute-names", "--skip-old-files")
    await docker("exec", "--interactive", name, *extract, content=archive.stdout)


async def _listens(name: str) -> bool:
    ports = await docker("exec", name, "cat", "/proc/net/tcp")
    return ":0016 00000000:0000 0A" in ports
