"""A machine for tests: namespaces with this machine's programs and a throw-away root folder.

The bootstrap and the clean-up run there as root. They cannot change this machine.
"""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from capelin.testing.waiting import until
from capelin_machine_pool.bootstrap import CommandResult, Transport, TransportError

NEEDS_SANDBOX: Final = (pytest.mark.integration, pytest.mark.representative)
"""The marks of tests that need root, namespaces, iptables and sshd: the default sessions do not."""
_PATH: Final = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
"""A login that is not root's has no folders for administrators."""
_ENVIRONMENT: Final = {**os.environ, "PATH": _PATH}
_SETUP: Final = """\
set -e
mount --make-rprivate /
mount -t tmpfs -o size=96m tmpfs "$1"
cd "$1"
mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
mount --bind "$1" root/mnt
mount --bind / root/media
cd root
mount -t proc proc proc
mount --rbind /sys sys 2>/dev/null
mount -t sysfs sysfs sys
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mkdir -p run/old
pivot_root . run/old
umount -l /run/old
rmdir /run/old
hostname "$2"
# A file in place of the kernel's, so that the machine can reboot.
cat proc/sys/kernel/random/boot_id >run/boot_id
mount --bind run/boot_id proc/sys/kernel/random/boot_id
ip link set lo up
exec 2>/dev/null
echo ready
# Its first process has to wait for orphans.
while :; do sleep 1 || true; done
"""
_KUBEADM: Final = """\
#!/bin/sh
# Changes the machine as kubeadm, a kubelet, kube-proxy and a pod network do.
case $1 in
join)
    echo "join $* $(head -n 1 /var/lib/capelin/marker)" >>/var/log/joins
    [ ! -e /etc/fail-join ] || { cat /run/kubeadm/join.yaml; exit 3; }
    [ ! -e /etc/slow-join ] || sleep "$(cat /etc/slow-join)"
    mkdir -p /etc/kubernetes/pki /etc/kubernetes/manifests /var/lib/kubelet/pods/volume \\
        /etc/cni/net.d /var/lib/cni
    echo key >/etc/kubernetes/kubelet.conf
    echo config >/var/lib/kubelet/config.yaml
    echo cni >/etc/cni/net.d/10-test.conflist
    mount -t tmpfs tmpfs /var/lib/kubelet/pods/volume
    echo data >/var/lib/kubelet/pods/volume/data
    ip link add cni0 type bridge
    iptables -N KUBE-SERVICES
    iptables -A INPUT -j KUBE-SERVICES
    iptables -t nat -N KUBE-NAT
    cat >/usr/local/bin/kubelet <<'END'
#!/bin/sh
[ "$1" != --version ] || { echo Kubernetes v1.33.13; exit; }
while :; do sleep 1; done
END
    chmod 755 /usr/local/bin/kubelet
    setsid kubelet 3600 </dev/null >/dev/null 2>&1 &
    ;;
upgrade)
    echo "$* $(kubelet --version) $(head -n 1 /var/lib/capelin/marker)" >>/var/log/upgrades
    [ ! -e /etc/fail-upgrade ] || { echo 'no such host'; exit 4; }
    [ ! -e /etc/slow-upgrade ] || sleep "$(cat /etc/slow-upgrade)"
    ;;
reset)
    [ ! -e /etc/fail-reset ] || exit 1
    pkill -x kubelet
    rm -rf /etc/kubernetes/kubelet.conf /usr/local/bin/kubelet
    ;;
esac
"""


class Sandbox(Transport):
    """The machine, and the shortest connection to it."""

    def __init__(self, pid: int) -> None:
        self._namespaces = ("nsenter", f"--target={pid}", *("-m", "-p", "-n", "-u"), "-r", "-w")

    def command(self, *words: str, network: bool = True) -> tuple[str, ...]:
        """The command that runs another one on the machine, or in this machine's network."""
        namespaces = (it for it in self._namespaces if network or it != "-n")
        return (*namespaces, *words)

    async def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        timeout_seconds: float = 30,
        max_output: int = 1 << 20,
    ) -> CommandResult:
        process = await asyncio.create_subprocess_exec(
            *self.command("/bin/sh", "-c", command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
        )
        try:
            async with asyncio.timeout(timeout_seconds):
                output, errors = await process.communicate(stdin)
        except TimeoutError as error:
            process.kill()
            raise TransportError("it takes too long") from error
        return CommandResult(process.returncode or 0, output[:max_output], errors)

    async def succeed(self, command: str) -> str:
        """The output of a command that must not fail."""
        result = await self.run(command)
        assert result.exit_code == 0, (command, result)
        return result.output.decode()

    async def restart(self) -> None:
        """End all processes, empty /run and unmount volumes, as a reboot does."""
        await self.run(
            "for process in $(ps -eo pid=); do"
            '  [ "$process" = 1 ] || [ "$process" = $$ ] || kill -KILL "$process";'
            "done 2>/dev/null;"
            " grep -o ' /var/lib/kubelet/[^ ]*' /proc/mounts | xargs -r umount;"
            " find /run -mindepth 1 -maxdepth 1 -not -name boot_id -not -name sshd -not -name mount"
            " -exec rm -rf {} +;"
            " cat /proc/sys/kernel/random/uuid >/run/boot_id"
        )

    async def fingerprint(self) -> str:
        """All that a clean-up restores: files, users, mounts, links, rules and processes."""
        return await self.succeed(
            "cd /mnt/upper; find . -type f -not -path './var/lib/capelin/*' "
            " -not -path './var/log/*' -not -name '*-' -not -name .pwd.lock"
            " -not -path './var/cache/*' | sort |"
            ' while read -r path; do cmp -s "$path" "/media/$path" || sha256sum "$path"; done;'
            " cut -d' ' -f2 /proc/mounts; ls /sys/class/net; find /run -mindepth 1;"
            " iptables-save | grep -e '^-A' -e '^:[A-Z]*-';"
            " ps -eo comm= | grep -v -x -e sh -e ps -e sleep -e grep -e sshd; true"
        )


def _check_machine() -> None:
    """Fail on a machine that cannot run these tests, with the remedy."""
    programs = ("unshare", "nsenter", "iptables", "ip", "useradd", "flock", "sshd")
    missing = [name for name in programs if shutil.which(name, path=_PATH) is None]
    if missing:
        packages = "apt-get install util-linux iptables iproute2 passwd openssh-server"
        pytest.fail(f"missing programs: {', '.join(missing)} ({packages})", pytrace=False)
    if os.geteuid() != 0:
        pytest.fail("only root can start machines in namespaces", pytrace=False)


@asynccontextmanager
async def sandbox(folder: Path, name: str = "host-1") -> AsyncGenerator[Sandbox]:
    """A machine with a fake kubeadm."""
    _check_machine()
    root = folder / name
    root.mkdir()
    process = await asyncio.create_subprocess_exec(
        *("unshare", "-m", "-p", "-n", "-u", "--fork", "--kill-child"),
        *("sh", "-c", _SETUP, "sandbox", str(root), name),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_ENVIRONMENT,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(30):
            if await process.stdout.readline() != b"ready\n":
                pytest.fail(f"no sandbox: {(await process.stderr.read()).decode()}")
        machine = Sandbox(_child(process.pid))
        await machine.write_file("/usr/local/bin/kubeadm", _KUBEADM.encode(), mode=0o755)
        yield machine
    finally:
        process.kill()
        await process.wait()


def _child(pid: int) -> int:
    """The first process in the namespaces."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


async def eventually(machine: Sandbox, command: str) -> None:
    """Wait until a command succeeds on the machine."""

    async def succeeds() -> bool:
        return (await machine.run(command)).exit_code == 0

    await until(succeeds, within=30)
