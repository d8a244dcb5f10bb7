"""The backend `Containers`: machines that are containers on the provider's machine.

The engine and the container keep all progress. The container's name follows from the machine's uid,
and the marker in it makes the bootstrap happen once.
"""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from capelin.api.core import Node
from capelin.client import Client
from capelin.contract import DELETING
from capelin.provider import Blocked

from capelin_machine_pool.api import CapelinMachine
from capelin_machine_pool.backends import InstanceStatus, NothingShared, Workload, node_taken
from capelin_machine_pool.bootstrap import (
    BootstrapStep,
    CloudConfig,
    CommandResult,
    HostState,
    MachineBootstrap,
    Transport,
    TransportError,
    bootstrap_message,
    observe,
)
from capelin_machine_pool.bootstrap.transport import MAX_OUTPUT_BYTES
from capelin_machine_pool.bootstrap_data import bootstrap_config, bootstrap_secret
from capelin_machine_pool.containers.desired import (
    UID_LABEL,
    ContainerPolicy,
    allowed_image,
    container_addresses,
    container_body,
    container_name,
)
from capelin_machine_pool.containers.engine import Container, Engine, EngineError
from capelin_machine_pool.desired import Instance, has_heartbeats
from capelin_machine_pool.plan import LATER, SOON
from capelin_machine_pool.reasons import Reason

_POLL: Final = timedelta(seconds=1)
_LOOK: Final = timedelta(seconds=LATER)
"""How often to look whether a container still runs."""
_BOOTED: Final = "systemctl is-system-running 2>/dev/null | grep -qx -e running -e degraded"
_ENDED: Final = frozenset({"exited", "dead"})


class ContainerTransport(Transport):
    """Runs commands in one container."""

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine = engine
        self._container = container

    async def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        timeout_seconds: float = 30,
        max_output: int = MAX_OUTPUT_BYTES,
    ) -> CommandResult:
        shell = ["/bin/sh", "-c", command]
        try:
            async with asyncio.timeout(timeout_seconds):
                end = await self._engine.execute(
                    self._container, shell, stdin, max_output=max_output
                )
        except TimeoutError:
            raise TransportError("a command in the container does not end in time") from None
        except EngineError as error:
            raise TransportError(str(error)) from error
        return CommandResult(end.exit_code, end.output, end.errors)


class ContainersBackend(NothingShared):
    """Machines that are containers."""

    def __init__(self, engine: Engine, policy: ContainerPolicy) -> None:
        self._engine = engine
        self._policy = policy

    @property
    def deletes_nodes(self) -> bool:
        return False

    async def allocate(self, instance: Instance, management: Client) -> str:
        """Check that the administrator allows the machine.

        Raises:
            Blocked: The provider does not run containers, or not this image.
        """
        del management
        if not instance.provisioned:
            allowed_image(instance, self._policy)
        return instance.provider_id

    async def observe(
        self, instance: Instance, workload: Workload, management: Client
    ) -> InstanceStatus:
        """The state of a machine by its container and its Node."""
        del management
        node = await workload.find_node(instance.key.name)
        try:
            container = await self._find(instance.key.name, instance.uid)
        except EngineError as error:
            raise _unavailable(error) from error
        return observed_status(instance, container, node)

    async def apply(
        self,
        instance: Instance,
        observed: InstanceStatus,
        workload: Workload,
        management: Client,
        now: datetime,
    ) -> InstanceStatus:
        """Start the container, take the next step of its bootstrap, or carry out its fault."""
        try:
            if observed.node is not None:
                await workload.set_provider_id(observed.node, instance.provider_id)
                return replace(observed, changes_at=now + _POLL)
            if observed.lost or observed.failed:
                return replace(observed, changes_at=now + _LOOK)
            if observed.running:
                return await self._carry_out_fault(instance, observed, now)
            if observed.reason is Reason.CONTAINER_ENDED:
                return replace(observed, changes_at=now + _LOOK)
            if instance.fault == "never boots":
                message = "it never boots because of spec.containers.faults"
                return replace(observed, message=message)
            return await self._bootstrap(instance, management, now)
        except EngineError as error:
            raise _unavailable(error) from error

    async def delete(
        self, machine: CapelinMachine, workload: Client | None, management: Client, now: datetime
    ) -> None:
        """Remove the machine's container, and no other one of that name.

        Raises:
            Blocked: The engine does not answer.
        """
        del workload, management, now
        try:
            container = await self._find(machine.name, machine.uid)
            if container is not None:
                await self._engine.remove(container.id)
        except EngineError as error:
            # Without the option, the provider may have no engine.
            if self._policy.images:
                raise Blocked(DELETING, str(error), retry_seconds=SOON) from error

    async def _find(self, machine: str, uid: str) -> Container | None:
        container = await self._engine.find(container_name(machine, uid))
        is_own = container is not None and container.labels.get(UID_LABEL) == uid
        return container if is_own else None

    async def _bootstrap(
        self, instance: Instance, management: Client, now: datetime
    ) -> InstanceStatus:
        # It boots while the bootstrap provider prepares the data.
        container = await self._started(instance)
        secret = await bootstrap_secret(instance, management)
        config = await bootstrap_config(
            management,
            instance.key.namespace,
            secret,
            machine=instance.key.name,
            uid=instance.uid,
            provider_id=instance.provider_id,
        )
        transport = ContainerTransport(self._engine, container)
        machine = MachineBootstrap(
            uid=instance.uid, name=f"{instance.key.namespace}/{instance.key.name}"
        )
        try:
            state = await observe(transport)
            if state.marker is None and (await transport.run(_BOOTED)).exit_code != 0:
                return waiting("its container boots", now)
            step = await machine.bootstrap(transport, config, state)
            if step is BootstrapStep.MARK:
                state = await observe(transport)
                step = await machine.bootstrap(transport, config, state)
        except TransportError as error:
            # The connection may end with the container. The next look shows it.
            return waiting(str(error), now, Reason.ENGINE_UNAVAILABLE)
        return bootstrap_status(step, state, config, now)

    async def _started(self, instance: Instance) -> str:
        """The id of the container, which runs. Every step can have been carried out before."""
        container = await self._find(instance.key.name, instance.uid)
        if container is None:
            body = container_body(instance, self._policy)
            name = container_name(instance.key.name, instance.uid)
            identifier = await self._engine.create(body, name)
        elif container.state == "created":
            identifier = container.id
        else:
            return container.id
        await self._engine.start(identifier)
        return identifier

    async def _carry_out_fault(
        self, instance: Instance, observed: InstanceStatus, now: datetime
    ) -> InstanceStatus:
        heartbeats, changes_at = has_heartbeats(instance, now)
        if heartbeats != observed.heartbeats:
            name = container_name(instance.key.name, instance.uid)
            await self._engine.pause(name, on=not heartbeats)
        soonest = min(filter(None, (changes_at, now + _LOOK)))
        return replace(observed, heartbeats=heartbeats, changes_at=soonest)


def observed_status(
    instance: Instance, container: Container | None, node: Node | None
) -> InstanceStatus:
    """The state of a machine.

    Args:
        instance: The machine.
        container: Its container, or None if it does not exist.
        node: The Node of the machine's name.

    Raises:
        Blocked: The Node is another machine's.
    """
    addresses = container_addresses(instance.key.name, container)
    is_own = node is not None and node.spec.provider_id == instance.provider_id
    if is_own or instance.provisioned:
        status = InstanceStatus(running=True, addresses=addresses)
        if container is None or node is None:
            missing = "container" if container is None else "Node"
            return replace(status, lost=True, message=f"its {missing} was deleted")
        if container.state in _ENDED:
            return replace(
                status, failed=True, reason=Reason.CONTAINER_ENDED, message=_ended(container)
            )
        if is_own:
            return replace(status, heartbeats=container.state != "paused")
    if node is not None and node.spec.provider_id:
        raise node_taken(node)
    if container is not None and container.state in _ENDED:
        message = _ended(container)
        return InstanceStatus(running=False, reason=Reason.CONTAINER_ENDED, message=message)
    if node is not None and container is not None:
        message = f"the Node {node.name} gets its provider ID"
        return InstanceStatus(running=False, node=node.name, message=message)
    return InstanceStatus(running=False, message="its container starts")


def bootstrap_status(
    step: BootstrapStep, state: HostState, config: CloudConfig, now: datetime
) -> InstanceStatus:
    """The state of a machine after a step of its bootstrap."""
    message = bootstrap_message(step, state, config)
    match step:
        case BootstrapStep.MARK | BootstrapStep.START | BootstrapStep.WAIT:
            return waiting(message, now, Reason.BOOTSTRAPPING)
        case BootstrapStep.SUCCEEDED:
            return waiting("it has joined, and its Node does not exist yet", now)
        case _:
            failed = InstanceStatus(running=False, reason=Reason.BOOTSTRAP_FAILED, message=message)
            return replace(failed, changes_at=now + _LOOK)


def waiting(message: str, now: datetime, reason: Reason = Reason.STARTING) -> InstanceStatus:
    """The state of a machine whose next step is due in a moment."""
    return InstanceStatus(running=False, reason=reason, message=message, changes_at=now + _POLL)


def _ended(container: Container) -> str:
    return f"its container ended with exit code {container.exit_code}"


def _unavailable(error: EngineError) -> Blocked:
    return Blocked(Reason.ENGINE_UNAVAILABLE, str(error), retry_seconds=SOON)
