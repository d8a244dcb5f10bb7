"""When hosts are power cycled, and the ways to do it."""

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from capelin.api.core import Secret
from capelin.client import Conflict, Destinations, Request, Response, Unavailable
from capelin.contract import ConditionSpec, update_conditions
from capelin.pki import issue, new_ca
from capelin.testing.fake_client import FakeClient
from capelin_machine_pool.hosts.api import (
    CLEAN_AGAIN_ANNOTATION,
    POWER_CYCLE_ANNOTATION,
    CapelinHost,
    HostStatus,
    Power,
    PowerCredentials,
    Redfish,
)
from capelin_machine_pool.hosts.plan import Orphaned, Visit, next_host_step
from capelin_machine_pool.hosts.power import PowerError, PowerSwitch, begin_cycle, is_cycle_due
from capelin_machine_pool.hosts.redfish import RedfishError, System, reset_of
from capelin_machine_pool.hosts.status import failed_visit, host_status, outcome

from tests.support.web import api_server

from .objects import NAMESPACE, NOW, a_claim, a_host

CA = new_ca("bmc", now=datetime.now(UTC))
LOOPBACK = Destinations((ip_network("127.0.0.0/8"),))
COMMAND = Power(method="Command", command="ipmi")
SSH = Power(method="SSH")
RESET = "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset"
REQUESTED = {POWER_CYCLE_ANNOTATION: ""}


def released(
    *conditions: tuple[str, str],
    power: Power | None = COMMAND,
    since: timedelta = timedelta(minutes=3),
    cycled: timedelta | None = None,
) -> CapelinHost:
    """A host whose machine has released it, with conditions since then."""
    claim = a_claim(released_at=NOW - since)
    host = a_host(phase="Cleaning", claim=claim, power=power)
    assert host.status is not None
    specs = [ConditionSpec(type_, "False", reason, "why") for type_, reason in conditions]
    moment = NOW - since
    host.status.conditions = update_conditions([], specs, now=moment, generation=1)
    host.status.power_cycled_at = None if cycled is None else NOW - cycled
    return host


SILENT = ("Reachable", "HostUnreachable")
UNCLEAN = ("Clean", "HostNotClean")


@pytest.mark.parametrize(
    ("host", "is_due"),
    [
        (released(SILENT), True),
        (released(UNCLEAN), True),
        (released(UNCLEAN, power=SSH), True),
        # It cannot reboot itself.
        (released(SILENT, power=SSH), False),
        (released(SILENT, power=None), False),
        (released(SILENT, since=timedelta(minutes=1)), False),
        (released(("Reachable", "HostKeyMismatch")), False),
        (released(), False),
        # Once for each release.
        (released(SILENT, cycled=timedelta(minutes=1)), False),
        (released(UNCLEAN, cycled=timedelta(minutes=1)), False),
        (released(SILENT, cycled=timedelta(hours=1)), True),
        # A machine uses it.
        (a_host(phase="Ready", claim=a_claim(), power=COMMAND), False),
        (a_host(phase="Unavailable", power=COMMAND), False),
        # A person requests it.
        (a_host(phase="Ready", claim=a_claim(), power=COMMAND, annotations=REQUESTED), True),
        (a_host(phase=None, annotations=REQUESTED), True),
    ],
)
def test_released_hosts_are_power_cycled_once(host: CapelinHost, is_due: bool) -> None:
    assert is_cycle_due(host, NOW) is is_due


def test_condition_from_before_the_release_does_not_count() -> None:
    host = released(SILENT, UNCLEAN)
    host.metadata.generation = 2
    assert not is_cycle_due(host, NOW)


def test_released_host_that_answers_is_not_power_cycled() -> None:
    host = released()
    full = failed_visit(Visit.CLEAN, "command", "No space left on device")
    its = outcome(host, full)
    host.status = host_status(host, full, its.phase, NOW)
    since = NOW - timedelta(minutes=3)
    host.status.conditions = update_conditions([], its.conditions, now=since, generation=1)
    assert [(it.type, it.status, it.reason) for it in host.status.conditions] == [
        ("Ready", "False", "HostCommandFailed"),
        ("Reachable", "True", "Reachable"),
    ]
    assert not is_cycle_due(host, NOW)


async def test_power_cycle_is_recorded_before_it_happens() -> None:
    client = FakeClient(CapelinHost)
    host = released(UNCLEAN)
    host.metadata.annotations = REQUESTED
    assert host.status is not None
    host.status.phase = "Broken"
    client.add(host)
    read = await client.get(CapelinHost, host.name, NAMESPACE)
    other = await client.get(CapelinHost, host.name, NAMESPACE)
    await begin_cycle(client, read, NOW)
    after = await client.get(CapelinHost, host.name, NAMESPACE)
    assert after.status is not None
    assert after.status.power_cycled_at == NOW
    # The clean-up is repeated afterwards, as after the confirmation of a person.
    assert after.metadata.annotations == {CLEAN_AGAIN_ANNOTATION: ""}
    assert not is_cycle_due(after, NOW)
    with pytest.raises(Conflict):
        await begin_cycle(client, other, NOW)


async def test_power_cycle_confirms_no_clean_up_of_a_node() -> None:
    client = FakeClient(CapelinHost)
    client.add(a_host(phase="Broken", claim=a_claim(), power=COMMAND, annotations=REQUESTED))
    await begin_cycle(client, await client.get(CapelinHost, "host-1", NAMESPACE), NOW)
    after = await client.get(CapelinHost, "host-1", NAMESPACE)
    assert after.metadata.annotations == {}
    assert isinstance(next_host_step(after, None), Orphaned)


def system(state: str, *types: str, target: str = RESET) -> System:
    reset = {"target": target, "ResetType@Redfish.AllowableValues": list(types)}
    return System.read({"PowerState": state, "Actions": {"#ComputerSystem.Reset": reset}})


@pytest.mark.parametrize(
    ("state", "types", "kind"),
    [
        ("On", (), "ForceRestart"),
        ("On", ("On", "ForceRestart", "PowerCycle"), "ForceRestart"),
        ("On", ("On", "PowerCycle"), "PowerCycle"),
        ("PoweringOff", ("GracefulRestart",), "GracefulRestart"),
        ("Off", ("On", "ForceRestart"), "On"),
        ("Off", (), "On"),
    ],
)
def test_kind_of_the_restart(state: str, types: tuple[str, ...], kind: str) -> None:
    assert reset_of(system(state, *types)) == (RESET, kind)


def test_systems_that_cannot_be_restarted() -> None:
    with pytest.raises(RedfishError, match="supports none of ForceRestart"):
        reset_of(system("On", "Nmi"))
    for target in ("", "//other/x", "https://other/x"):
        with pytest.raises(RedfishError, match="has no action"):
            reset_of(system("On", target=target))


@dataclass
class Controller:
    """A management controller. It is not a real one: an emulator is in the integration tests."""

    address: str = ""
    answer: Any = None
    resets: list[str] = field(default_factory=list[str])

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Basic YWRtaW46aHVudGVyMg==":
            return web.Response(status=401)
        if request.method == "POST":
            assert request.path == RESET
            self.resets.append((await request.json())["ResetType"])
            return web.Response(status=204)
        return web.json_response(self.answer)


@asynccontextmanager
async def controller(folder: Path) -> AsyncGenerator[Controller]:
    """Serve Redfish with a certificate for 127.0.0.1."""
    leaf = issue(
        CA,
        common_name="bmc",
        usages=("server",),
        addresses=["127.0.0.1"],
        now=datetime.now(UTC),
    )
    path = folder / "bmc.pem"
    path.write_bytes(leaf.certificate_pem + leaf.private_key_pem)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(path)
    served = Controller(answer=system("On", "ForceRestart").dump())
    async with api_server(served.handle, tls) as address:
        served.address = f"{address}/redfish/v1/Systems/1"
        yield served


async def fails(switch: PowerSwitch, client: FakeClient, host: CapelinHost) -> str:
    """The message of a power cycle that must fail."""
    with pytest.raises(PowerError) as caught:
        await switch.cycle(client, host)
    return str(caught.value)


async def test_management_controller_restarts_a_host(tmp_path: Path) -> None:
    client = FakeClient(CapelinHost)
    switch = PowerSwitch(None, LOOPBACK)
    async with controller(tmp_path) as bmc:

        def host(**changes: Any) -> CapelinHost:
            values: dict[str, Any] = {
                "address": bmc.address,
                "credentials": PowerCredentials(secret_name="bmc"),
                "ca_bundle": CA.certificate_pem.decode(),
            }
            redfish = Redfish(**{**values, **changes})
            return a_host(power=Power(method="Redfish", redfish=redfish))

        assert await fails(switch, client, host()) == "the Secret bmc needs username and password"
        data = {"username": b"admin", "password": b"hunter2"}
        client.add(Secret.of("bmc", NAMESPACE, data=data))
        client.add(Secret.of("other", NAMESPACE, data={**data, "password": b"wrong"}))
        await switch.cycle(client, host())
        assert bmc.resets == ["ForceRestart"]
        bmc.answer = system("Off").dump()
        await switch.cycle(client, host())
        assert bmc.resets == ["ForceRestart", "On"]
        wrong = host(credentials=PowerCredentials(secret_name="other"))
        assert await fails(switch, client, wrong) == "127.0.0.1 rejects the user or the password"
        message = await fails(switch, client, host(ca_bundle=None))
        assert "its certificate is not trusted" in message
        message = await fails(switch, client, host(ca_bundle="no certificate"))
        assert message == "caBundle does not contain certificates in PEM"
        message = await fails(PowerSwitch(None, Destinations()), client, host())
        assert message == "127.0.0.1: loopback and link-local addresses are not allowed"
        bmc.answer = system("On", target="https://127.0.0.2/x").dump()
        assert "has no action" in await fails(switch, client, host())
        bmc.answer = ["not", "a", "system"]
        message = await fails(switch, client, host())
        assert message == "127.0.0.1 does not answer with a ComputerSystem"
        assert len(bmc.resets) == 2


async def test_power_cycle_fails_if_its_secret_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeClient(CapelinHost)

    async def send(request: Request) -> Response:
        raise Unavailable(503, "ServiceUnavailable", f"cannot serve {request.path}")

    monkeypatch.setattr(client.server, "send", send)
    redfish = Redfish(
        address="https://127.0.0.1/x", credentials=PowerCredentials(secret_name="bmc")
    )
    hosts = a_host(power=Power(method="Redfish", redfish=redfish)), a_host(power=SSH)
    for host in hosts:
        assert "cannot serve /api/v1" in await fails(PowerSwitch(), client, host)


async def test_command_of_the_administrator_restarts_a_host(tmp_path: Path) -> None:
    client = FakeClient(CapelinHost)
    host = a_host(power=COMMAND)
    missing = (
        f"namespace {NAMESPACE} has no command ipmi: the administrator of the provider adds"
        f" {NAMESPACE}/ipmi to the folder of --power-commands"
    )
    assert await fails(PowerSwitch(), client, host) == missing
    switch = PowerSwitch(tmp_path)
    assert await fails(switch, client, host) == missing
    command = tmp_path / NAMESPACE / "ipmi"
    command.parent.mkdir()
    output = tmp_path / "output"
    command.write_text(
        f'#!/bin/sh\necho "$1 $HOST_NAMESPACE/$HOST_NAME $HOST_ADDRESS" >{output}\n'
        f"! [ -e {tmp_path}/fail ]\n"
    )
    assert await fails(switch, client, host) == missing
    command.chmod(0o755)
    assert "has never answered" in await fails(switch, client, host)
    assert not output.exists()
    host.status = HostStatus(last_contact_at=datetime.now(UTC))
    await switch.cycle(client, host)
    assert output.read_text() == f"cycle {NAMESPACE}/host-1 10.0.0.7\n"
    foreign = a_host(power=COMMAND)
    foreign.metadata.namespace = "team-b"
    assert "namespace team-b has no command ipmi" in await fails(switch, client, foreign)
    (tmp_path / "fail").touch()
    message = await fails(switch, client, host)
    assert message == "the command ipmi failed with exit code 1: see the provider's log"
    assert "spec.power is not set" in await fails(switch, client, a_host())
