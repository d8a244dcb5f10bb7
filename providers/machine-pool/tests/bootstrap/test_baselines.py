"""A clean host equals the one from before its first use, whatever earlier clean-ups missed."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
from capelin_machine_pool.bootstrap import (
    Archives,
    BootstrapStep,
    CleanStep,
    bootstrap_message,
    clean_message,
    differences_message,
    observe,
    take_baseline,
)
from capelin_machine_pool.bootstrap.executor import send_archive

from tests.support.archives import add_archive
from tests.support.sandbox import NEEDS_SANDBOX, Sandbox, eventually, sandbox

from .test_engine import CONFIG, MACHINE, OTHER, bootstrap, clean

pytestmark = [*NEEDS_SANDBOX]
SHIM = "/usr/local/bin/containerd-shim-runc-v2"
CRICTL = """\
#!/bin/sh
echo "$*" >>/var/log/crictl
[ ! -e /etc/fail-crictl ] || { echo 'connect: no such file or directory' >&2; exit 1; }
case $* in
*rmp*) [ -e /etc/keep-pods ] || rm -f /run/pods ;;
*pods*) cat /run/pods 2>/dev/null; true ;;
esac
"""


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncGenerator[Sandbox]:
    async with sandbox(tmp_path) as started:
        await started.succeed(
            "ip link add uplink type bridge; ip address add 192.0.2.2/24 dev uplink;"
            " ip link set uplink up"
        )
        yield started


async def add_crictl(machine: Sandbox) -> None:
    await machine.write_file("/usr/local/bin/crictl", CRICTL.encode(), mode=0o755)


async def start_shim(machine: Sandbox) -> None:
    """Run a process that looks like the parent of a pod's containers."""
    await machine.write_file(SHIM, b"#!/bin/sh\nwhile :; do sleep 1; done\n", mode=0o755)
    words = f"{SHIM} -namespace k8s.io -id abc"
    await machine.succeed(f"setsid {words} </dev/null >/dev/null 2>&1 &")
    await eventually(machine, "pgrep -f '[c]ontainerd-shim'")


async def pod_network(machine: Sandbox) -> None:
    """Write what a pod of a pod network writes that still runs."""
    await machine.succeed(
        "mkdir -p /etc/cni/net.d; echo kindnet >/etc/cni/net.d/10-kindnet.conflist;"
        " iptables -N KIND-MASQ-AGENT; ip link add veth1a2b type bridge;"
        " ip route add 10.244.1.0/24 via 192.0.2.9"
    )


async def test_pods_that_run_on_keep_a_host_from_being_clean(machine: Sandbox) -> None:
    await add_crictl(machine)
    await machine.succeed("touch /etc/fail-crictl")
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    await start_shim(machine)
    assert await clean(machine) is CleanStep.FAILED
    message = clean_message(await observe(machine))
    assert "crictl pods failed: connect: no such file or directory" in message
    assert "containerd-shim of a pod still runs" in message
    await machine.succeed("rm /etc/fail-crictl; pkill -f '[c]ontainerd-shim'")
    await MACHINE.clean(machine, await observe(machine), retry=True)
    assert await clean(machine) is CleanStep.CLEAN


async def test_a_shim_that_containerd_has_forgotten_ends(machine: Sandbox) -> None:
    await add_crictl(machine)
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    await start_shim(machine)
    assert await clean(machine) is CleanStep.CLEAN
    assert "has forgotten its process" in await machine.succeed("cat /var/lib/capelin/clean/output")


async def test_pods_that_crictl_lists_after_their_removal_are_named(machine: Sandbox) -> None:
    await add_crictl(machine)
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    await machine.succeed("touch /etc/keep-pods; echo 0123456789abcdef >/run/pods")
    assert await clean(machine) is CleanStep.FAILED
    assert "left the pods 0123456789abc" in clean_message(await observe(machine))
    asked = await machine.succeed("grep rmp /var/log/crictl")
    assert asked.splitlines() == ["--timeout=60s rmp --force --all"] * 3


async def test_remains_of_a_clean_up_never_become_the_baseline(machine: Sandbox) -> None:
    fresh = await machine.fingerprint()
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    assert await clean(machine) is CleanStep.CLEAN
    # A pod that survived the verification.
    await pod_network(machine)
    observed = await observe(machine)
    assert differences_message(observed) == (
        "new file /etc/cni/net.d/10-kindnet.conflist; new link veth1a2b;"
        " new route -4 10.244.1.0/24 via 192.0.2.9 dev uplink;"
        " new rule iptables filter :KIND-MASQ-AGENT - [0:0]"
    )
    assert await bootstrap(machine, owner=OTHER) is BootstrapStep.DIRTY
    message = bootstrap_message(BootstrapStep.DIRTY, observed, CONFIG)
    assert message.startswith("the host is not as before its first use: new file /etc/cni")
    # It may also begin later. The next clean-up then removes the remains of both.
    await machine.succeed(
        "rm /etc/cni/net.d/*; iptables -X KIND-MASQ-AGENT; ip link delete veth1a2b;"
        " ip route delete 10.244.1.0/24"
    )
    assert await bootstrap(machine, owner=OTHER) is BootstrapStep.SUCCEEDED
    await pod_network(machine)
    assert await clean(machine, owner=OTHER) is CleanStep.CLEAN
    assert await machine.fingerprint() == fresh
    assert (await observe(machine)).differences == ()


async def test_mark_compares_the_host_again(machine: Sandbox) -> None:
    await take_baseline(machine, renew=False)
    observed = await observe(machine)
    await pod_network(machine)
    assert await MACHINE.bootstrap(machine, CONFIG, observed) is BootstrapStep.DIRTY
    assert (await observe(machine)).marker is None


async def test_routes_and_logs_of_pods_go(machine: Sandbox) -> None:
    before = await machine.succeed("ip route add default via 192.0.2.1; ip route show")
    route = "ip route add 10.244.1.0/24 via 192.0.2.9; mkdir -p /var/log/pods/demo_web"
    logs = "echo secret >/var/log/pods/demo_web/0.log"
    config = replace(CONFIG, commands=(*CONFIG.commands, route, logs))
    assert await bootstrap(machine, config) is BootstrapStep.SUCCEEDED
    assert "10.244.1.0/24" in await machine.succeed("ip route show")
    assert await clean(machine) is CleanStep.CLEAN
    assert await machine.succeed("ip route show") == before
    assert await machine.succeed("ls /var/log/pods") == ""


@pytest.mark.parametrize(
    ("command", "difference"),
    [
        ("useradd --no-create-home guest", "new user guest"),
        ("echo 'guest ALL=(ALL) ALL' >/etc/sudoers.d/guest", "new file /etc/sudoers.d/guest"),
        ("ip route add default via 192.0.2.1", "new route -4 default via 192.0.2.1 dev uplink"),
    ],
)
async def test_changes_of_commands_are_named(
    machine: Sandbox, command: str, difference: str
) -> None:
    config = replace(CONFIG, commands=(*CONFIG.commands, command))
    assert await bootstrap(machine, config) is BootstrapStep.SUCCEEDED
    assert await clean(machine) is CleanStep.FAILED
    assert clean_message(await observe(machine)) == difference


async def test_host_in_use_keeps_its_baseline_and_shows_no_differences(machine: Sandbox) -> None:
    await take_baseline(machine, renew=False)
    baseline = (await observe(machine)).baseline
    assert await bootstrap(machine) is BootstrapStep.SUCCEEDED
    await take_baseline(machine, renew=True)
    observed = await observe(machine)
    assert observed.baseline == baseline is not None
    assert observed.differences == ()


async def test_changed_baseline_has_another_digest(machine: Sandbox) -> None:
    await take_baseline(machine, renew=False)
    baseline = (await observe(machine)).baseline
    command = "useradd guest; echo user guest >>/var/lib/capelin/baseline/state"
    config = replace(CONFIG, commands=(*CONFIG.commands, command))
    assert await bootstrap(machine, config) is BootstrapStep.SUCCEEDED
    await clean(machine)
    assert (await observe(machine)).baseline != baseline


async def test_the_same_state_has_the_same_digest_after_another_installation(
    machine: Sandbox,
) -> None:
    await take_baseline(machine, renew=False)
    baseline = (await observe(machine)).baseline
    await machine.succeed("rm -r /var/lib/capelin")
    assert (await observe(machine)).baseline is None
    await take_baseline(machine, renew=False)
    assert (await observe(machine)).baseline == baseline


async def test_person_accepts_a_difference(machine: Sandbox) -> None:
    await take_baseline(machine, renew=False)
    await machine.succeed("useradd --no-create-home guest")
    await take_baseline(machine, renew=False)
    assert (await observe(machine)).differences == ("new user guest",)
    await take_baseline(machine, renew=True)
    assert (await observe(machine)).differences == ()


async def test_archive_of_a_bootstrap_that_did_not_begin_goes(
    machine: Sandbox, tmp_path: Path
) -> None:
    add_archive(tmp_path / "archives", "v1.33.13", {"usr/bin/tool": b"program"})
    archive = await Archives(tmp_path / "archives").find("v1.33.13", "amd64")
    await MACHINE.bootstrap(machine, CONFIG, await observe(machine))
    await send_archive(machine, archive)
    assert await machine.succeed("ls /var/lib/capelin/archives") != ""
    assert await clean(machine) is CleanStep.CLEAN
    assert await machine.succeed("ls /var/lib/capelin/archives 2>/dev/null; true") == ""
