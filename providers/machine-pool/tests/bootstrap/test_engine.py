"""Bootstraps and clean-ups on machines in namespaces."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from capelin.testing.waiting import until
from capelin_machine_pool.bootstrap import (
    BootstrapStep,
    CleanStep,
    CloudConfig,
    CommandResult,
    File,
    MachineBootstrap,
    Transport,
    TransportError,
    User,
    bootstrap_message,
    clean_message,
    observe,
)
from capelin_machine_pool.bootstrap.plan import next_clean_step

from tests.support.sandbox import NEEDS_SANDBOX, Sandbox, eventually, sandbox

pytestmark = [*NEEDS_SANDBOX]
SENTINEL = "/run/cluster-api/bootstrap-success.complete"
TOKEN = "abcdef.0123456789abcdef"
CONFIG = CloudConfig(
    boot_commands=("echo booted >>/etc/booted",),
    files=(
        File(path="/run/kubeadm/join.yaml", content=f"token: {TOKEN}\n".encode(), mode=0o640),
        File(path="/run/cluster-api/placeholder", content=b"A placeholder"),
        File(path="/etc/new folder/it's", content=bytes(range(256)), owner="daemon:daemon"),
        File(path="/etc/motd", content=b"a node\n"),
        File(path="/etc/hosts", content=b"10.0.0.1 endpoint\n", append=True),
        File(path="/etc/hosts", content=b"10.0.0.2 registry\n", append=True),
    ),
    users=(
        User(
            name="shoal",
            groups=("school",),
            password_hash="$6$salt$hash",
            sudo="ALL=(ALL) NOPASSWD:ALL",
            ssh_authorized_keys=("ssh-ed25519 AAAA shoal",),
        ),
    ),
    commands=(
        "rm -f /etc/booted",
        f"kubeadm join --config /run/kubeadm/join.yaml && echo success > {SENTINEL}",
    ),
)
MACHINE = MachineBootstrap(uid="11111111-aaaa", name="default/shoal-1")
OTHER = MachineBootstrap(uid="22222222-bbbb", name="default/shoal-2")


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncGenerator[Sandbox]:
    async with sandbox(tmp_path) as started:
        yield started


async def bootstrap(
    transport: Transport, config: CloudConfig = CONFIG, owner: MachineBootstrap = MACHINE
) -> BootstrapStep:
    """Take steps until the bootstrap ends."""
    step = BootstrapStep.WAIT

    async def ends() -> bool:
        nonlocal step
        step = await owner.bootstrap(transport, config, await observe(transport))
        return step not in {BootstrapStep.MARK, BootstrapStep.START, BootstrapStep.WAIT}

    await until(ends, within=60)
    return step


async def clean(
    transport: Transport, commands: tuple[str, ...] = (), owner: MachineBootstrap = MACHINE
) -> CleanStep:
    """Take steps until the clean-up ends."""
    step = CleanStep.WAIT

    async def ends() -> bool:
        nonlocal step
        step = await owner.clean(transport, await observe(transport), commands)
        return step not in {CleanStep.START, CleanStep.WAIT}

    await until(ends, within=60)
    return step


async def joins(machine: Sandbox) -> int:
    return int(await machine.succeed("cat /var/log/joins 2>/dev/null | wc -l"))


async def test_bootstrap_data_are_executed(machine: Sandbox) -> None:
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    assert await joins(machine) == 1
    shown = "stat -c '%a %U:%G'"
    assert await machine.succeed(f"{shown} /run/kubeadm/join.yaml") == "640 root:root\n"
    assert await machine.succeed(f'{shown} "/etc/new folder/it\'s"') == "644 daemon:daemon\n"
    assert await machine.read_file("/etc/new folder/it's") == bytes(range(256))
    hosts = await machine.read_file("/etc/hosts")
    assert hosts.endswith(b"10.0.0.1 endpoint\n10.0.0.2 registry\n")
    assert len(hosts) > 40
    assert "school" in await machine.succeed("id shoal")
    assert await machine.succeed("stat -c '%a %U' ~shoal/.ssh/authorized_keys") == "600 shoal\n"
    assert await machine.succeed("stat -c %a /etc/sudoers.d/90-capelin-shoal") == "440\n"
    # The boot command ran first.
    assert await machine.succeed("ls /etc/booted 2>/dev/null | wc -l") == "0\n"


async def test_cleaned_machine_equals_a_fresh_one_and_joins_again(machine: Sandbox) -> None:
    await machine.succeed("iptables -A INPUT -p tcp --dport 22 -j ACCEPT; iptables -P FORWARD DROP")
    fresh = await machine.fingerprint()
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    assert await machine.fingerprint() != fresh
    assert await clean(machine) is CleanStep.CLEAN
    assert await machine.fingerprint() == fresh
    assert "FORWARD DROP" in await machine.succeed("iptables-save")
    assert await bootstrap(machine, owner=OTHER) is BootstrapStep.SUCCEEDED
    assert await joins(machine) == 2


async def test_data_are_executed_once_by_two_controllers(machine: Sandbox) -> None:
    await machine.succeed("echo 1 >/etc/slow-join")
    # The bootstrap provider has renewed the token meanwhile.
    newer = replace(CONFIG, files=CONFIG.files[1:])
    steps = await asyncio.gather(
        *(bootstrap(Stubborn(machine), config) for config in (CONFIG, newer, CONFIG, newer))
    )
    assert set(steps) == {BootstrapStep.SUCCEEDED}
    assert await joins(machine) == 1


async def test_another_machines_host_is_rejected(machine: Sandbox) -> None:
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    assert await bootstrap(machine, owner=OTHER) is BootstrapStep.DIRTY
    assert await clean(machine, owner=OTHER) is CleanStep.OTHER
    assert await joins(machine) == 1
    message = bootstrap_message(BootstrapStep.DIRTY, await observe(machine), CONFIG)
    assert message == "the host belongs to another machine, or is being cleaned"


async def test_node_of_another_cluster_is_rejected(machine: Sandbox) -> None:
    await machine.succeed("mkdir -p /etc/kubernetes; touch /etc/kubernetes/kubelet.conf")
    assert await bootstrap(machine) is BootstrapStep.DIRTY
    observed = await observe(machine)
    assert observed.marker is None
    message = bootstrap_message(BootstrapStep.DIRTY, observed, CONFIG)
    assert message == "the host is a node already: it has /etc/kubernetes/kubelet.conf"


async def test_failed_bootstrap_shows_its_output_without_secrets(machine: Sandbox) -> None:
    await machine.succeed("touch /etc/fail-join")
    assert await bootstrap(machine) is BootstrapStep.FAILED
    message = bootstrap_message(BootstrapStep.FAILED, await observe(machine), CONFIG)
    assert message == "the bootstrap failed with exit code 3: token: (hidden)"
    left = await machine.run(f"grep -rl --exclude=output {TOKEN} /var/lib/capelin")
    assert left.output == b""
    # It is not tried again.
    assert await bootstrap(machine) is BootstrapStep.FAILED
    assert await joins(machine) == 1


async def test_full_disk_leaves_nothing_that_a_clean_up_overlooks(machine: Sandbox) -> None:
    fresh = await machine.fingerprint()
    # Another file system has space, so files could be created without a record of them.
    full = replace(CONFIG, boot_commands=("dd if=/dev/zero of=/mnt/fill bs=4k",))
    assert await bootstrap(machine, full) in {BootstrapStep.FAILED, BootstrapStep.INTERRUPTED}
    assert await joins(machine) == 0
    await machine.succeed("rm /mnt/fill")
    assert await clean(machine) is CleanStep.CLEAN
    assert await machine.fingerprint() == fresh


async def test_clean_up_is_not_verified_on_a_full_disk(machine: Sandbox) -> None:
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    filling = "dd if=/dev/zero of=/mnt/fill bs=4k || true"
    await MACHINE.clean(machine, await observe(machine), (filling,))
    await eventually(machine, "test -e /var/lib/capelin/clean/exit")
    observed = await observe(machine)
    assert "the disk is full" in clean_message(observed)
    assert observed.marker == MACHINE.uid


async def test_killed_bootstrap_is_not_repeated(machine: Sandbox) -> None:
    await machine.succeed("echo 60 >/etc/slow-join")
    await start(machine)
    await machine.succeed("pkill -KILL -f '[s]cript-'; pkill -KILL kubeadm")
    assert await bootstrap(machine) is BootstrapStep.INTERRUPTED
    assert await joins(machine) == 1
    assert await clean(machine) is CleanStep.CLEAN


async def test_clean_up_ends_a_running_bootstrap(machine: Sandbox) -> None:
    fresh = await machine.fingerprint()
    await machine.succeed("echo 60 >/etc/slow-join")
    await start(machine)
    assert await clean(machine) is CleanStep.CLEAN
    await machine.succeed("rm /etc/slow-join")
    assert await machine.fingerprint() == fresh


async def test_mounted_volume_is_not_deleted(machine: Sandbox) -> None:
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    busy = "cd /var/lib/kubelet/pods/volume; setsid sleep 600 </dev/null >/dev/null 2>&1 &"
    await machine.succeed(busy)
    assert await clean(machine) is CleanStep.FAILED
    message = clean_message(await observe(machine))
    assert message == "still mounted: /var/lib/kubelet/pods/volume "
    assert await machine.read_file("/var/lib/kubelet/pods/volume/data") == b"data\n"
    await machine.succeed("pkill -f '[s]leep 600'")
    await MACHINE.clean(machine, await observe(machine), retry=True)
    assert await clean(machine) is CleanStep.CLEAN


async def test_verification_finds_remains(machine: Sandbox) -> None:
    await machine.succeed("touch /etc/fail-reset")
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    assert await clean(machine, ("echo cleaned >/etc/cleaned", "exit 7")) is CleanStep.FAILED
    message = clean_message(await observe(machine))
    assert message == "the commands of cleanCommands failed with exit code 7; kubelet still runs"
    assert await machine.read_file("/etc/cleaned") == b"cleaned\n"
    # It stays marked until it is clean.
    assert await bootstrap(machine, owner=OTHER) is BootstrapStep.DIRTY


async def test_the_last_result_does_not_count_for_another_clean_up(machine: Sandbox) -> None:
    await machine.succeed("touch /etc/fail-reset")
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    assert await clean(machine) is CleanStep.FAILED
    # Another process holds the lock, so the next clean-up ends before it records its start.
    lock = "/var/lib/capelin/clean.lock"
    await machine.succeed(f"setsid flock {lock} sleep 600 </dev/null >/dev/null 2>&1 &")
    await eventually(machine, f"! flock -n {lock} true")
    assert await MACHINE.clean(machine, await observe(machine), retry=True) is CleanStep.START
    assert next_clean_step(MACHINE.uid, await observe(machine)) is CleanStep.START


@pytest.mark.parametrize("seed", range(6))
async def test_cut_connections_and_killed_controllers_bootstrap_once(
    machine: Sandbox, seed: int
) -> None:
    faulty = Cut(machine, Random(seed))  # noqa: S311
    fresh = await machine.fingerprint()
    steps = await asyncio.gather(*(bootstrap(Stubborn(faulty)) for _ in range(2)))
    assert set(steps) == {BootstrapStep.SUCCEEDED}
    assert await joins(machine) == 1
    cleaned = await asyncio.gather(*(clean(Stubborn(faulty)) for _ in range(2)))
    assert set(cleaned) == {CleanStep.CLEAN}
    await eventually(machine, "! pgrep -f '[s]cript-'")
    assert await machine.fingerprint() == fresh


async def start(machine: Sandbox) -> None:
    """Begin a bootstrap and wait until kubeadm runs."""
    for _ in range(2):
        await MACHINE.bootstrap(machine, CONFIG, await observe(machine))
    await eventually(machine, "test -e /var/log/joins")


class Cut(Transport):
    """A connection that is cut: before the command, in its input, or after it."""

    def __init__(self, inner: Transport, random: Random) -> None:
        self._inner = inner
        self._random = random

    async def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        timeout_seconds: float = 30,
        max_output: int = 1 << 20,
    ) -> CommandResult:
        fault = self._random.choice(("before", "input", "after", "none", "none", "none"))
        if fault == "before":
            raise TransportError("cut")
        if fault == "input":
            stdin = stdin[: self._random.randrange(len(stdin) + 1)]
        result = await self._inner.run(
            command, stdin=stdin, timeout_seconds=timeout_seconds, max_output=max_output
        )
        if fault != "none":
            raise TransportError("cut")
        return result


class Stubborn(Transport):
    """Repeats each command until it has a result, as reconciles do."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        timeout_seconds: float = 30,
        max_output: int = 1 << 20,
    ) -> CommandResult:
        while True:
            try:
                result = await self._inner.run(
                    command, stdin=stdin, timeout_seconds=timeout_seconds, max_output=max_output
                )
            except TransportError:
                continue
            if result.exit_code != 75:
                return result
            await asyncio.sleep(0.05)
