"""Facts about a machine, and the reasons why it cannot become a node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from capelin_machine_pool.bootstrap import Transport, TransportError

_CLOCK_SECONDS: Final = 30
"""Difference of clocks that certificates and tokens do not bear for sure."""
_LEAST_DISK: Final = 10 * 2**20
"""Free KiB below /var/lib that images and logs need."""
_LEAST_MEMORY: Final = 1_700_000
"""KiB that kubeadm's preflight checks require."""
_KNOWN_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}
_PORTS: Final = {"280A": 10250, "2810": 10256, "2808": 10248, "2809": 10249}
"""The ports of a kubelet and of kube-proxy, in the kernel's notation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Observed properties of a machine."""

    cpus: int = 0
    memory_kib: int = 0
    disk_kib: int = 0
    free_kib: int = 0
    """Size and free space of the file system of /var/lib."""
    architecture: str = ""
    kernel: str = ""
    operating_system: str = ""
    swap: bool = False
    systemd: bool = False
    cgroup_v2: bool = False
    ip_forward: bool = False
    missing_modules: tuple[str, ...] = ()
    listening: tuple[int, ...] = ()
    """Ports of Kubernetes at which a process listens."""
    runtime: str = ""
    """The container runtime that runs, such as `containerd 2.1.4`."""
    kubelet: str = ""
    kubeadm: str = ""
    """Versions of the installed programs."""
    clock: int = 0
    """Seconds since 1970 by its clock."""

    @property
    def capacity(self) -> dict[str, str]:
        """Its resources, by Kubernetes' names."""
        sizes = {"memory": self.memory_kib, "ephemeral-storage": self.disk_kib}
        capacity = {"cpu": str(self.cpus)} if self.cpus else {}
        return capacity | {name: f"{size}Ki" for name, size in sizes.items() if size}


def facts_script() -> str:
    """Print the facts of a machine as lines of key=value."""
    return _source()


async def observe_facts(transport: Transport) -> HostFacts:
    """The facts of a machine.

    Raises:
        TransportError: It does not answer, or not as expected.
    """
    result = await transport.run_script(facts_script())
    return read_facts(result.output)


def read_facts(output: bytes) -> HostFacts:
    """Read the output of the script. Unreadable values are those of an unknown machine.

    Raises:
        TransportError: It is not complete.
    """
    values: dict[str, list[str]] = {}
    for line in output.decode(errors="replace").splitlines():
        key, _, value = line.partition("=")
        values.setdefault(key, []).append(value.strip()[:200])
    if "facts-end" not in values:
        raise TransportError("the machine's answer is not complete", "command")
    machine = _text(values, "arch")
    return HostFacts(
        cpus=_number(values, "cpus"),
        memory_kib=_number(values, "memory"),
        disk_kib=_number(values, "disk"),
        free_kib=_number(values, "free"),
        architecture=_KNOWN_ARCHITECTURES.get(machine, machine)[:63],
        kernel=_text(values, "kernel"),
        operating_system=_text(values, "os"),
        swap=_text(values, "swap") == "yes",
        systemd=_text(values, "systemd") == "yes",
        cgroup_v2=_text(values, "cgroup2") == "yes",
        ip_forward=_text(values, "forward") == "1",
        missing_modules=tuple(values.get("module", ())),
        listening=tuple(
            sorted({_PORTS[port] for port in values.get("port", ()) if port in _PORTS})
        ),
        runtime=_text(values, "runtime"),
        kubelet=_text(values, "kubelet"),
        kubeadm=_text(values, "kubeadm"),
        clock=_number(values, "clock"),
    )


def problems(facts: HostFacts, now: float, *, version: str | None = None) -> Sequence[str]:
    """The reasons why a machine may not become a node, each with the next step.

    The same situation gives the same texts. Bootstrap data may still solve some of them, for
    example by commands that install packages.

    Args:
        facts: The machine's facts.
        now: The seconds since 1970.
        version: The Kubernetes version that it should get.
    """
    missing = {
        "systemd does not run: kubeadm starts the kubelet through it": not facts.systemd,
        "no container runtime runs: install and start containerd or CRI-O": not facts.runtime,
        "the program kubelet is missing: install it": not facts.kubelet,
        "the program kubeadm is missing: install it": not facts.kubeadm,
        **_newer(facts, version),
        "swap is on: run swapoff -a and remove it from /etc/fstab": facts.swap,
        **{
            f"the kernel module {module} is missing: load it with modprobe": True
            for module in facts.missing_modules
        },
        "the kernel does not forward packets: set net.ipv4.ip_forward to 1": not facts.ip_forward,
        "the host does not use cgroup v2: boot it with a unified hierarchy": not facts.cgroup_v2,
        **{
            f"a process listens at port {port}: stop it, a node needs the port": True
            for port in facts.listening
        },
        "less than 10 GiB are free below /var/lib: free some": facts.free_kib < _LEAST_DISK,
        "the host has less than 1700 MB of memory": facts.memory_kib < _LEAST_MEMORY,
        "its clock differs from the provider's by more than 30 s: run a time service": abs(
            now - facts.clock
        )
        > _CLOCK_SECONDS,
    }
    return [text for text, applies in missing.items() if applies]


def _newer(facts: HostFacts, version: str | None) -> dict[str, bool]:
    """Installed programs that are newer than the Kubernetes version of a machine."""
    installed = {"kubelet": facts.kubelet, "kubeadm": facts.kubeadm}
    return {
        f"{program} {found} is newer than {version}: install {version}": True
        for program, found in installed.items()
        if version is not None and found and _minor(found) > _minor(version)
    }


def _minor(version: str) -> tuple[int, int]:
    try:
        major, minor, *_ = version.removeprefix("v").split(".")
        return int(major), int(minor)
    except ValueError:
        return 0, 0


def _text(values: Mapping[str, list[str]], key: str) -> str:
    return values.get(key, [""])[0]


def _number(values: Mapping[str, list[str]], key: str) -> int:
    text = _text(values, key)
    return int(text) if text.isdecimal() and len(text) < 18 else 0


@cache
def _source() -> str:
    return (files("capelin_machine_pool.hosts") / "facts.sh").read_text()
