"""The background process of an environment: it brings everything up, and keeps it running.

It reads only the environment's folder, so a killed supervisor or a rebooted machine needs no
special handling: the next supervisor finds the running processes and starts the others.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from capelin.api import Unstructured
from capelin.api.core import ServiceAccount
from capelin.client import Client, ClientError, Config, Server, Token
from capelin.errors import MissingError
from capelin.pki import KeyPair

from capelin_embedded import apiserver
from capelin_embedded.addresses import free_port, is_free
from capelin_embedded.apiserver import KUBE_APISERVER, ApiServer
from capelin_embedded.binaries import KNOWN_KUBERNETES, Binaries
from capelin_embedded.management.admission import version_policies
from capelin_embedded.management.components import (
    ALL_ADDRESSES,
    Component,
    Placement,
    Purpose,
    choose_ports,
    component_command,
    ports_of,
)
from capelin_embedded.management.credentials import (
    Account,
    ensure_ca,
    ensure_certificate,
    ensure_token,
)
from capelin_embedded.management.environment import Environment, Settings
from capelin_embedded.management.manifests import (
    FIELD_MANAGER,
    INVENTORY_CRD,
    WebhookEndpoint,
    apply_manifests,
    do_all,
    environment_label_of,
    find_live,
    is_definition,
    is_webhook,
    localize,
    with_environment_label,
)
from capelin_embedded.management.next_version import prefetch_next_version
from capelin_embedded.management.providers import installed_providers, resolve_components
from capelin_embedded.management.resume import installation_digest, wait_for_hosted_clusters
from capelin_embedded.management.status_file import STAGES, StageName, StatusFile
from capelin_embedded.processes import (
    Phase,
    Process,
    ProcessSpec,
    Supervisor,
    readiness_probe,
    write_private,
)

_GRACE_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 1.0
_RENEWAL_SECONDS: Final = 60.0
_RESTART_SECONDS: Final = 5.0

# Without the last, a ResourceQuota makes the API server reject all objects that it counts.
_CONTROLLERS: Final = (*apiserver.CONTROLLERS, "resourcequota-controller")
# The permissions of core need it.
_CORE_ONLY: Final = ("clusterrole-aggregation-controller",)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ManagementServer:
    """The API server of an environment: its own or an existing one."""

    server: Server
    """Its URL and CA."""
    address: str
    """The address at which it reaches this machine."""
    processes: tuple[ProcessSpec, ...] = ()
    """Its processes, if it is our own."""
    mark: str | None = None
    """Label for everything that we install into a shared API server."""

    async def to_install(
        self, client: Client, manifests: Iterable[Unstructured]
    ) -> list[Unstructured]:
        """The manifests to send, with our label if the API server is shared.

        It uses an existing namespace unchanged, which remains after an uninstallation.
        """
        if self.mark is None:
            return list(manifests)
        wanted = list(manifests)
        namespaces = [manifest for manifest in wanted if manifest["kind"] == "Namespace"]
        others = {
            namespace["metadata"]["name"]
            for namespace in await find_live(client, namespaces)
            if environment_label_of(namespace) != self.mark
        }
        return [
            with_environment_label(manifest, self.mark)
            for manifest in wanted
            if manifest["kind"] != "Namespace" or manifest["metadata"]["name"] not in others
        ]


async def management_server(
    environment: Environment, settings: Settings, binaries: Binaries
) -> ManagementServer:
    """The API server for these settings. Starts nothing yet."""
    if settings.existing is not None:
        server = Config.from_kubeconfig(environment.kubeconfig).server
        return ManagementServer(server, settings.existing.address, mark=settings.existing.mark)
    own = await ApiServer.prepare(
        environment.folder,
        apiserver.Settings(
            version=settings.kubernetes_version,
            durable=settings.durable,
            controllers=_CORE_ONLY if settings.core_only else _CONTROLLERS,
        ),
        binaries=binaries,
    )
    config = Config.from_kubeconfig(own.kubeconfig)
    write_private(environment.kubeconfig, config.flattened(name=environment.context))
    return ManagementServer(config.server, own.listeners.address, own.declared)


@dataclass(frozen=True, slots=True)
class ComponentProcess:
    """A component as a process of the environment."""

    component: Component
    foundation: ManagementServer
    environment: Environment
    ports: Mapping[Purpose, int]
    ca: KeyPair
    """The CA of its serving certificate."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Additional environment variables."""

    @property
    def folder(self) -> Path:
        return self.environment.credentials / self.component.label

    def manifests(self, which: Sequence[Unstructured]) -> list[Unstructured]:
        port = self.ports.get("webhooks")
        address, ca = self.foundation.address, self.ca.certificate_pem
        listener = None if port is None else WebhookEndpoint(address, port, ca)
        return localize(which, provider=self.component.label, listener=listener)

    def ensure_certificate(self) -> None:
        """Issue its serving certificate, or renew it in time."""
        ensure_certificate(
            self.folder,
            self.ca,
            common_name=self.component.label,
            address=self.foundation.address,
            now=datetime.now(UTC),
        )

    async def ensure_token(self, client: Client) -> None:
        """Request its token, or renew it in time."""

        async def ask(namespace: str, name: str, validity: timedelta) -> Token:
            return await client.create_token(name, namespace, seconds=int(validity.total_seconds()))

        launch = self.component.launch
        live = await client.get(ServiceAccount, launch.service_account, launch.namespace)
        account = Account(live.namespace or "", live.name, self.foundation.server, live.uid or "")
        await ensure_token(self.folder, account, ask, datetime.now(UTC))

    def declared(self) -> ProcessSpec:
        placement = Placement(
            address=self.foundation.address,
            ports=self.ports,
            folder=self.folder,
            workloads=self.environment.workloads,
            authority=self.environment.authority,
            variables=self.variables,
        )
        health = f"http://{placement.address}:{placement.ports['health']}/readyz"
        return ProcessSpec(
            name=self.component.label,
            command=component_command(self.component, placement),
            after=tuple(process.name for process in self.foundation.processes),
            readiness=partial(readiness_probe, health),
            grace=_GRACE_SECONDS,
        )


async def supervise(environment: Environment) -> None:
    """Bring an environment up and keep it running until cancelled. Its processes continue.

    Raises:
        UserError: It cannot begin.
    """
    has_begun = False

    async def run() -> None:
        nonlocal has_begun
        async with _prepared(environment) as supervision:
            has_begun = True
            await supervision.run()

    await restart_on_failure(run, has_begun=lambda: has_begun)


async def restart_on_failure(
    run: Callable[[], Awaitable[None]],
    *,
    has_begun: Callable[[], bool] = lambda: True,
    pause: float = _RESTART_SECONDS,
) -> None:
    """Run again after an error, unless it occurred before the work had begun.

    A full disk must not end the supervision of an environment for good.
    """
    while True:
        try:
            await run()
        except MissingError:
            raise
        except Exception:
            if not has_begun():
                raise
            _log.exception("supervision failed and restarts in %s s", pause)
            await asyncio.sleep(pause)
        else:
            return


@asynccontextmanager
async def _prepared(environment: Environment) -> AsyncGenerator["Supervision"]:
    """Read the environment's folder and adopt its processes, while the API server starts."""
    settings = environment.settings()
    if settings is None:
        raise MissingError(
            f"Environment {environment.name} does not exist.",
            reason=f"{environment.settings_file} does not exist.",
            hint=f"Start it with capelin up -e {environment.name}.",
        )
    environment.make_folders()
    base = await management_server(environment, settings, Binaries())
    status = StatusFile(
        environment.status_file,
        pid=os.getpid(),
        now=datetime.now(UTC),
        stages=STAGES if base.processes else [stage for stage in STAGES if stage != "api-server"],
    )
    async with Supervisor(environment.processes) as supervisor:
        if base.processes:
            status.stage_running("api-server", datetime.now(UTC))
        if not supervisor.states:
            # It takes longest to start. If some processes already run, the supervisor would stop
            # those that are not declared.
            supervisor.declare(*base.processes)
        if not settings.core_only:
            # The API server starts while this reads the providers' packages.
            await asyncio.to_thread(installed_providers)
        managers = await _managers(environment, settings, base)
        yield Supervision(environment, base, managers, supervisor, status, settings=settings)


async def _managers(
    environment: Environment, settings: Settings, base: ManagementServer
) -> list[ComponentProcess]:
    """The managers to run with the API server, each with its ports and its certificate."""
    components = await resolve_components(
        settings.providers,
        settings.kubernetes_version,
        Binaries(),
        core_only=settings.core_only,
    )
    ports = _ports(components, settings, environment)
    environment.write_settings(settings.model_copy(update={"ports": ports}))
    ca = ensure_ca(environment.credentials, datetime.now(UTC))
    managers = [
        ComponentProcess(
            component, base, environment, ports_of(component, ports), ca, settings.manager_variables
        )
        for component in components
    ]
    for manager in managers:
        manager.ensure_certificate()
    return managers


class Supervision:
    """The parts of an environment, and their progress."""

    def __init__(
        self,
        environment: Environment,
        base: ManagementServer,
        managers: Sequence[ComponentProcess],
        supervisor: Supervisor,
        status: StatusFile,
        *,
        settings: Settings,
    ) -> None:
        self._environment = environment
        self._settings = settings
        self._base = base
        self._managers = managers
        self._supervisor = supervisor
        self._status = status
        self._answers = asyncio.Event()
        self._installed = asyncio.Event()
        self._running = asyncio.Event()

    async def run(self) -> None:
        """Bring everything up and keep it running."""
        config = Config.from_kubeconfig(self._environment.kubeconfig)
        # Managers start when the API server has the objects that they need. Those of an earlier
        # supervisor keep running meanwhile.
        self._declare(manager for manager in self._managers if self._runs(manager))
        async with (
            Client(config, manager=FIELD_MANAGER) as client,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._watch())
            tasks.create_task(self._bring_up(client))
            tasks.create_task(self._renew(client))
            if self._settings.prefetch:
                tasks.create_task(self._get_next_version(client))

    def _declare(self, managers: Iterable[ComponentProcess]) -> None:
        self._supervisor.declare(
            *self._base.processes, *(manager.declared() for manager in managers)
        )

    def _runs(self, manager: ComponentProcess) -> bool:
        declared = manager.declared()
        process = Process.adopt(self._environment.processes, declared.name)
        return process is not None and process.hash == declared.command.hash

    async def _watch(self) -> None:
        base = {process.name for process in self._base.processes}
        everything = base | {manager.component.label for manager in self._managers}
        async for states in self._supervisor.changes():
            self._status.processes_changed(states)
            running = {name for name, state in states.items() if state.phase is Phase.RUNNING}
            if base <= running:
                self._answers.set()
            if running == everything:
                self._running.set()

    async def _bring_up(self, client: Client) -> None:
        if self._base.processes:
            await self._step("api-server", self._answers.wait)
        await self._step("installation", partial(self._install, client))
        self._installed.set()
        await self._step("controllers", self._running.wait)
        await self._step("extensions", partial(self._install_late, client))

    async def _get_next_version(self, client: Client) -> None:
        await self._installed.wait()
        try:
            await prefetch_next_version(client, self._status.prefetching)
        except Exception:  # noqa: BLE001
            # It is a convenience: nothing else may fail with it.
            _log.exception("the programs of the next version were not prefetched")

    async def _step(self, name: StageName, work: Callable[[], Awaitable[object]]) -> None:
        """Run one step repeatedly until it works."""
        self._status.stage_running(name, datetime.now(UTC))
        while True:
            try:
                await work()
            except (ClientError, OSError) as error:
                self._status.stage_failing(
                    name, " ".join([str(error), *getattr(error, "__notes__", [])])
                )
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._status.stage_done(name, datetime.now(UTC))
                return

    async def _install(self, client: Client) -> None:
        """Send the objects that the managers need, and start each manager as soon as possible."""
        if self._base.processes and self._is_installed():
            await self._resume(client)
        manifests = [
            manifest
            for manager in self._managers
            for manifest in manager.manifests(manager.component.manifests)
        ]
        kinds = [INVENTORY_CRD, *filter(is_definition, manifests)]
        webhooks = [*filter(is_webhook, manifests)]
        rights = [
            manifest
            for manifest in manifests
            if not (is_definition(manifest) or is_webhook(manifest))
        ]
        self._status.stage_waiting("installation", "the API server receives kinds and roles")
        await do_all([self._send(client, kinds), self._give_rights(client, rights)])
        self._status.stage_waiting("installation", "the API server receives webhooks and policies")
        self._declare(self._managers)
        inventory = [manager.component.inventory for manager in self._managers]
        providers = [] if self._settings.core_only else installed_providers()
        policies = version_policies(providers, KUBE_APISERVER, KNOWN_KUBERNETES)
        await self._send(client, [*webhooks, *inventory, *policies])

    async def _resume(self, client: Client) -> None:
        """Start all managers now. Their objects were installed before."""
        self._status.stage_waiting("installation", "control planes of clusters start")
        await self._start_python_managers(client)
        if any(not self._runs(manager) for manager in self._managers):
            await wait_for_hosted_clusters(client)
        self._declare(self._managers)

    def _is_installed(self) -> bool:
        try:
            return self._environment.installed_file.read_text() == self._digest()
        except FileNotFoundError:
            return False

    def _digest(self) -> str:
        return installation_digest(
            [
                manifest
                for manager in self._managers
                for which in (manager.component.manifests, manager.component.late)
                for manifest in manager.manifests(which)
            ]
        )

    async def _give_rights(self, client: Client, rights: Sequence[Unstructured]) -> None:
        await self._send(client, rights)
        await self._start_python_managers(client)

    async def _start_python_managers(self, client: Client) -> None:
        await self._keep_accounts(client)
        # These take a second to load, and wait for their kinds themselves.
        self._declare(
            manager
            for manager in self._managers
            if manager.component.dialect == "python" or self._runs(manager)
        )

    async def _install_late(self, client: Client) -> None:
        self._status.stage_waiting("extensions", "the API server receives their configurations")
        late = (manager.manifests(manager.component.late) for manager in self._managers)
        await self._send(client, [manifest for manifests in late for manifest in manifests])
        write_private(self._environment.installed_file, self._digest().encode())

    async def _send(self, client: Client, manifests: Sequence[Unstructured]) -> None:
        await apply_manifests(client, await self._base.to_install(client, manifests))

    async def _keep_accounts(self, client: Client) -> None:
        for manager in self._managers:
            await manager.ensure_token(client)

    async def _renew(self, client: Client) -> None:
        """Replace certificates and tokens long before they expire. Their readers reload them."""
        await self._installed.wait()
        while True:
            await asyncio.sleep(_RENEWAL_SECONDS)
            self._status.write()
            # A failure now is retried in a minute: tokens are valid for hours.
            try:
                for manager in self._managers:
                    manager.ensure_certificate()
                await self._keep_accounts(client)
            except (ClientError, OSError) as error:
                _log.warning("certificates and tokens were not renewed: %s", error)


def _ports(
    components: Sequence[Component], settings: Settings, environment: Environment
) -> dict[str, int]:
    """The ports of all managers. A running manager keeps its own."""
    running = [
        component
        for component in components
        if Process.adopt(environment.processes, component.label) is not None
    ]
    kept = {port for component in running for port in settings.ports_of(component.label)}
    return choose_ports(
        components,
        settings.ports,
        usable=lambda port: port in kept or is_free(ALL_ADDRESSES, port),
        free=lambda: free_port(ALL_ADDRESSES),
    )
