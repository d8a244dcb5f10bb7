"""The background process of an environment: it brings everything up, and keeps it so.

It looks at nothing but the environment's folder, so that one that was killed, or a machine that
was restarted, is no special case: the next supervisor finds what still runs and starts the rest.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Final

from capelin.api import Unstructured
from capelin.client import Client, ClientError, Config
from capelin.embedded.addresses import free_port, is_free
from capelin.embedded.binaries import Binaries
from capelin.embedded.management.components import gather
from capelin.embedded.management.credentials import keep_ca
from capelin.embedded.management.environment import Environment, Settings
from capelin.embedded.management.foundation import Foundation, foundation
from capelin.embedded.management.installation import install
from capelin.embedded.management.manager import Listening, Manager
from capelin.embedded.management.manifests import INVENTORY, MANAGER
from capelin.embedded.management.plan import EVERYWHERE, Component, choose_ports, ports_of
from capelin.embedded.management.status import STEPS, Journal, StepName
from capelin.embedded.processes import Phase, Process, Supervisor
from capelin.errors import MissingError

_RETRY_SECONDS: Final = 1.0
_RENEWAL_SECONDS: Final = 60.0


async def supervise(environment: Environment) -> None:
    """Bring an environment up and keep it running, until cancelled; what runs then runs on."""
    settings = environment.settings()
    if settings is None:
        raise MissingError(
            f"There is no environment {environment.name}.",
            reason=f"{environment.settings_file} does not exist.",
            hint=f"Start it with capelin up --name {environment.name}.",
        )
    environment.make_folders()
    binaries = Binaries()
    base = await foundation(environment, settings, binaries)
    components = await gather(settings.providers, binaries)
    ports = _ports(components, settings, environment)
    environment.write_settings(settings.model_copy(update={"ports": ports}))
    ca = keep_ca(environment.credentials, datetime.now(UTC))
    managers = [
        Manager(each, base, environment, Listening(ports_of(each, ports), ca))
        for each in components
    ]
    for manager in managers:
        manager.keep_certificate()
    await Supervision(environment, base, managers).run()


class Supervision:
    """The parts of an environment, and how far they have come."""

    def __init__(
        self, environment: Environment, base: Foundation, managers: Sequence[Manager]
    ) -> None:
        self._environment = environment
        self._base = base
        self._managers = managers
        self._journal = Journal(
            environment.status_file,
            pid=os.getpid(),
            now=datetime.now(UTC),
            steps=STEPS if base.processes else [each for each in STEPS if each != "api-server"],
        )
        self._answers = asyncio.Event()
        self._installed = asyncio.Event()
        self._running = asyncio.Event()

    async def run(self) -> None:
        """Bring everything up and keep it so."""
        config = Config.from_kubeconfig(self._environment.kubeconfig)
        async with (
            Supervisor(self._environment.processes) as supervisor,
            Client(config, manager=MANAGER) as client,
            asyncio.TaskGroup() as tasks,
        ):
            # Managers are started when they find in the API server what they need. Those that an
            # earlier supervisor left run on meanwhile.
            left = [each.declared() for each in self._managers if self._runs(each)]
            supervisor.declare(*self._base.processes, *left)
            tasks.create_task(self._watch(supervisor))
            tasks.create_task(self._bring_up(supervisor, client))
            tasks.create_task(self._renew(client))

    def _runs(self, manager: Manager) -> bool:
        declared = manager.declared()
        process = Process.adopt(self._environment.processes, declared.name)
        return process is not None and process.hash == declared.command.hash

    async def _watch(self, supervisor: Supervisor) -> None:
        base = {each.name for each in self._base.processes}
        everything = base | {each.component.label for each in self._managers}
        async for states in supervisor.changes():
            self._journal.seen(states)
            running = {name for name, each in states.items() if each.phase is Phase.RUNNING}
            if base <= running:
                self._answers.set()
            if running == everything:
                self._running.set()

    async def _bring_up(self, supervisor: Supervisor, client: Client) -> None:
        if self._base.processes:
            await self._step("api-server", self._answers.wait)
        await self._step("installation", partial(self._install, client))
        self._installed.set()
        supervisor.declare(*self._base.processes, *(each.declared() for each in self._managers))
        await self._step("controllers", self._running.wait)
        await self._step("extensions", partial(self._install_late, client))

    async def _step(self, name: StepName, work: Callable[[], Awaitable[object]]) -> None:
        """Do one step, again and again until it works."""
        self._journal.running(name, datetime.now(UTC))
        while True:
            try:
                await work()
            except ClientError as error:
                self._journal.failing(
                    name, " ".join([str(error), *getattr(error, "__notes__", [])])
                )
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._journal.done(name, datetime.now(UTC))
                return

    async def _install(self, client: Client) -> None:
        manifests = [
            each
            for manager in self._managers
            for each in manager.manifests(manager.component.manifests)
        ]
        await self._send(client, [INVENTORY, *manifests])
        await self._send(client, [manager.component.inventory for manager in self._managers])
        await self._keep_accounts(client)

    async def _install_late(self, client: Client) -> None:
        late = (manager.manifests(manager.component.late) for manager in self._managers)
        await self._send(client, [each for manifests in late for each in manifests])

    async def _send(self, client: Client, manifests: Sequence[Unstructured]) -> None:
        await install(client, await self._base.to_install(client, manifests))

    async def _keep_accounts(self, client: Client) -> None:
        for manager in self._managers:
            await manager.keep_account(client)

    async def _renew(self, client: Client) -> None:
        """Replace certificates and tokens long before they end; their readers notice."""
        await self._installed.wait()
        while True:
            await asyncio.sleep(_RENEWAL_SECONDS)
            for manager in self._managers:
                manager.keep_certificate()
            # An API server that is away now is asked again in a minute: tokens are good for hours.
            with suppress(ClientError):
                await self._keep_accounts(client)


def _ports(
    components: Sequence[Component], settings: Settings, environment: Environment
) -> dict[str, int]:
    """The ports of all managers; one that still runs keeps its own."""
    running = [
        each for each in components if Process.adopt(environment.processes, each.label) is not None
    ]
    kept = {port for each in running for port in settings.ports_of(each.label)}
    return choose_ports(
        components,
        settings.ports,
        usable=lambda port: port in kept or is_free(EVERYWHERE, port),
        free=lambda: free_port(EVERYWHERE),
    )
