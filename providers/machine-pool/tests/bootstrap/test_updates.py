"""Installations and updates in place on machines in namespaces."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from capelin.testing.waiting import until
from capelin_machine_pool.bootstrap import (
    Archives,
    BootstrapStep,
    CleanStep,
    File,
    Installation,
    Transport,
    UpdateStep,
    observe,
    update_message,
)

from tests.support.archives import add_archive, fake_programs
from tests.support.sandbox import NEEDS_SANDBOX, Sandbox, eventually, sandbox

from .test_engine import CONFIG, MACHINE, OTHER, Cut, Stubborn, bootstrap, clean

pytestmark = [*NEEDS_SANDBOX]
OLD, NEW = "v1.33.13", "v1.34.4"


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncGenerator[Sandbox]:
    async with sandbox(tmp_path) as started:
        yield started


async def installation(folder: Path, version: str = NEW, **files: bytes) -> Installation:
    """An installation from an archive with a kubelet, and with other files."""
    add_archive(folder / "archives", version, {**fake_programs(version), **files})
    archive = await Archives(folder / "archives").find(version, "amd64")
    return Installation(version=version, archive=archive)


async def update(transport: Transport, wanted: Installation) -> UpdateStep:
    """Take steps until the update ends."""
    step = UpdateStep.WAIT

    async def ends() -> bool:
        nonlocal step
        step = await MACHINE.update(transport, wanted, await observe(transport))
        return step not in {UpdateStep.START, UpdateStep.WAIT}

    await until(ends, within=60)
    return step


async def upgrades(machine: Sandbox) -> list[str]:
    return (await machine.succeed("cat /var/log/upgrades 2>/dev/null || true")).splitlines()


FOLDERS = "stat -c '%a %U %n' / /usr /usr/local /usr/local/bin /usr/local/sbin /opt"


async def test_update_installs_a_version_once(machine: Sandbox, tmp_path: Path) -> None:
    fresh = await machine.fingerprint()
    folders = await machine.succeed(FOLDERS)
    kubeadm = await machine.read_file("/usr/local/bin/kubeadm")
    files = {"usr/local/bin/kubeadm": kubeadm + b"# newer\n", "opt/new/file": b"new"}
    wanted = await installation(tmp_path, NEW, **files)
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    steps = await asyncio.gather(*(update(Stubborn(machine), wanted) for _ in range(3)))
    assert set(steps) == {UpdateStep.SUCCEEDED}
    assert await upgrades(machine) == [f"upgrade node Kubernetes {NEW} {MACHINE.uid}"]
    assert (await machine.read_file("/usr/local/bin/kubeadm")).endswith(b"# newer\n")
    # The disk of a host that is updated again and again does not fill up.
    assert await machine.succeed("ls /var/lib/capelin/archives") == "lock\n"
    assert await machine.succeed("stat -c '%a %U' /usr/local/sbin/kubelet") == "755 root\n"
    # Folders of the archive are private, and belong to another user.
    assert await machine.succeed(FOLDERS) == folders
    assert await machine.succeed("stat -c '%a %U' /opt/new") == "755 root\n"
    # A clean-up restores the programs from before the first bootstrap.
    assert await clean(machine) is CleanStep.CLEAN
    assert await machine.read_file("/usr/local/bin/kubeadm") == kubeadm
    assert await machine.fingerprint() == fresh
    assert await machine.succeed(FOLDERS) == folders
    assert (await machine.run("test -e /opt/new")).exit_code == 1
    assert await bootstrap(machine, owner=OTHER) is BootstrapStep.SUCCEEDED


async def test_bootstrap_installs_an_archive_and_commands(machine: Sandbox, tmp_path: Path) -> None:
    fresh = await machine.fingerprint()
    commands = ('echo "$KUBERNETES_VERSION" >/root/version',)
    wanted = replace(await installation(tmp_path, OLD), commands=commands)

    async def ends() -> bool:
        step = await MACHINE.bootstrap(machine, CONFIG, await observe(machine), wanted)
        return step is BootstrapStep.SUCCEEDED

    await until(ends, within=60)
    assert await machine.read_file("/root/version") == f"{OLD}\n".encode()
    assert await machine.succeed("kubelet --version") == f"Kubernetes {OLD}\n"
    assert await clean(machine, ("rm /root/version",)) is CleanStep.CLEAN
    assert await machine.fingerprint() == fresh


async def test_failed_update_shows_its_output_and_is_not_repeated(
    machine: Sandbox, tmp_path: Path
) -> None:
    await machine.succeed("touch /etc/fail-upgrade")
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    wanted = await installation(tmp_path)
    assert await update(machine, wanted) is UpdateStep.FAILED
    message = update_message(UpdateStep.FAILED, await observe(machine), NEW)
    assert message == (
        f"the update to {NEW} failed with exit code 1: no such host\n"
        "capelin: kubeadm upgrade node failed with exit code 4"
    )
    assert await update(machine, wanted) is UpdateStep.FAILED
    assert len(await upgrades(machine)) == 1


async def test_update_ignores_the_preflight_errors_that_the_join_ignored(
    machine: Sandbox, tmp_path: Path
) -> None:
    join = b"---\nnodeRegistration:\n  ignorePreflightErrors: [SystemVerification, Swap]\n"
    file = File(path="/run/kubeadm/kubeadm-join-config.yaml", content=join)
    config = replace(CONFIG, files=(*CONFIG.files, file))
    assert await bootstrap(machine, config) is BootstrapStep.SUCCEEDED
    assert await update(machine, await installation(tmp_path)) is UpdateStep.SUCCEEDED
    flag = "--ignore-preflight-errors=SystemVerification,Swap"
    assert await upgrades(machine) == [f"upgrade node {flag} Kubernetes {NEW} {MACHINE.uid}"]


async def test_killed_update_is_not_repeated(machine: Sandbox, tmp_path: Path) -> None:
    await machine.succeed("echo 60 >/etc/slow-upgrade")
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    wanted = await installation(tmp_path)
    await MACHINE.update(machine, wanted, await observe(machine))
    await eventually(machine, "test -e /var/log/upgrades")
    await machine.succeed("pkill -KILL -f '[s]cript-'; pkill -KILL kubeadm")
    assert await update(machine, wanted) is UpdateStep.INTERRUPTED
    # Another version makes way for it.
    await machine.succeed("rm /etc/slow-upgrade")
    assert await update(machine, await installation(tmp_path, "v1.34.5")) is UpdateStep.SUCCEEDED


async def test_update_from_a_pre_release(machine: Sandbox, tmp_path: Path) -> None:
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    for version in (f"{NEW}-rc.1", NEW):
        wanted = await installation(tmp_path, version)
        assert await update(machine, wanted) is UpdateStep.SUCCEEDED
    # The update back is older.
    older = await installation(tmp_path, f"{NEW}-rc.2")
    await MACHINE.update(machine, older, await observe(machine))
    assert await machine.succeed("kubelet --version") == f"Kubernetes {NEW}\n"


async def test_clean_up_ends_a_running_update(machine: Sandbox, tmp_path: Path) -> None:
    fresh = await machine.fingerprint()
    await machine.succeed("echo 60 >/etc/slow-upgrade")
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    await MACHINE.update(machine, await installation(tmp_path), await observe(machine))
    await eventually(machine, "test -e /var/log/upgrades")
    assert await clean(machine) is CleanStep.CLEAN
    await machine.succeed("rm /etc/slow-upgrade")
    assert await machine.fingerprint() == fresh


async def test_older_version_is_not_installed(machine: Sandbox, tmp_path: Path) -> None:
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    assert await update(machine, await installation(tmp_path)) is UpdateStep.SUCCEEDED
    older = await installation(tmp_path, OLD)
    for _ in range(2):
        # A controller with an old claim. The host's script refuses.
        assert await MACHINE.update(machine, older, await observe(machine)) is UpdateStep.START
    await eventually(machine, "! pgrep -f '[s]cript-'")
    assert len(await upgrades(machine)) == 1


async def test_missing_program_fails_the_update(machine: Sandbox) -> None:
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    assert await update(machine, Installation(version=NEW, commands=("true",))) is UpdateStep.FAILED
    message = update_message(UpdateStep.FAILED, await observe(machine), NEW)
    assert message.endswith(f"capelin: the installed kubelet is {OLD}, not {NEW}")


async def test_failed_command_ends_the_installation(machine: Sandbox) -> None:
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    wanted = Installation(version=NEW, commands=("exit 5", "touch /root/second"))
    assert await update(machine, wanted) is UpdateStep.FAILED
    message = update_message(UpdateStep.FAILED, await observe(machine), NEW)
    assert message.endswith("capelin: the commands of installCommands failed with exit code 5")
    assert (await machine.run("test -e /root/second")).exit_code == 1


@pytest.mark.parametrize("seed", range(4))
async def test_cut_connections_update_once(machine: Sandbox, tmp_path: Path, seed: int) -> None:
    faulty = Cut(machine, Random(seed))  # noqa: S311
    assert await bootstrap(Stubborn(faulty)) is BootstrapStep.SUCCEEDED
    large = Random(seed).randbytes(5 << 20)  # noqa: S311
    wanted = await installation(tmp_path, NEW, **{"opt/large": large})
    steps = await asyncio.gather(*(update(Stubborn(faulty), wanted) for _ in range(2)))
    assert set(steps) == {UpdateStep.SUCCEEDED}
    assert len(await upgrades(machine)) == 1
    assert await machine.succeed("stat -c %s /opt/large") == f"{5 << 20}\n"
