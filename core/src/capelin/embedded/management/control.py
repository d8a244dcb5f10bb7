"""Starting, following and removing an environment, from whatever process a user sits at."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Iterable
from typing import Final

from capelin.embedded.addresses import is_free
from capelin.embedded.management.environment import Environment, Settings
from capelin.embedded.management.plan import EVERYWHERE, passed_on
from capelin.embedded.management.problems import BadInputError, BusyError, NotUpError
from capelin.embedded.management.providers import upstream
from capelin.embedded.management.status import Status, read_status
from capelin.embedded.processes import Command, Declared, Process, Supervisor, kill_all

_SUPERVISOR: Final = "supervisor"
_LOOK_SECONDS: Final = 0.05


def wanted(
    environment: Environment, *, kubernetes_version: str, providers: Iterable[str], durable: bool
) -> Settings:
    """What an environment is to be from now on: as it was, and the providers asked for now.

    Raises:
        BadInputError: if it runs another version of Kubernetes.
    """
    before = environment.settings()
    if before is None:
        return Settings(
            kubernetes_version=kubernetes_version,
            providers=sorted(set(providers)),
            durable=durable,
        )
    if before.kubernetes_version != kubernetes_version:
        raise BadInputError(
            f"Environment {environment.name} runs Kubernetes {before.kubernetes_version}.",
            "A management cluster keeps the version that it was started with.",
            f"Choose another --name, or remove it first: capelin down --name {environment.name}.",
        )
    return before.model_copy(update={"providers": sorted({*before.providers, *providers})})


def check_fixed_ports(environment: Environment, settings: Settings) -> None:
    """Refuse a provider whose ports, which nobody can choose, are taken by something else.

    Raises:
        BusyError: with the port and the provider.
    """
    for provider in upstream(settings.providers):
        if Process.adopt(environment.processes, provider.label) is not None:
            continue
        for port in provider.fixed_ports:
            if not is_free(EVERYWHERE, port):
                raise BusyError(
                    f"The provider {provider.label} cannot run in environment {environment.name}.",
                    f"It listens on port {port} whatever one says, and that is taken; "
                    "another environment may have this provider.",
                    "Take that one down first, or leave the provider out of --with.",
                )


async def start(environment: Environment, settings: Settings) -> None:
    """Have an environment's supervisor work by these settings; what runs already runs on."""
    environment.make_folders()
    environment.write_settings(settings)
    async with Supervisor(environment.supervisor) as keeper:
        # A new one each time: it reads its settings, and the code that it runs, when it starts.
        await keeper.stop()
        keeper.declare(
            Declared(
                name=_SUPERVISOR,
                command=Command(
                    arguments=(
                        sys.executable,
                        "-m",
                        "capelin.embedded.management",
                        str(environment.folder),
                    ),
                    environment=passed_on(os.environ),
                ),
            )
        )
        await keeper.ready()


def supervisor(environment: Environment) -> Process | None:
    """The supervisor of an environment, if it runs."""
    return Process.adopt(environment.supervisor, _SUPERVISOR)


def status(environment: Environment) -> Status | None:
    """What the supervisor of an environment last said, if it still runs."""
    process, said = supervisor(environment), read_status(environment.status_file)
    runs = process is not None and said is not None and said.supervisor_pid == process.pid
    return said if runs else None


async def follow(environment: Environment) -> AsyncGenerator[Status, None]:
    """What the supervisor says, whenever it says something else, until the environment is up.

    Raises:
        NotUpError: if the supervisor ends.
    """
    process = supervisor(environment)
    last: Status | None = None
    while process is not None:
        # First whether it runs, then what it says: so that its last word is not missed.
        runs = process.is_running
        said = read_status(environment.status_file)
        if said is not None and said.supervisor_pid == process.pid and said != last:
            last = said
            yield said
            if said.is_up:
                return
        if not runs:
            break
        await asyncio.sleep(_LOOK_SECONDS)
    reason = "does not run" if process is None else (await process.wait()).reason
    raise NotUpError(
        f"Environment {environment.name} did not come up.",
        f"Its supervisor {reason}.",
        f"Read {environment.supervisor / 'supervisor.log'}, then try again.",
    )


async def remove(environment: Environment) -> None:
    """End every process of an environment, and leave nothing of it behind."""
    # The supervisor first, for it would start again what ends; then the managers, for they would
    # start again what they look after. What they have is removed: nothing needs an orderly end.
    for folder in (environment.supervisor, environment.processes, environment.folder):
        await kill_all(folder)
    await asyncio.to_thread(shutil.rmtree, environment.folder)
