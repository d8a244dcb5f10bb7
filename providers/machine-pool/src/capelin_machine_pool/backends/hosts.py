"""The backend `Hosts`: machines that claim CapelinHosts. The reconciler of hosts does the rest."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from capelin.api.core import Node
from capelin.client import Client, Conflict
from capelin.contract import DELETING, READY, find_condition, upgrade_problem
from capelin.provider import Blocked

from capelin_machine_pool.api import CapelinMachine
from capelin_machine_pool.backends import InstanceStatus, NothingShared, Workload, node_taken
from capelin_machine_pool.bootstrap import Archives, NoArchiveError, is_version
from capelin_machine_pool.bootstrap_data import bootstrap_secret
from capelin_machine_pool.desired import Instance
from capelin_machine_pool.hosts.api import CapelinHost, HostClaim
from capelin_machine_pool.hosts.claims import (
    HostRequest,
    NoFreeHostError,
    change_claim,
    claim_host,
    holds,
    release_host,
)
from capelin_machine_pool.hosts.node_updates import (
    NodeStep,
    can_be_updated,
    cordon,
    current_version,
    evict_pods,
    next_node_step,
    uncordon,
    updated_claim,
)
from capelin_machine_pool.hosts.plan import is_bootstrapped
from capelin_machine_pool.plan import LATER, SOON
from capelin_machine_pool.reasons import Reason

_LONGEST_RELEASE: Final = timedelta(minutes=5)
"""How long a machine waits for the clean-up of its host. A dead host is cleaned later."""


class HostsBackend(NothingShared):
    """Machines that are existing hosts.

    Args:
        archives: Programs that are installed on hosts.
    """

    def __init__(self, archives: Archives | None = None) -> None:
        self._archives = archives or Archives(None)

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
                version=instance.version if is_version(instance.version) else None,
                profile=instance.hosts.profile,
                install_commands=instance.hosts.install_commands,
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
        return observed_status(instance, host, await _find_node(instance, host, workload))

    async def apply(
        self,
        instance: Instance,
        observed: InstanceStatus,
        workload: Workload,
        management: Client,
        now: datetime,
    ) -> InstanceStatus:
        """Give the Node its provider ID if the bootstrap data do not set it, or update it."""
        soon = now + timedelta(seconds=SOON)
        is_settled = not observed.running or observed.lost or not can_be_updated(instance.hosts)
        if instance.host is None or (observed.node is None and is_settled):
            return observed
        host = await management.find(CapelinHost, instance.host.name, instance.key.namespace)
        if observed.node is not None:
            taints = host.spec.taints if host is not None else ()
            await workload.set_provider_id(observed.node, instance.provider_id, taints)
            return replace(observed, changes_at=soon)
        node = await _find_node(instance, host, workload)
        if host is None or node is None or not holds(host, instance.host.claim):
            return observed
        waits = await self._update(instance, host, node, workload.client, management)
        return observed if waits is None else _updating(observed, waits, soon)

    async def _update(
        self,
        instance: Instance,
        host: CapelinHost,
        node: Node,
        workload: Client,
        management: Client,
    ) -> tuple[Reason, str] | None:
        """Carry out the next step of an update in place, and return why it is not complete."""
        version = instance.version
        match next_node_step(version, instance.hosts, host, node):
            case NodeStep.NOTHING:
                return None
            case NodeStep.UNCORDON:
                await uncordon(workload, node)
                return None
            case NodeStep.WAIT_FOR_NODE:
                return Reason.UPDATING, f"the kubelet does not report {version} yet"
            case NodeStep.WAIT_FOR_HOST:
                return _host_problem(host) or _begins(host)
            case NodeStep.DRAIN:
                return await self._prepare(instance, host, node, workload, management)

    async def _prepare(
        self,
        instance: Instance,
        host: CapelinHost,
        node: Node,
        workload: Client,
        management: Client,
    ) -> tuple[Reason, str]:
        """Drain a Node, and have its host updated afterwards."""
        version, claim = instance.version, host.spec.claim
        current = current_version(host, claim, node) if claim else ""
        for text in (current, version):
            if not is_version(text):
                return Reason.UPDATE_FAILED, f"{text!r} is not a version: write v1.2.3"
        if problem := upgrade_problem(current, version):
            return Reason.UPDATE_FAILED, f"no update in place: {problem}"
        if instance.hosts.profile == "Bundle":
            info = host.status.node_info if host.status else None
            try:
                await self._archives.find(version, info.architecture if info else "")
            except NoArchiveError as error:
                return Reason.ARCHIVE_MISSING, str(error)
        await cordon(workload, node, version)
        if (pods := await evict_pods(workload, node)) is not None:
            return Reason.UPDATING, pods
        if claim is not None:
            await change_claim(management, host, updated_claim(claim, version, instance.hosts))
        return _begins(host)

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
    if (problem := _host_problem(host)) is None:
        return _waiting(f"the host {host.name} begins its bootstrap")
    reason, message = problem
    return _waiting(message, reason)


def _host_problem(host: CapelinHost) -> tuple[Reason, str] | None:
    """The reason and the message of a host that is not ready."""
    ready = find_condition(host.status.conditions, READY) if host.status else None
    if ready is None or ready.status == "True":
        return None
    reasons = {str(reason): reason for reason in Reason}
    reason = reasons.get(ready.reason, Reason.WAITING_FOR_HOST)
    return reason, f"host {host.name}: {ready.message}"


def _begins(host: CapelinHost) -> tuple[Reason, str]:
    return Reason.UPDATING, f"host {host.name}: the update begins"


def _updating(
    observed: InstanceStatus, waits: tuple[Reason, str], soon: datetime
) -> InstanceStatus:
    reason, message = waits
    # A problem that a person has to solve is not looked at as often.
    again = soon if reason is Reason.UPDATING else None
    return replace(observed, updating=True, reason=reason, message=message, changes_at=again)


async def _find_node(
    instance: Instance, host: CapelinHost | None, workload: Workload
) -> Node | None:
    names = [instance.key.name, host.status.host_name if host and host.status else None]
    for name in dict.fromkeys(filter(None, names)):
        if (node := await workload.find_node(name)) is not None:
            return node
    return None


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
