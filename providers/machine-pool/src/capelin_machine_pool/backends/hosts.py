"""The backend `Hosts`: machines that claim CapelinHosts. The reconciler of hosts does the rest."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from capelin.api.core import Node
from capelin.client import Client, Conflict
from capelin.contract import DELETING, READY, find_condition
from capelin.provider import Blocked

from capelin_machine_pool.api import CapelinMachine
from capelin_machine_pool.backends import InstanceStatus, NothingShared, Workload, node_taken
from capelin_machine_pool.bootstrap_data import bootstrap_secret
from capelin_machine_pool.desired import Instance
from capelin_machine_pool.hosts.api import CapelinHost, HostClaim
from capelin_machine_pool.hosts.claims import (
    HostRequest,
    NoFreeHostError,
    claim_host,
    holds,
    release_host,
)
from capelin_machine_pool.hosts.plan import is_bootstrapped
from capelin_machine_pool.plan import LATER, SOON
from capelin_machine_pool.reasons import Reason

_LONGEST_RELEASE: Final = timedelta(minutes=5)
"""How long a machine waits for the clean-up of its host. A dead host is cleaned later."""


class HostsBackend(NothingShared):
    """Machines that are existing hosts."""

    @property
    def deletes_nodes(self) -> bool:
        return False

    async def allocate(self, instance: Instance, management: Client) -> str:
        """Claim a host.

        Raises:
            Blocked: No host is free, or the bootstrap data do not exist.
            Conflict: Another controller works on the same machine.
        """
        machine = await management.get(CapelinMachine, instance.key.name, instance.key.namespace)
        if machine.uid != instance.uid:
            raise Conflict(409, "Conflict", "another machine has this name by now")
        if machine.metadata.deletion_timestamp is not None:
            return instance.provider_id
        reference = machine.spec.host
        if reference is not None:
            host = await management.find(CapelinHost, reference.name, instance.key.namespace)
            if instance.provisioned or holds(host, reference.claim):
                return instance.provider_id
        request = HostRequest(
            claim=HostClaim(
                id=reference.claim if reference else machine.uid,
                machine=machine.name,
                cluster=instance.cluster,
                pool=instance.pool,
                provider_id=instance.provider_id,
                bootstrap_secret=await bootstrap_secret(instance, management),
                clean_commands=instance.hosts.clean_commands,
            ),
            match_labels=instance.hosts.match_labels,
            failure_domain=instance.failure_domain,
        )
        try:
            await claim_host(management, machine, request)
        except NoFreeHostError as error:
            hint = "add a host, or read capelin hosts list"
            raise Blocked(Reason.NO_FREE_HOST, str(error), hint, retry_seconds=LATER) from error
        return instance.provider_id

    async def observe(
        self, instance: Instance, workload: Workload, management: Client
    ) -> InstanceStatus:
        """The state of a machine by its host and its Node."""
        if instance.host is None:
            return _waiting("its host was claimed a moment ago")
        host = await management.find(CapelinHost, instance.host.name, instance.key.namespace)
        if not holds(host, instance.host.claim):
            return observed_status(instance, None, None)
        names = [instance.key.name, host.status.host_name if host and host.status else None]
        for name in dict.fromkeys(filter(None, names)):
            if (node := await workload.client.find(Node, name)) is not None:
                return observed_status(instance, host, node)
        return observed_status(instance, host, None)

    async def apply(
        self,
        instance: Instance,
        observed: InstanceStatus,
        workload: Workload,
        management: Client,
        now: datetime,
    ) -> InstanceStatus:
        """Give the Node its provider ID, if the bootstrap data do not set it."""
        del management
        if observed.node is None:
            return observed
        await workload.set_provider_id(observed.node, instance.provider_id)
        return replace(observed, changes_at=now + timedelta(seconds=SOON))

    async def delete(
        self, machine: CapelinMachine, workload: Client | None, management: Client, now: datetime
    ) -> None:
        """Release the host, and wait until it is clean.

        Raises:
            Blocked: The clean-up is not complete.
        """
        del workload
        for host in await _hosts_of(machine, management):
            claim = host.spec.claim
            if claim is None or claim.released_at is None:
                await release_host(management, host, now)
                message = f"the host {host.name} is being cleaned"
                raise Blocked(DELETING, message, retry_seconds=SOON)
            if must_wait(host, claim, now):
                ready = find_condition(host.status.conditions, READY) if host.status else None
                message = f"the host {host.name} is being cleaned"
                detail = f": {ready.message}" if ready and ready.message else ""
                raise Blocked(DELETING, message + detail, retry_seconds=SOON)


def observed_status(
    instance: Instance, host: CapelinHost | None, node: Node | None
) -> InstanceStatus:
    """The state of a machine.

    Args:
        instance: The machine.
        host: Its host, or None if the host no longer belongs to it.
        node: The Node with the name of the machine or the host.

    Raises:
        Blocked: The Node is another machine's.
    """
    if host is None:
        return _released(instance)
    if node is not None and node.spec.provider_id == instance.provider_id:
        status = host.status
        return InstanceStatus(running=True, addresses=tuple(status.addresses if status else ()))
    if instance.provisioned and node is None:
        return InstanceStatus(running=True, lost=True, message="its Node was deleted")
    if not is_bootstrapped(host):
        return _bootstrapping(host)
    if node is None:
        return _waiting(f"the host {host.name} has joined, and its Node does not exist yet")
    if node.spec.provider_id:
        raise node_taken(node)
    return replace(_waiting(f"the Node {node.name} gets its provider ID"), node=node.name)


def _released(instance: Instance) -> InstanceStatus:
    if instance.provisioned:
        return InstanceStatus(running=True, lost=True, message="its host was released")
    return _waiting("its host was released, and it claims another one")


def _bootstrapping(host: CapelinHost) -> InstanceStatus:
    ready = find_condition(host.status.conditions, READY) if host.status else None
    if ready is None or ready.status == "True":
        return _waiting(f"the host {host.name} begins its bootstrap")
    reasons = {str(reason): reason for reason in Reason}
    reason = reasons.get(ready.reason, Reason.WAITING_FOR_HOST)
    return _waiting(f"host {host.name}: {ready.message}", reason)


def must_wait(host: CapelinHost, claim: HostClaim, now: datetime) -> bool:
    """Whether a machine waits for the clean-up of its host, so that no process of it remains."""
    is_broken = host.status is not None and host.status.phase == "Broken"
    since = claim.released_at or now
    return not is_broken and now - since < _LONGEST_RELEASE


def _waiting(message: str, reason: Reason = Reason.WAITING_FOR_HOST) -> InstanceStatus:
    return InstanceStatus(running=False, reason=reason, message=message)


async def _hosts_of(machine: CapelinMachine, management: Client) -> list[CapelinHost]:
    """The hosts that a machine has claimed: several, if two controllers worked at the same time."""
    ids = {machine.uid, machine.spec.host.claim if machine.spec.host else machine.uid}
    hosts = (await management.list(CapelinHost, machine.namespace)).items
    return [host for host in hosts if host.spec.claim is not None and host.spec.claim.id in ids]
