"""Reconciles CapelinHosts: visits them, and ends the claims of hosts that are clean."""

from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

from capelin.api.capi import Cluster
from capelin.client import Client, Conflict, Destinations
from capelin.contract import (
    DELETE_FOR_MOVE_ANNOTATION,
    DELETING,
    READY,
    ConditionSpec,
    find_condition,
    paused,
    update_conditions,
)
from capelin.controller import (
    After,
    Context,
    Done,
    For,
    ObjectKey,
    Permission,
    Reconciler,
    Result,
)
from capelin.provider import Blocked

from capelin_machine_pool.api import CapelinMachine
from capelin_machine_pool.bootstrap import (
    NOTHING,
    Archives,
    CloudConfig,
    Installation,
)
from capelin_machine_pool.bootstrap_data import bootstrap_config
from capelin_machine_pool.desired import FINALIZER
from capelin_machine_pool.hosts.api import RENEW_BASELINE_ANNOTATION, CapelinHost, HostClaim
from capelin_machine_pool.hosts.claims import (
    end_claim,
    end_request,
    holds,
    record_baseline,
    reject_request,
    release_host,
)
from capelin_machine_pool.hosts.connections import ssh_target
from capelin_machine_pool.hosts.plan import (
    Orphaned,
    RejectRequest,
    Release,
    Visit,
    Wait,
    next_host_step,
)
from capelin_machine_pool.hosts.power import SILENCE, PowerSwitch, begin_cycle, is_cycle_due
from capelin_machine_pool.hosts.status import (
    POWER_CYCLED,
    Outcome,
    VisitResult,
    begun,
    broken,
    claimed,
    host_status,
    outcome,
)
from capelin_machine_pool.hosts.visits import (
    VisitPlan,
    Visits,
    Work,
    carry_out,
    learn_key,
    power_cycle,
)
from capelin_machine_pool.reasons import Reason

_ORPHANED_SECONDS = 60.0
_CREDENTIALS_SECONDS = 30.0
_PAUSED_SECONDS = 30.0


class HostReconciler(Reconciler[CapelinHost]):
    """Moves hosts from free to ready and back. Machines only claim and release them."""

    watches = (For(CapelinHost),)
    permissions = (
        Permission("infrastructure.cluster.x-k8s.io", ("capelinmachines",), ("get",)),
        Permission("cluster.x-k8s.io", ("clusters",), ("get",)),
        Permission("", ("secrets",), ("get",)),
    )

    def __init__(
        self,
        destinations: Destinations | None = None,
        archives: Archives | None = None,
        power_commands: Path | None = None,
        silence: timedelta = SILENCE,
    ) -> None:
        self._destinations = destinations
        self._archives = archives or Archives(None)
        self._power = PowerSwitch(power_commands, destinations)
        self._silence = silence
        self._visits = Visits(self.wake)

    @asynccontextmanager
    async def lifespan(self, ctx: Context, /) -> AsyncGenerator[object]:
        """End the visits with the manager."""
        del ctx
        self._visits = Visits(self.wake)
        try:
            yield
        finally:
            await self._visits.close()

    async def reconcile(self, ctx: Context, host: CapelinHost, /) -> Result:
        """Begin a visit, or use the result of one."""
        key = ObjectKey(host.namespace or "", host.name)
        is_deleted = host.metadata.deletion_timestamp is not None
        is_moved = DELETE_FOR_MOVE_ANNOTATION in host.metadata.annotations
        if is_moved or (is_deleted and host.spec.claim is None):
            # clusterctl removes the finalizer of a host that it has moved, and then deletes it.
            self._visits.forget(key)
            if is_deleted:
                await ctx.remove_finalizer(host, FINALIZER)
            return Done()
        if not is_deleted:
            await ctx.add_finalizer(host, FINALIZER)
        if self._visits.pending(key) == _power_purpose(host) or is_cycle_due(
            host, ctx.now(), self._silence
        ):
            return await self._visit(ctx, host, key, Visit.POWER_CYCLE)
        step = next_host_step(host, await _machine_of(ctx.client, host))
        if step is Visit.UPDATE and await _holds_updates(ctx.client, host):
            return After(_PAUSED_SECONDS)
        if isinstance(step, Visit):
            return await self._visit(ctx, host, key, step)
        return await self._step(ctx, host, step)

    async def _step(
        self, ctx: Context, host: CapelinHost, step: Wait | Release | Orphaned | RejectRequest
    ) -> Result:
        match step:
            case Wait(seconds):
                await _report(ctx, host, None, claimed())
                return After(seconds)
            case RejectRequest(message, annotation):
                await reject_request(ctx.client, host, annotation)
                is_renewal = annotation == RENEW_BASELINE_ANNOTATION
                reason = "RenewalRejected" if is_renewal else "CleanUpRejected"
                ctx.event(host, "Warning", reason, message)
                return Done()
            case Release():
                await release_host(ctx.client, host, ctx.now())
                return Done()
            case Orphaned(reason, message):
                await _report(ctx, host, None, broken(reason, message))
                return After(_ORPHANED_SECONDS)

    async def on_missing(self, ctx: Context, key: ObjectKey) -> None:
        """End the visit of a host that no longer exists."""
        del ctx
        self._visits.forget(key)

    async def _visit(self, ctx: Context, host: CapelinHost, key: ObjectKey, visit: Visit) -> Result:
        is_power = visit is Visit.POWER_CYCLE
        purpose: Hashable = (visit, host.uid, host.metadata.generation)
        purpose = _power_purpose(host) if is_power else purpose
        result = self._visits.result(key, purpose)
        if result is not None:
            return await self._use(ctx, host, key, result)
        if self._visits.is_due(key, purpose):
            if is_power:
                await begin_cycle(ctx.client, host, ctx.now())
            try:
                work = await self._work(ctx.client, host, visit)
            except Blocked as error:
                failure = VisitResult(visit=visit, failure=(Reason(error.reason), str(error)))
                await _report(ctx, host, None, outcome(host, failure))
                return After(_CREDENTIALS_SECONDS)
            if (beginning := begun(host, visit)) is not None:
                await _report(ctx, host, None, beginning)
            self._visits.start(key, purpose, visit, work, host.spec.bastion)
        return After(self._visits.seconds_left(key))

    async def _use(
        self, ctx: Context, host: CapelinHost, key: ObjectKey, result: VisitResult
    ) -> Result:
        """Report the result of a visit, and carry out its consequences."""
        if result.host_key is not None:
            await _trust(ctx, host, result.host_key)
        its = outcome(host, result)
        if its.baseline is not None:
            await record_baseline(ctx.client, host, its.baseline)
        # First the status: a claim that has ended must not leave a host that looks free.
        await _report(ctx, host, result, its)
        if its.ends_claim and host.spec.claim is not None:
            await end_claim(ctx.client, host, host.spec.claim)
        if its.ends_request:
            await end_request(ctx.client, host)
        self._visits.settle(key, its.again_after)
        return After(its.again_after)

    async def _work(self, client: Client, host: CapelinHost, visit: Visit) -> Work:
        spec, claim = host.spec, host.spec.claim
        if visit is Visit.LEARN_KEY:
            return partial(learn_key, spec.address, spec.port, self._destinations)
        if visit is Visit.POWER_CYCLE:
            return partial(power_cycle, partial(self._power.cycle, client, host))
        target = await ssh_target(client, host)
        plan = VisitPlan(
            visit=visit,
            connect=partial(target.connect, self._destinations),
            uid=None if claim is None else claim.id,
            machine="" if claim is None else f"{host.namespace}/{claim.machine}",
            read_config=None
            if claim is None or visit is not Visit.BOOTSTRAP
            else partial(_bootstrap_config, client, host.namespace or "", claim),
            clean_commands=() if claim is None else tuple(claim.clean_commands),
            installation=(installation := _installation(host, visit)),
            find_archive=partial(self._archives.find, installation.version)
            if claim is not None and claim.profile == "Bundle"
            else None,
            is_claimed=None if claim is None else partial(_is_claimed, client, host, claim),
            # A Broken host becomes the baseline only after a person confirms that it is clean.
            takes_baseline=host.status is not None and host.status.phase != "Broken",
        )
        return partial(carry_out, plan)


def _power_purpose(host: CapelinHost) -> Hashable:
    """A power cycle does not end when the spec changes."""
    return Visit.POWER_CYCLE, host.uid


def _installation(host: CapelinHost, visit: Visit) -> Installation:
    """The programs that a visit installs, without their archive."""
    claim = host.spec.claim
    if claim is None or visit not in {Visit.BOOTSTRAP, Visit.UPDATE}:
        return NOTHING
    version = (claim.update_version if visit is Visit.UPDATE else claim.version) or ""
    return Installation(version=version, commands=tuple(claim.install_commands))


async def _holds_updates(client: Client, host: CapelinHost) -> bool:
    """Whether its Cluster is paused, so that no update begins. One that runs continues."""
    claim = host.spec.claim
    if claim is None or (host.status is not None and host.status.phase == "Updating"):
        return False
    cluster = await client.find(Cluster, claim.cluster, host.namespace)
    return cluster is not None and paused(host, cluster).status == "True"


async def _machine_of(client: Client, host: CapelinHost) -> CapelinMachine | None:
    claim = host.spec.claim
    if claim is None or claim.released_at is not None:
        return None
    return await client.find(CapelinMachine, claim.machine, host.namespace)


async def _is_claimed(client: Client, host: CapelinHost, claim: HostClaim) -> bool:
    live = await client.find(CapelinHost, host.name, host.namespace)
    if live is None or live.uid != host.uid or live.spec.claim is None:
        return False
    return holds(live, claim.id) and live.spec.claim.update_version == claim.update_version


async def _bootstrap_config(client: Client, namespace: str, claim: HostClaim) -> CloudConfig:
    return await bootstrap_config(
        client,
        namespace,
        claim.bootstrap_secret,
        machine=claim.machine,
        uid=claim.id,
        provider_id=claim.provider_id,
    )


async def _trust(ctx: Context, host: CapelinHost, key: str) -> None:
    """Write the key of a host to its spec. From now on, no other key is accepted.

    Raises:
        Conflict: The host has changed.
    """
    if host.spec.host_keys or not host.spec.trust_on_first_use:
        raise Conflict(409, "Conflict", "the keys of the host have changed")
    patch = {
        "metadata": {"resourceVersion": host.metadata.resource_version},
        "spec": {"hostKeys": [key]},
    }
    written = await ctx.client.patch(CapelinHost, host.name, host.namespace, patch)
    host.metadata = written.metadata
    message = f"the provider trusts the key {key} from now on"
    ctx.event(host, "Normal", "HostKeyTrusted", message)


async def _report(
    ctx: Context, host: CapelinHost, result: VisitResult | None, its: Outcome
) -> None:
    """Write the status of a host, if it has changed, with an event for a new problem."""
    before = host.status.conditions if host.status else []
    known = {(condition.type, condition.reason) for condition in before}
    specs = list(its.conditions)
    for spec in specs:
        is_reported = spec.type in {READY, POWER_CYCLED} and spec.reason in _WARNED
        if is_reported and spec.status == "False" and (spec.type, spec.reason) not in known:
            ctx.event(host, "Warning", spec.reason, spec.message)
    cycled = find_condition(before, POWER_CYCLED)
    if cycled is not None and all(spec.type != POWER_CYCLED for spec in specs):
        specs.append(ConditionSpec.kept(cycled))
    if host.metadata.deletion_timestamp is not None:
        message = "a machine uses the host: delete its Machine"
        specs.append(ConditionSpec(DELETING, "True", DELETING, message))
    status = host_status(host, result, its.phase, ctx.now())
    generation = host.metadata.generation or 0
    status.conditions = update_conditions(before, specs, now=ctx.now(), generation=generation)
    await ctx.patch_status(host, status)


_WARNED = frozenset(
    {
        Reason.HOST_UNREACHABLE,
        Reason.HOST_COMMAND_FAILED,
        Reason.HOST_KEY_MISMATCH,
        Reason.LOGIN_REJECTED,
        Reason.INVALID_CREDENTIALS,
        Reason.HOST_NOT_CLEAN,
        Reason.HOST_CHANGED,
        Reason.BOOTSTRAP_FAILED,
        Reason.UPDATE_FAILED,
        Reason.ARCHIVE_MISSING,
        Reason.INVALID_BOOTSTRAP_DATA,
        Reason.MACHINE_MISSING,
        Reason.POWER_FAILED,
    }
)
