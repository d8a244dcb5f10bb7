"""Starting, following and removing an environment, from whatever process a user sits at."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Iterable
from typing import Final

from capelin.client import Client, Config
from capelin.embedded.addresses import is_free
from capelin.embedded.management.environment import Environment, Existing, Settings, Target
from capelin.embedded.management.manifests import MANAGER
from capelin.embedded.management.plan import EVERYWHERE, passed_on
from capelin.embedded.management.providers import upstream
from capelin.embedded.management.removal import remove_marked
from capelin.embedded.management.status import Status, read_status
from capelin.embedded.processes import (
    Command,
    Declared,
    Process,
    Supervisor,
    kill_all,
    write_private,
)
from capelin.errors import (
    BusyError,
    InvalidInputError,
    NotReadyError,
    UserError,
)

_SUPERVISOR: Final = "supervisor"
_LOOK_SECONDS: Final = 0.05


def wanted(
    environment: Environment,
    *,
    kubernetes_version: str,
    providers: Iterable[str],
    durable: bool,
    existing: Existing | None = None,
) -> Settings:
    """What an environment is to be from now on: as it was, and the providers asked for now.

    Raises:
        InvalidInputError: if it runs another version of Kubernetes.
    """
    before = environment.settings()
    if before is None or existing is not None:
        kept = () if before is None else before.providers
        return Settings(
            kubernetes_version=kubernetes_version,
            providers=sorted({*kept, *providers}),
            durable=durable,
            existing=existing,
            ports={} if before is None else before.ports,
        )
    if before.kubernetes_version != kubernetes_version:
        raise InvalidInputError(
            f"Environment {environment.name} runs Kubernetes {before.kubernetes_version}.",
            reason="A management cluster keeps the version that it was started with.",
            hint="Choose another --name, or remove it first: "
            f"capelin down --name {environment.name}.",
        )
    return before.model_copy(update={"providers": sorted({*before.providers, *providers})})


def target_of(environment: Environment, asked: Target | None) -> Target:
    """Where the API server of an environment is: where it was, or else where it is asked for.

    Raises:
        InvalidInputError: if it was elsewhere.
    """
    before = environment.settings()
    if before is None:
        return asked or "process"
    if asked not in {None, before.target}:
        raise InvalidInputError(
            f"Environment {environment.name} has the target {before.target}.",
            reason="Its objects are in that API server, and nothing takes them to another.",
            hint=f"Leave out --target, choose another --name, or remove it first: "
            f"capelin down --name {environment.name}.",
        )
    return before.target


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
                    reason=f"It listens on port {port} whatever one says, and that is taken; "
                    "another environment may have this provider.",
                    hint="Take that one down first, or leave the provider out of --with.",
                )


async def start(environment: Environment, settings: Settings, access: Config | None = None) -> None:
    """Have an environment's supervisor work by these settings; what runs already runs on.

    `access` is what leads to the API server, where that is not our own.
    """
    environment.make_folders()
    if access is not None:
        write_private(environment.kubeconfig, access.flattened())
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


def found_in(environment: Environment) -> Existing | None:
    """The API server that an environment lives in, where it is not its own."""
    try:
        settings = environment.settings()
    except UserError:
        # An environment that cannot be read has to be removable all the same.
        return None
    return None if settings is None else settings.existing


async def follow(environment: Environment) -> AsyncGenerator[Status, None]:
    """What the supervisor says, whenever it says something else, until the environment is up.

    Raises:
        NotReadyError: if the supervisor ends.
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
    raise NotReadyError(
        f"Environment {environment.name} did not come up.",
        reason=f"Its supervisor {reason}.",
        hint=f"Read {environment.supervisor / 'supervisor.log'}, then try again.",
    )


async def remove(environment: Environment, *, there: bool = True) -> None:
    """End every process of an environment, and leave nothing of it behind.

    Where the API server is somebody else's, what is ours is taken out of it, unless not `there`.

    Raises:
        ClientError: if that cannot be done; the environment's folder stays then.
    """
    # The supervisor first, for it would start again what ends; then the managers, for they would
    # start again what they look after. What they have is removed: nothing needs an orderly end.
    for folder in (environment.supervisor, environment.processes, environment.folder):
        await kill_all(folder)
    if there and (existing := found_in(environment)) is not None:
        config = Config.from_kubeconfig(environment.kubeconfig)
        async with Client(config, manager=MANAGER) as client:
            await remove_marked(client, existing.mark)
    await asyncio.to_thread(shutil.rmtree, environment.folder)
