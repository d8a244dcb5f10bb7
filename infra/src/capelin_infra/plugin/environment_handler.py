"""The resource `Environment`, equal to `capelin up --management-only`."""

import asyncio
import os
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Final

from capelin.errors import BusyError, UserError, WaitTimeoutError
from capelin_cli.environments.bring_up import STAGE_TITLES, waiting_for
from capelin_cli.environments.connection import unusable_server
from capelin_cli.environments.kubeconfigs import kubeconfig_file
from capelin_cli.terminal.waiting import Show
from capelin_embedded.binaries import (
    DEFAULT_KUBERNETES,
    Binaries,
    ProgressEvent,
    check_kubernetes_version,
)
from capelin_embedded.management import (
    Environment,
    FetchPrograms,
    FetchProviderPrograms,
    Status,
    UpRequest,
    UpView,
    carry_out,
    current_status,
    environment_named,
    observe,
    plan_up,
    remove_environment,
    required_programs,
)
from capelin_embedded.processes import write_private

from capelin_infra.plugin.clusters import accept_outage, cluster_uid, is_another_server
from capelin_infra.plugin.containers import container_machines
from capelin_infra.plugin.resource import (
    Difference,
    Operation,
    PartlyCreatedError,
    ResourceHandler,
    changed_inputs,
    failures,
    inputs_of,
    read_kubeconfig,
    text_of,
)
from capelin_infra.resource_types import ENVIRONMENT, EnvironmentInputs, EnvironmentState

_OWNER: Final = "pulumi-resource"
"""The file in an environment's folder that names its Pulumi resource."""

_KUBECONFIG: Final = "existingKubeconfig"


class EnvironmentHandler(ResourceHandler[EnvironmentInputs, EnvironmentState]):
    """Environments by the same functions as `capelin up` and `capelin down`."""

    kind = ENVIRONMENT

    def check(self, inputs: EnvironmentInputs) -> dict[str, str]:
        version = inputs.kubernetes_version
        return failures(
            {
                "name": lambda: environment_named(inputs.name),
                "providers": lambda: required_programs(DEFAULT_KUBERNETES, inputs.providers),
                "kubernetesVersion": lambda: version and check_kubernetes_version(version),
                _KUBECONFIG: lambda: read_kubeconfig(inputs.existing_kubeconfig),
            }
        )

    def diff(self, old: EnvironmentState, new: EnvironmentInputs) -> Difference:
        # Without a version, the cluster keeps the one it has, whatever the default is.
        unset = frozenset({"kubernetesVersion"} if new.kubernetes_version is None else ())
        difference = changed_inputs(self.kind, old, new, passed_over=unset)
        # Credentials may be renewed.
        changed, replaced = difference.changed, difference.replaced - {_KUBECONFIG}
        if is_another_server(old.existing_kubeconfig, new.existing_kubeconfig):
            replaced |= {_KUBECONFIG}
        if not old.running:
            changed |= {"running"}
        return Difference(changed, replaced)

    async def create(
        self, inputs: EnvironmentInputs, operation: Operation
    ) -> tuple[str, EnvironmentState]:
        environment = environment_named(inputs.name)
        owner = environment.folder / _OWNER
        if environment.exists and text_of(owner) != operation.urn:
            raise BusyError(
                f"There is an environment {inputs.name} already.",
                reason="This resource did not create it.",
                hint=f"Choose another name, remove it with capelin down -e {inputs.name}, or "
                f"import it: pulumi import {self.kind.token} NAME {inputs.name}",
            )
        with environment.locked("pulumi up"):
            environment.make_folders()
            write_private(owner, operation.urn.encode())
            return inputs.name, await _brought_up(environment, inputs, operation, None)

    async def read(self, id_: str, state: EnvironmentState | None) -> EnvironmentState | None:
        environment = environment_named(id_)
        settings = environment.settings()
        if settings is None:
            return None
        status = current_status(environment)
        running = status is not None and status.is_up and not await unusable_server(environment)
        if state is None:
            existing = None if settings.existing is None else text_of(environment.kubeconfig)
            inputs = EnvironmentInputs(
                name=id_,
                providers=settings.providers,
                kubernetes_version=settings.kubernetes_version,
                existing_kubeconfig=existing,
            )
        else:
            inputs = inputs_of(EnvironmentInputs, state).model_copy(
                update={"providers": settings.providers}
            )
        return await _state(environment, inputs, state, running=running)

    async def update(
        self, id_: str, old: EnvironmentState, new: EnvironmentInputs, operation: Operation
    ) -> EnvironmentState:
        environment = environment_named(id_)
        with environment.locked("pulumi up"):
            return await _brought_up(environment, new, operation, old)

    async def delete(self, id_: str, state: EnvironmentState, operation: Operation) -> None:
        del state
        environment = environment_named(id_)
        if not environment.folder.is_dir():
            return
        operation.show("stopping the processes")
        obstacle = await unusable_server(environment)
        if obstacle is not None:
            accept_outage(obstacle)
        with environment.locked("pulumi destroy"):
            await remove_environment(environment, there=obstacle is None)


async def _brought_up(
    environment: Environment,
    inputs: EnvironmentInputs,
    operation: Operation,
    before: EnvironmentState | None,
) -> EnvironmentState:
    try:
        async with asyncio.timeout(operation.seconds):
            await _follow(environment, inputs, operation.show)
    except TimeoutError:
        error = WaitTimeoutError(
            f"Environment {inputs.name} is not up after {operation.seconds:.0f} s.",
            reason=waiting_for(current_status(environment)),
            hint=f"See capelin logs -e {inputs.name}. pulumi up continues with it.",
        )
        raise await _partly(environment, inputs, before, error) from None
    except (UserError, asyncio.CancelledError) as error:
        raise await _partly(environment, inputs, before, error) from None
    return await _state(environment, inputs, before, running=True)


async def _follow(environment: Environment, inputs: EnvironmentInputs, show: Show) -> None:
    existing = inputs.existing_kubeconfig
    machines = await container_machines(inputs.machine_images)
    with nullcontext() if existing is None else kubeconfig_file(existing) as kubeconfig:
        request = UpRequest(
            kubernetes_version=inputs.kubernetes_version,
            providers=tuple(inputs.providers),
            target="process" if kubeconfig is None else "existing",
            kubeconfig=kubeconfig,
            variables={} if machines is None else machines.variables(os.environ),
        )
        steps = plan_up(request, await observe(environment, request))
        await carry_out(environment, steps, _View(show))


class _View(UpView):
    def __init__(self, show: Show) -> None:
        self._show = show

    @contextmanager
    def fetching(self, step: FetchPrograms | FetchProviderPrograms) -> Generator[Binaries]:
        def show(event: ProgressEvent) -> None:
            self._show(f"programs: {str(event).splitlines()[0]}")

        self._show(f"programs of Kubernetes {step.settings.kubernetes_version}")
        yield Binaries(progress=show)

    def progressed(self, status: Status) -> None:
        for stage in status.stages:
            if stage.state != "Done":
                detail = stage.message or waiting_for(status)
                self._show(f"waiting for {STAGE_TITLES[stage.name]}: {detail}".removesuffix(": "))
                return


async def _partly(
    environment: Environment,
    inputs: EnvironmentInputs,
    before: EnvironmentState | None,
    cause: BaseException,
) -> BaseException:
    """The error, with the environment's state if any part of it exists already."""
    if not environment.exists:
        return cause
    state = await _state(environment, inputs, before, running=False)
    return PartlyCreatedError(inputs.name, state, cause)


async def _state(
    environment: Environment,
    inputs: EnvironmentInputs,
    before: EnvironmentState | None,
    *,
    running: bool,
) -> EnvironmentState:
    settings = environment.settings()
    kubeconfig = text_of(environment.kubeconfig)
    known = ("", "") if before is None else (before.kubeconfig, before.uid)
    return EnvironmentState(
        **inputs.model_dump(by_alias=False),
        uid=await cluster_uid(kubeconfig, *known) if running else known[1],
        kubeconfig=kubeconfig,
        context=environment.context,
        version="" if settings is None else settings.server_version,
        folder=str(environment.folder),
        running=running,
    )
