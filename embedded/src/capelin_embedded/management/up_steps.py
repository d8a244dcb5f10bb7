"""Runs `capelin up`: observes, plans, and carries out one step after another."""

import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version

from capelin.client import Config

from capelin_embedded.addresses import is_free
from capelin_embedded.binaries import Binaries
from capelin_embedded.management.attach import check_vacant, examine_server, find_config
from capelin_embedded.management.components import ALL_ADDRESSES, inherited_variables
from capelin_embedded.management.environment import Environment, Settings
from capelin_embedded.management.providers import (
    own_programs,
    provider_programs,
    required_programs,
    resolve_components,
    upstream_providers,
)
from capelin_embedded.management.status_file import SUPERVISOR, Status, follow_status
from capelin_embedded.management.up_plan import (
    CheckVacant,
    FetchPrograms,
    FetchProviderPrograms,
    Observed,
    StartSupervisor,
    Step,
    UpRequest,
    WaitUntilUp,
    choose_target,
    plan_up,
)
from capelin_embedded.processes import Command, Process, ProcessSpec, Supervisor, write_private


class UpView:
    """Observes the steps. This one shows nothing."""

    def fetching(
        self, step: FetchPrograms | FetchProviderPrograms
    ) -> AbstractContextManager[Binaries]:
        """Provides the binaries and shows the progress, inside the `with` block."""
        del step
        return nullcontext(Binaries())

    def progressed(self, status: Status) -> None:
        """The supervisor's status has changed."""


async def bring_up(
    environment: Environment, request: UpRequest, view: UpView | None = None
) -> None:
    """Bring an environment up, from any state.

    Raises:
        UserError: That is not possible, or it did not come up.
    """
    await carry_out(environment, plan_up(request, await observe(environment, request)), view)


async def observe(environment: Environment, request: UpRequest) -> Observed:
    """Observe the current state, without changing it.

    Raises:
        UserError: An existing API server is not usable, or a provider is unknown.
    """
    upstream_providers(request.providers)
    settings = environment.settings()
    attachment = None
    if choose_target(request, environment.name, settings) == "existing":
        config = find_config(environment, request.kubeconfig, request.context)
        attachment = await examine_server(config, environment, settings and settings.existing)
    providers = {*(settings.providers if settings else ()), *request.providers}
    return Observed(
        environment.name,
        settings,
        attachment,
        version("capelin-core"),
        busy_ports(environment, providers),
    )


def busy_ports(environment: Environment, providers: Iterable[str]) -> dict[str, int]:
    """The providers that cannot run, because another process uses their fixed port."""
    return {
        provider.label: port
        for provider in upstream_providers(providers)
        if provider.fixed_ports and Process.adopt(environment.processes, provider.label) is None
        for port in provider.fixed_ports
        if not is_free(ALL_ADDRESSES, port)
    }


async def carry_out(
    environment: Environment, steps: Iterable[Step], view: UpView | None = None
) -> None:
    view = view or UpView()
    for step in steps:
        match step:
            case FetchPrograms(settings):
                with view.fetching(step) as binaries:
                    await _fetch_programs(settings, binaries)
            case FetchProviderPrograms(settings):
                with view.fetching(step) as binaries:
                    await binaries.fetch(
                        provider_programs(settings.kubernetes_version, settings.providers)
                    )
            case CheckVacant(attachment, settings):
                components = await resolve_components(
                    settings.providers, settings.kubernetes_version, Binaries()
                )
                await check_vacant(attachment, components)
            case StartSupervisor(settings, config):
                await start_supervisor(environment, settings, config)
            case WaitUntilUp():
                async for status in follow_status(environment):
                    view.progressed(status)


async def _fetch_programs(settings: Settings, binaries: Binaries) -> None:
    version, providers, target = settings.kubernetes_version, settings.providers, settings.target
    programs = own_programs(version, providers, target=target)
    if not await binaries.has(programs):
        # Minutes of work. Reading the needs of installed providers takes a second. So missing ones
        # are reported first, and Kubernetes is built only once with all of its binaries.
        programs = required_programs(version, providers, target=target)
    await binaries.fetch(programs)


async def start_supervisor(
    environment: Environment, settings: Settings, config: Config | None = None
) -> None:
    """Start an environment's supervisor with these settings. Running processes stay.

    `config` is the access to the API server, if it is not our own.
    """
    environment.make_folders()
    if config is not None:
        write_private(environment.kubeconfig, config.flattened(name=environment.context))
    environment.write_settings(settings)
    async with Supervisor(environment.supervisor) as launcher:
        # Always a new one: it reads its settings, and its code, only at its start.
        await launcher.stop()
        # The new one may have the pid of an earlier one, which has written a status.
        environment.status_file.unlink(missing_ok=True)
        launcher.declare(
            ProcessSpec(
                name=SUPERVISOR,
                command=Command(
                    arguments=(
                        sys.executable,
                        "-m",
                        "capelin_embedded.management",
                        str(environment.folder),
                    ),
                    environment=inherited_variables(os.environ),
                ),
            )
        )
        await launcher.ready()
