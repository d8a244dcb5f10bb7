"""Collects the facts of a decision, and writes the reservations that it asks for."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from capelin.client import Client

from capelin_lifecycle.actions.quota import Census, CountedCluster, all_clusters, counted_copies
from capelin_lifecycle.actions.reservations import Reservations
from capelin_lifecycle.actions.validate import rule_values
from capelin_lifecycle.api.actions import Quota
from capelin_lifecycle.decision import Facts, decide
from capelin_lifecycle.policies.clusters import KnownCluster, Occurrence
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.store import Store
from capelin_lifecycle.policies.verdict import Verdict

_TRIES: Final = 10

IsGone = Callable[[str], bool]
"""Whether a Cluster, by its uid, no longer exists."""


class Judge:
    """Decides for the hooks and for the reconcilers of one replica."""

    def __init__(self, store: Store, reservations: Reservations | None = None) -> None:
        self._store = store
        self.reservations = reservations
        """For the quotas of all policies. None without a connection to the API server."""
        self._running: set[asyncio.Task[Verdict | None]] = set()

    async def verdict(
        self,
        policy: KnownPolicy,
        cluster: KnownCluster,
        hook: Occurrence,
        *,
        facts: Facts,
        now: datetime,
        client: Client | None = None,
    ) -> Verdict | None:
        """The progress of a policy. `None` if its action has to run, or if facts are missing.

        With a client, a quota lists all Clusters if the copies of the replica are not enough.

        Raises:
            ClientError: reservations or Clusters cannot be read or written.
        """
        verdict = decide(policy, cluster, hook, facts, now)
        action = policy.spec.action
        if verdict is None and action.validate_ is not None:
            values = await rule_values(policy, action.validate_, cluster, hook, now)
            return decide(policy, cluster, hook, replace(facts, values=values), now)
        if verdict is None and action.quota is not None and self.reservations is not None:
            # Even if the hook that waits for it has no more time.
            task = asyncio.create_task(
                self._admitted(
                    policy,
                    cluster,
                    hook,
                    quota=action.quota,
                    reservations=self.reservations,
                    facts=facts,
                    now=now,
                    client=client,
                )
            )
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            return await asyncio.shield(task)
        return verdict

    async def close(self) -> None:
        """Cancel the decisions that hooks no longer wait for."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _admitted(
        self,
        policy: KnownPolicy,
        cluster: KnownCluster,
        hook: Occurrence,
        *,
        quota: Quota,
        reservations: Reservations,
        facts: Facts,
        now: datetime,
        client: Client | None,
    ) -> Verdict | None:
        """Admit a Cluster to a quota, or not.

        A reservation is written only if no replica has written the policy's reservations since
        they were read: of two Clusters at once, one conflicts and is counted again.
        """
        store = self._store
        sources: list[tuple[Callable[[], Awaitable[list[CountedCluster] | None]], IsGone]] = []
        if store.clusters is not None:
            copies = partial(
                counted_copies, store.clusters, cluster, policy, quota, store.namespaces
            )
            sources.append((copies, store.is_gone))
        if client is not None:
            listing = partial(all_clusters, client, policy, quota, store.namespaces)
            # A Cluster that this list lacks no longer exists.
            sources.append((listing, lambda _: True))
        # Without turns, most decisions of a replica would conflict, and count again.
        async with reservations.turn(policy):
            for list_clusters, is_gone in sources:
                for _ in range(_TRIES):
                    before = await reservations.read(policy)
                    clusters = await list_clusters()
                    if clusters is None:
                        break
                    census = Census(clusters, before.clusters, is_gone)
                    verdict = decide(policy, cluster, hook, replace(facts, census=census), now)
                    if verdict is None:
                        break
                    if verdict.reserve is None or await reservations.write(
                        policy, before, verdict.reserve
                    ):
                        return verdict
        return None
