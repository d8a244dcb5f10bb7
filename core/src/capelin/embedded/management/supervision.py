"""The background process of an environment: it brings everything up, and keeps it so.

It looks at nothing but the environment's folder, so that one that was killed, or a machine that
was restarted, is no special case: the next supervisor finds what still runs and starts the rest.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from capelin.client import Client, ClientError, Config
from capelin.embedded import apiserver
from capelin.embedded.addresses import free_port, is_free
from capelin.embedded.apiserver import ApiServer
from capelin.embedded.apiserver.server import KUBE_APISERVER
from capelin.embedded.binaries import Binaries
from capelin.embedded.management.components import gather
from capelin.embedded.management.credentials import keep_ca
from capelin.embedded.management.environment import Environment, Settings
from capelin.embedded.management.installation import install
from capelin.embedded.management.manager import Listening, Manager
from capelin.embedded.management.manifests import INVENTORY
from capelin.embedded.management.plan import EVERYWHERE, Component, choose_ports, ports_of
from capelin.embedded.management.problems import MissingError
from capelin.embedded.management.status import Journal, StepName
from capelin.embedded.processes import Declared, Phase, Probe, Supervisor

_RETRY_SECONDS: Final = 1.0
_RENEWAL_SECONDS: Final = 60.0


async def supervise(environment: Environment) -> None:
    """Bring an environment up and keep it running, until cancelled; what runs then runs on."""
    settings = environment.settings()
    if settings is None:
        raise MissingError(
            f"There is no environment {environment.name}.",
            f"{environment.settings_file} does not exist.",
            f"Start it with capelin up --name {environment.name}.",
        )
    environment.make_folders()
    binaries = Binaries()
    server = await ApiServer.prepare(
        environment.folder,
        apiserver.Settings(version=settings.kubernetes_version, durable=settings.durable),
        binaries=binaries,
    )
    components = await gather(settings.providers, binaries)
    ports = _ports(components, settings, server)
    environment.write_settings(settings.model_copy(update={"ports": ports}))
    ca = keep_ca(environment.credentials, datetime.now(UTC))
    managers = [
        Manager(each, server, environment, Listening(ports_of(each, ports), ca))
        for each in components
    ]
    for manager in managers:
        manager.keep_certificate()
    await Supervision(environment, server, managers).run()


class Supervision:
    """The parts of an environment, and how far they have come."""

    def __init__(
        self, environment: Environment, server: ApiServer, managers: Sequence[Manager]
    ) -> None:
        self._server = server
        self._managers = managers
        self._journal = Journal(environment.status_file, pid=os.getpid(), now=datetime.now(UTC))
        self._answers = asyncio.Event()
        self._installed = asyncio.Event()
        self._running = asyncio.Event()

    async def run(self) -> None:
        """Bring everything up and keep it so."""
        config = Config.from_kubeconfig(self._server.kubeconfig)
        async with (
            Supervisor(self._server.processes) as supervisor,
            Client(config, manager="capelin") as client,
            asyncio.TaskGroup() as tasks,
        ):
            self._journal.running("api-server", datetime.now(UTC))
            supervisor.declare(
                *map(self._gated, self._server.declared),
                *(manager.declared() for manager in self._managers),
            )
            tasks.create_task(self._watch(supervisor))
            tasks.create_task(self._bring_up(client))
            tasks.create_task(self._renew(client))

    def _gated(self, declared: Declared) -> Declared:
        """The API server counts as ready when managers find in it what they need."""
        if declared.name != KUBE_APISERVER or declared.ready is None:
            return declared
        return replace(declared, ready=partial(self._until_installed, declared.ready))

    async def _until_installed(self, ready: Probe) -> AsyncGenerator[str, None]:
        async for missing in ready():
            if not missing:
                self._answers.set()
            yield missing or ("" if self._installed.is_set() else "nothing is installed in it yet")

    async def _watch(self, supervisor: Supervisor) -> None:
        async for states in supervisor.changes():
            self._journal.seen(states)
            if {state.phase for state in states.values()} == {Phase.RUNNING}:
                self._running.set()

    async def _bring_up(self, client: Client) -> None:
        await self._answers.wait()
        self._journal.done("api-server", datetime.now(UTC))
        await self._step("installation", partial(self._install, client))
        self._installed.set()
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
        await install(client, [INVENTORY, *manifests])
        await install(client, [manager.component.inventory for manager in self._managers])
        await self._keep_accounts(client)

    async def _install_late(self, client: Client) -> None:
        late = (manager.manifests(manager.component.late) for manager in self._managers)
        await install(client, [each for manifests in late for each in manifests])

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
    components: Sequence[Component], settings: Settings, server: ApiServer
) -> dict[str, int]:
    """The ports of all managers; one that still runs keeps its own."""
    running = [each for each in components if server.process(each.label) is not None]
    kept = {port for each in running for port in settings.ports_of(each.label)}
    return choose_ports(
        components,
        settings.ports,
        usable=lambda port: port in kept or is_free(EVERYWHERE, port),
        free=lambda: free_port(EVERYWHERE),
    )
