"""The results that hooks create: at once, or behind their answers.

The answer of an action that is a matter of a moment needs no result: another call, or another
replica, comes to the same one. So its result does not keep Cluster API waiting.
"""

import asyncio
import logging
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from capelin.api import ObjectMeta, OwnerReference
from capelin.api.capi import Cluster
from capelin.client import AlreadyExists, Client, ClientError, Unavailable, Unreachable
from capelin.contract import CLUSTER_NAME_LABEL, label_value
from capelin.controller import ObjectKey

from capelin_lifecycle.actions import POLICY_LABEL
from capelin_lifecycle.api import (
    UPGRADE_HOOKS,
    ClusterReference,
    LifecycleResult,
    PolicyReference,
    ResultRecord,
    ResultSpec,
)
from capelin_lifecycle.policies.occurrence import Occurrence
from capelin_lifecycle.policies.selection import KnownPolicy

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0


def new_result(
    policy: KnownPolicy, name: str, occurrence: Occurrence, now: datetime, done: str | None = None
) -> LifecycleResult:
    """The result of a policy for an occurrence, which starts its action.

    `done` is the message if the hook has found that the action is done.
    """
    result = LifecycleResult(
        metadata=ObjectMeta(
            name=name,
            namespace=occurrence.namespace,
            labels={
                CLUSTER_NAME_LABEL: label_value(occurrence.cluster),
                POLICY_LABEL: policy.key.label,
            },
            owner_references=[owner_reference(occurrence.cluster, occurrence.uid)],
        ),
        spec=ResultSpec(
            id=uuid.uuid4().hex,
            called=now,
            policy=PolicyReference(kind=policy.kind, namespace=policy.namespace, name=policy.name),
            cluster=ClusterReference(name=occurrence.cluster),
            hook=occurrence.hook,
            from_version=occurrence.from_version,
            to_version=occurrence.to_version,
            target_version=occurrence.target_version if occurrence.hook in UPGRADE_HOOKS else None,
            action=policy.spec.action.name,
            order=policy.spec.order,
        ),
    )
    if done is not None:
        result.record = ResultRecord(policy=policy.digest, phase="Done", finished=now, message=done)
    return result


def owner_reference(cluster: str, uid: str) -> OwnerReference:
    """The reference by which a Cluster owns its results: they are moved and deleted with it."""
    return OwnerReference(
        api_version=Cluster.resource.api_version,
        kind=Cluster.resource.kind,
        name=cluster,
        uid=uid,
    )


@dataclass(frozen=True, slots=True)
class PendingResult:
    """What a result is made of: thousands may wait."""

    policy: KnownPolicy
    name: str
    occurrence: Occurrence
    now: datetime
    done: str | None = None

    @property
    def key(self) -> ObjectKey:
        """The namespace and name of the result."""
        return ObjectKey(self.occurrence.namespace, self.name)


class PendingResults:
    """Results that are about to be created, in the order in which they came."""

    def __init__(self) -> None:
        self._results: dict[ObjectKey, PendingResult] = {}
        self._added = asyncio.Event()
        self._created = asyncio.Event()
        self._created.set()

    def add(self, result: PendingResult) -> None:
        """Create a result soon, if nobody else does."""
        self._results.setdefault(result.key, result)
        self._added.set()
        self._created.clear()

    @property
    def waiting(self) -> tuple[PendingResult, ...]:
        """The results that were not created yet."""
        return tuple(self._results.values())

    async def all_created(self) -> None:
        """Wait until there is none left."""
        await self._created.wait()

    async def create(self, client: Client) -> None:
        """Create what comes, one after the other, until cancelled."""
        while True:
            await self._added.wait()
            while self._results:
                pending = next(iter(self._results.values()))
                result = new_result(
                    pending.policy, pending.name, pending.occurrence, pending.now, pending.done
                )
                try:
                    await client.create(result)
                except AlreadyExists:
                    pass
                except (Unreachable, Unavailable) as error:
                    log.info("Result %s is created later: %s", pending.key, error)
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                except ClientError as error:
                    log.warning("Result %s cannot be created: %s", pending.key, error)
                del self._results[pending.key]
            self._added.clear()
            self._created.set()
