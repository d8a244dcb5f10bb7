"""Facts of hosts, and the reasons why a host is unfit."""

import subprocess
from dataclasses import replace
from typing import Any

import pytest
from capelin_machine_pool.bootstrap import TransportError
from capelin_machine_pool.hosts.facts import HostFacts, facts_script, problems, read_facts

GOOD = HostFacts(
    cpus=4,
    memory_kib=8_000_000,
    disk_kib=100 * 2**20,
    free_kib=50 * 2**20,
    architecture="amd64",
    systemd=True,
    cgroup_v2=True,
    ip_forward=True,
    runtime="containerd 2.1.4",
    kubelet="v1.34.4",
    kubeadm="v1.34.4",
    clock=1000,
)


def test_good_host_has_no_problem() -> None:
    assert problems(GOOD, 1010.0, version="v1.34.4") == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"systemd": False}, "systemd does not run: kubeadm starts the kubelet through it"),
        ({"runtime": ""}, "no container runtime runs: install and start containerd or CRI-O"),
        ({"kubelet": ""}, "the program kubelet is missing: install it"),
        ({"kubeadm": "v1.35.0"}, "kubeadm v1.35.0 is newer than v1.34.4: install v1.34.4"),
        ({"swap": True}, "swap is on: run swapoff -a and remove it from /etc/fstab"),
        (
            {"missing_modules": ("overlay",)},
            "the kernel module overlay is missing: load it with modprobe",
        ),
        (
            {"ip_forward": False},
            "the kernel does not forward packets: set net.ipv4.ip_forward to 1",
        ),
        ({"cgroup_v2": False}, "the host does not use cgroup v2: boot it with a unified hierarchy"),
        (
            {"listening": (10250,)},
            "a process listens at port 10250: stop it, a node needs the port",
        ),
        ({"free_kib": 2**20}, "less than 10 GiB are free below /var/lib: free some"),
        ({"memory_kib": 1_000_000}, "the host has less than 1700 MB of memory"),
        (
            {"clock": 900},
            "its clock differs from the provider's by more than 30 s: run a time service",
        ),
    ],
)
def test_unfit_host_explains_its_problem(changes: dict[str, Any], problem: str) -> None:
    assert problems(replace(GOOD, **changes), 1000.0, version="v1.34.4") == [problem]


def test_facts_of_this_machine_are_read() -> None:
    output = subprocess.run(
        ["/bin/sh", "-s"], input=facts_script().encode(), capture_output=True, check=True
    )
    assert output.stderr == b""
    facts = read_facts(output.stdout)
    assert facts.cpus > 0
    assert facts.memory_kib > 0
    assert facts.disk_kib >= facts.free_kib > 0
    assert facts.clock > 1_700_000_000
    assert facts.architecture in {"amd64", "arm64"}
    assert facts.capacity["cpu"] == str(facts.cpus)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (b"cpus=many\nmemory=-1\nport=FFFF\nfacts-end=\n", HostFacts()),
        (b"cpus=2\nport=280A\nport=280A\nmodule=overlay\nfacts-end=\n", None),
    ],
)
def test_unreadable_values_are_ignored(output: bytes, expected: HostFacts | None) -> None:
    facts = read_facts(output)
    assert facts == (
        expected or HostFacts(cpus=2, listening=(10250,), missing_modules=("overlay",))
    )


def test_incomplete_answer_is_rejected() -> None:
    with pytest.raises(TransportError, match="not complete"):
        read_facts(b"cpus=4\n")
