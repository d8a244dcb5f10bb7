"""Claims: which host a machine gets, and the compare-and-swap that gives it to one machine only."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from capelin.client import Client, Conflict, Invalid
from capelin.controller import ObjectKey

from capelin_machine_pool.api import CapelinMachine, HostReference
from capelin_machine_pool.hosts.api import (
    BASELINE_ANNOTATION,
    CLEAN_AGAIN_ANNOTATION,
    RENEW_BASELINE_ANNOTATION,
    CapelinHost,
    HostClaim,
)
from capelin_machine_pool.patches import replacing

_TRIES: Final = 5
_NAMED: Final = 3
"""Hosts that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRequest:
    """Requirements of a machine for its host."""

    claim: HostClaim
    match_labels: Mapping[str, str] = field(default_factory=dict[str, str])
    failure_domain: str | None = None

    def matches(self, host: CapelinHost) -> bool:
        """Whether a host is suitable, free or not."""
        domain = self.failure_domain
        return self.match_labels.items() <= host.metadata.labels.items() and (
            domain is None or host.spec.failure_domain == domain
        )


class NoFreeHostError(Exception):
    """No suitable host is free. The text names the reason."""


def is_free(host: CapelinHost) -> bool:
    """Whether a machine may claim a host: it was checked with its present spec, and is clean."""
    return (
        host.spec.claim is None
        and not host.spec.maintenance
        and host.metadata.deletion_timestamp is None
        and host.status is not None
        and host.status.phase == "Free"
        and host.status.observed_generation == host.metadata.generation
    )


def choose_host(hosts: Iterable[CapelinHost], request: HostRequest) -> CapelinHost | None:
    """The free host that a machine claims next, the same one for the same hosts.

    The machines of a pool, or of a cluster, are spread over failure domains. Machines that choose
    at the same time prefer different hosts, so that few of them fail.
    """
    suitable = [host for host in hosts if request.matches(host)]
    domains = Counter(
        host.spec.failure_domain
        for host in suitable
        if (claim := host.spec.claim) is not None
        and (claim.cluster, claim.pool) == (request.claim.cluster, request.claim.pool)
    )
    return min(
        filter(is_free, suitable),
        key=lambda host: (
            domains[host.spec.failure_domain],
            hashlib.sha256(f"{request.claim.id}/{host.name}".encode()).digest(),
        ),
        default=None,
    )


def no_free_host(hosts: Sequence[CapelinHost], request: HostRequest) -> str:
    """The reason why no host can be claimed, for a condition."""
    labels = ",".join(f"{key}={value}" for key, value in sorted(request.match_labels.items()))
    which = f" with the labels {labels}" if labels else ""
    if request.failure_domain is not None:
        which += f" in the failure domain {request.failure_domain}"
    suitable = [host for host in hosts if request.matches(host)]
    if not suitable:
        return f"the namespace has no CapelinHost{which}"
    unusable = sorted(host.name for host in suitable if host.spec.claim is None)
    if not unusable:
        return f"machines use every CapelinHost{which}"
    names = ", ".join(unusable[:_NAMED]) + (", ..." if len(unusable) > _NAMED else "")
    return f"no CapelinHost{which} is Free. Machines use the others, except {names}"


async def claim_host(
    client: Client, machine: CapelinMachine, request: HostRequest
) -> HostReference:
    """Give a machine one host, and record it in the machine. It can run again at any time.

    The claim of a host is a compare-and-swap, and so is the record in the machine. A host executes
    no bootstrap data before the record exists. So of two controllers that claim different hosts
    for the same machine, one loses, and its host is released unused.

    Args:
        client: The management cluster.
        machine: The machine, which was just read from the API server.
        request: Its requirements.

    Raises:
        NoFreeHostError: No suitable host is free.
        Conflict: Another controller changed the machine, or claimed the hosts.
    """
    for _ in range(_TRIES):
        # Not from a cache: a claim from before a crash must not be overlooked.
        hosts = (await client.list(CapelinHost, machine.namespace)).items
        claimed = [host for host in hosts if holds(host, request.claim.id)]
        chosen = min(claimed, key=lambda host: host.name, default=None)
        if chosen is None:
            chosen = choose_host(hosts, request)
            if chosen is None:
                raise NoFreeHostError(no_free_host(hosts, request))
            try:
                await _swap_claim(client, chosen, request.claim)
            except Conflict:
                continue
        reference = HostReference(name=chosen.name, claim=request.claim.id)
        if machine.spec.host != reference:
            await _record(client, machine, reference)
        return reference
    raise Conflict(409, "Conflict", "other machines claimed the hosts at the same time")


def holds(host: CapelinHost | None, claim_id: str) -> bool:
    """Whether a host has a claim that was not released."""
    claim = None if host is None else host.spec.claim
    return claim is not None and claim.id == claim_id and claim.released_at is None


async def release_host(client: Client, host: CapelinHost, now: datetime) -> None:
    """Have a host cleaned. Its claim ends when it is clean.

    Raises:
        Conflict: Another controller changed the host.
    """
    if host.spec.claim is not None and host.spec.claim.released_at is None:
        moment = now.replace(microsecond=0)
        claim = host.spec.claim.model_copy(update={"released_at": moment})
        await _swap_claim(client, host, claim)


async def change_claim(client: Client, host: CapelinHost, claim: HostClaim) -> None:
    """Change the claim of the same machine.

    Raises:
        Conflict: Another controller changed the host.
    """
    if host.spec.claim != claim:
        await _swap_claim(client, host, claim)


async def end_claim(client: Client, host: CapelinHost, claim: HostClaim) -> None:
    """Make a host free, if it still has this claim.

    Raises:
        Conflict: The host has another claim, or none.
    """
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": host.uid},
        {"op": "test", "path": "/spec/claim/id", "value": claim.id},
        {"op": "remove", "path": "/spec/claim"},
    ]
    try:
        await client.patch(CapelinHost, host.name, host.namespace, patch, type="json")
    except Invalid as error:
        raise Conflict(409, "Conflict", "the claim of the host has changed") from error


async def end_request(client: Client, host: CapelinHost) -> None:
    """Remove the request for another clean-up."""
    patch = {"metadata": {"uid": host.uid, "annotations": {CLEAN_AGAIN_ANNOTATION: None}}}
    await client.patch(CapelinHost, host.name, host.namespace, patch)


async def reject_request(client: Client, host: CapelinHost, annotation: str) -> None:
    """Remove a request that was not carried out.

    Raises:
        Conflict: The host has changed, for example its request.
    """
    metadata = {
        "resourceVersion": host.metadata.resource_version,
        "annotations": {annotation: None},
    }
    await client.patch(CapelinHost, host.name, host.namespace, {"metadata": metadata})


async def record_baseline(client: Client, host: CapelinHost, digest: str) -> None:
    """Record the baseline of a host, and end a request to renew it."""
    annotations = {BASELINE_ANNOTATION: digest, RENEW_BASELINE_ANNOTATION: None}
    patch = {"metadata": {"uid": host.uid, "annotations": annotations}}
    written = await client.patch(CapelinHost, host.name, host.namespace, patch)
    host.metadata = written.metadata


async def _swap_claim(client: Client, host: CapelinHost, claim: HostClaim) -> None:
    maintenance = host.spec.maintenance_after_use and claim.released_at is not None
    patch = {
        "metadata": {"resourceVersion": host.metadata.resource_version},
        # A merge patch would keep the fields of a former claim.
        "spec": {"claim": replacing(claim), **({"maintenance": True} if maintenance else {})},
    }
    await client.patch(CapelinHost, host.name, host.namespace, patch)


def machine_of_host(host: CapelinHost) -> Iterable[ObjectKey]:
    """The machine that has claimed a host."""
    claim = host.spec.claim
    return [] if claim is None else [ObjectKey(host.namespace or "", claim.machine)]


async def _record(client: Client, machine: CapelinMachine, reference: HostReference) -> None:
    patch = {
        "metadata": {"resourceVersion": machine.metadata.resource_version},
        "spec": {"host": reference.dump()},
    }
    await client.patch(CapelinMachine, machine.name, machine.namespace, patch)
