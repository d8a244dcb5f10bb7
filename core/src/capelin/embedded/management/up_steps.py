"""Carries out `capelin up`: looks at what is there, plans, and does one step after another."""

import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version

from capelin.client import Config
from capelin.embedded.addresses import is_free
from capelin.embedded.binaries import Binaries
from capelin.embedded.management.attach import check_vacant, examine_server, find_config
from capelin.embedded.management.components import ALL_ADDRESSES, inherited_variables
from capelin.embedded.management.environment import Environment, Settings
from capelin.embedded.management.providers import (
    own_programs,
    provider_programs,
    required_programs,
    resolve_components,
    upstream_providers,
)
from capelin.embedded.management.status_file import SUPERVISOR, Status, follow_status
from capelin.embedded.management.up_plan import (
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
from capelin.embedded.processes import Command, Process, ProcessSpec, Supervisor, write_private


class UpView:
    """Watches the steps; this one shows nothing."""

    def fetching(
        self, step: FetchPrograms | FetchProviderPrograms
    ) -> AbstractContextManager[Binaries]:
        """What fetches the programs, and shows how far it is, for as long as the block lasts."""
        del step
        return nullcontext(Binaries())

    def progressed(self, status: Status) -> None:
        """The supervisor's status has changed."""


async def bring_up(
    environment: Environment, request: UpRequest, view: UpView | None = None
) -> None:
    """Bring an environment up, from nothing or from whatever is there.

    Raises:
        UserError: if that is not possible, or if it did not come up.
    """
    await carry_out(environment, plan_up(request, await observe(environment, request)), view)


async def observe(environment: Environment, request: UpRequest) -> Observed:
    """Look at what is there, without changing it.

    Raises:
        UserError: if an existing API server cannot be used, or a provider is not known.
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
    """The providers that cannot run, as something else has a port that they cannot change."""
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
        # Minutes of work. Learn now what installed providers need, which takes a second: whatever
        # cannot be had is reported first, and Kubernetes is built once with all of its programs.
        programs = required_programs(version, providers, target=target)
    await binaries.fetch(programs)


async def start_supervisor(
    environment: Environment, settings: Settings, config: Config | None = None
) -> None:
    """Have an environment's supervisor work by these settings. Running processes stay.

    `config` is what leads to the API server, where that is not our own.
    """
    environment.make_folders()
    if config is not None:
        write_private(environment.kubeconfig, config.flattened(name=environment.context))
    environment.write_settings(settings)
    async with Supervisor(environment.supervisor) as launcher:
        # A new one each time: it reads its settings, and the code that it runs, when it starts.
        await launcher.stop()
        launcher.declare(
            ProcessSpec(
                name=SUPERVISOR,
                command=Command(
                    arguments=(
                        sys.executable,
                        "-m",
                        "capelin.embedded.management",
                        str(environment.folder),
                    ),
                    environment=inherited_variables(os.environ),
                ),
            )
        )
        await launcher.ready()
