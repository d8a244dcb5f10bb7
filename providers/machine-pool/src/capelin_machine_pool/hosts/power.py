"""Power cycles of hosts: when one is due, and how the provider carries it out."""

import asyncio
import logging
import os
import signal
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from capelin.api.core import Secret
from capelin.client import Client, ClientError, Destinations
from capelin.contract import find_condition
from capelin.programs import default_signals
from capelin.provider import Blocked

from capelin_machine_pool.bootstrap import TransportError
from capelin_machine_pool.hosts.api import (
    CLEAN_AGAIN_ANNOTATION,
    POWER_CYCLE_ANNOTATION,
    CapelinHost,
    HostStatus,
    Redfish,
)
from capelin_machine_pool.hosts.connections import ssh_target
from capelin_machine_pool.hosts.plan import CLEAN, REACHABLE, own_status
from capelin_machine_pool.hosts.redfish import RedfishError, power_cycle
from capelin_machine_pool.reasons import Reason

SILENCE: Final = timedelta(minutes=2)
"""How long a released host does not answer before it is power cycled."""
_COMMAND_SECONDS: Final = 120.0

_log = logging.getLogger(__name__)


class PowerError(Exception):
    """A host could not be power cycled."""


def is_cycle_due(host: CapelinHost, now: datetime, silence: timedelta = SILENCE) -> bool:
    """Whether a host has to be power cycled.

    A person requests it, or a released host does not answer or is not clean. That happens once for
    each release: afterwards, the host needs a person.
    """
    if POWER_CYCLE_ANNOTATION in host.metadata.annotations:
        return True
    power, claim, status = host.spec.power, host.spec.claim, own_status(host)
    if power is None or claim is None or claim.released_at is None or status is None:
        return False
    cycled = status.power_cycled_at
    if cycled is not None and cycled >= claim.released_at:
        return False
    unclean = find_condition(status.conditions, CLEAN)
    if unclean is not None and unclean.reason == str(Reason.HOST_NOT_CLEAN):
        return status.observed_generation == host.metadata.generation
    reachable = find_condition(status.conditions, REACHABLE)
    return (
        power.method != "SSH"
        and reachable is not None
        and reachable.reason == str(Reason.HOST_UNREACHABLE)
        and reachable.observed_generation == host.metadata.generation
        and now - max(reachable.last_transition_time, claim.released_at) >= silence
    )


async def begin_cycle(client: Client, host: CapelinHost, now: datetime) -> None:
    """Record a power cycle before it happens, so that it happens once only.

    Raises:
        Conflict: Another controller changed the host.
    """
    metadata = {"resourceVersion": host.metadata.resource_version}
    patch = {"metadata": metadata, "status": HostStatus(power_cycled_at=now).dump()}
    await client.patch(CapelinHost, host.name, host.namespace, patch, subresource="status")
    annotations: dict[str, str | None] = {POWER_CYCLE_ANNOTATION: None}
    # A host that no machine released may be the node of a cluster: it only restarts.
    is_released = host.spec.claim is not None and host.spec.claim.released_at is not None
    if is_released and host.status and host.status.phase == "Broken":
        annotations[CLEAN_AGAIN_ANNOTATION] = ""
    patch = {"metadata": {"uid": host.uid, "annotations": annotations}}
    await client.patch(CapelinHost, host.name, host.namespace, patch)


class PowerSwitch:
    """Carries out power cycles.

    Args:
        commands: The folder with the programs of the administrator, in a folder for each namespace.
        destinations: Addresses that are allowed. None allows all.
    """

    def __init__(
        self, commands: Path | None = None, destinations: Destinations | None = None
    ) -> None:
        self._commands = commands
        self._destinations = destinations

    async def cycle(self, client: Client, host: CapelinHost) -> None:
        """Restart a host, or switch it on.

        Raises:
            PowerError: It was not possible.
        """
        power = host.spec.power
        try:
            if power is None:
                raise PowerError("spec.power is not set: it names the way to the host's power")
            if power.redfish is not None:
                await self._redfish(client, host, power.redfish)
            elif power.command is not None:
                await self._run(power.command, host)
            else:
                target = await ssh_target(client, host)
                async with target.connect(self._destinations) as transport:
                    await transport.reboot()
        except (Blocked, ClientError, RedfishError, TransportError) as error:
            # It was recorded as carried out, so each failure is reported.
            raise PowerError(str(error)) from None

    async def _redfish(self, client: Client, host: CapelinHost, redfish: Redfish) -> None:
        name = redfish.credentials.secret_name
        secret = await client.find(Secret, name, host.namespace)
        data = {} if secret is None else secret.data
        try:
            user, password = (data[key].decode() for key in ("username", "password"))
        except (KeyError, UnicodeDecodeError):
            message = f"the Secret {name} needs username and password"
            raise PowerError(message) from None
        await power_cycle(
            redfish.address,
            user=user,
            password=password,
            ca_bundle=redfish.ca_bundle,
            destinations=self._destinations,
        )

    async def _run(self, name: str, host: CapelinHost) -> None:
        namespace = host.namespace or ""
        path = None if self._commands is None else self._commands / namespace / name
        if path is None or not os.access(path, os.X_OK):
            raise PowerError(
                f"namespace {namespace} has no command {name}: the administrator of the provider"
                f" adds {namespace}/{name} to the folder of --power-commands"
            )
        if host.status is None or host.status.last_contact_at is None:
            # Its name and address are claims of the user who wrote it.
            raise PowerError("the host has never answered with its own key: check its address")
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOST_NAME": host.name,
            "HOST_NAMESPACE": namespace,
            "HOST_ADDRESS": host.spec.address,
        }
        try:
            process = await asyncio.create_subprocess_exec(
                str(path),
                "cycle",
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                # The administrator's program may print secrets: the log is the administrator's.
                stderr=None,
                start_new_session=True,
                preexec_fn=default_signals(),
            )
        except OSError as error:
            raise PowerError(f"the command {name} does not start: {error.strerror}") from None
        try:
            async with asyncio.timeout(_COMMAND_SECONDS):
                code = await process.wait()
        except TimeoutError:
            raise PowerError(
                f"the command {name} takes longer than {_COMMAND_SECONDS:.0f} s"
            ) from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if code != 0:
            raise PowerError(
                f"the command {name} failed with exit code {code}: see the provider's log"
            )
        _log.info("the command %s power cycled the host %s/%s", name, host.namespace, host.name)
