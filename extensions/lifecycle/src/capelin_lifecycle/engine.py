"""Runs everything behind the hooks: the store, and on one replica the reconcilers.

It may fail at any time, and starts again. The server of the hooks does not depend on it: it answers
discovery, and does not hold up Clusters without policies.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

from capelin.api.core import ConfigMap
from capelin.client import AlreadyExists, Client, ClientError, ClientOptions, Config
from capelin.controller import Manager, ObjectKey, Options, Reconciler
from capelin.runtime import Failure, Handler, Response
from capelin.runtime.v1alpha1 import UpdateMachineRequest

from capelin_lifecycle import in_place
from capelin_lifecycle.actions.action import MANAGER
from capelin_lifecycle.actions.reservations import Reservations
from capelin_lifecycle.api.results import LifecycleResult
from capelin_lifecycle.judge import Judge
from capelin_lifecycle.policies.clusters import KnownCluster, Occurrence, WholeCluster
from capelin_lifecycle.policies.memory import CONFIG_MAP, from_text, stored_text
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.store import Store
from capelin_lifecycle.reconcilers.pending import PendingResults
from capelin_lifecycle.reconcilers.policies import (
    ClusterLifecyclePolicyReconciler,
    LifecyclePolicyReconciler,
    policy_problem,
)
from capelin_lifecycle.reconcilers.priority import HookPriority
from capelin_lifecycle.reconcilers.registration import EVERY_GATE, Registration, needed_handlers
from capelin_lifecycle.reconcilers.results import ResultReconciler

log = logging.getLogger(__name__)

Clock = Callable[[], datetime]

_RESTART_SECONDS: Final = 5.0
_LAST_SECONDS: Final = 2.0
"""For the results of the last answers, when the extension ends."""
_LOOKUPS: Final = 10
"""Limit of concurrent lookups of Clusters in requests: any client can invent a request."""
_CONCURRENCY: Final = 30
"""Several policies whose steps take long leave turns to the others."""
_OPTIONS: Final = ClientOptions(qps=200, burst=400, timeout=5.0)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    leader_elect: bool = False
    extension_config: str = "lifecycle"
    """Name of the ExtensionConfig of the extension."""
    in_place_updates: bool = False
    """Whether it answers the hooks of updates in place."""


class Engine:
    """The store, the reconcilers, and the client with which hooks create results."""

    def __init__(
        self,
        find_config: Callable[[], Config],
        options: EngineOptions | None = None,
        clock: Clock = lambda: datetime.now(UTC),
        first_seconds: float = 15.0,
    ) -> None:
        """An engine that serves without policies if they are not known within the first seconds."""
        self.store = Store(policy_problem)
        self._remembered: Sequence[KnownPolicy] | None = None
        self._find_config = find_config
        self._options = options or EngineOptions()
        self._clock = clock
        self._first_seconds = first_seconds
        self._client: Client | None = None
        self.judge = Judge(self.store)
        self.priority = HookPriority()
        self.pending = PendingResults()
        """Results that are about to be created."""
        self._lookups = asyncio.Semaphore(_LOOKUPS)

    @property
    def policies(self) -> Sequence[KnownPolicy]:
        """All policies, or the last known ones if they cannot be read."""
        if self.store.knows_policies:
            return self.store.policies()
        return self._remembered or ()

    @property
    def is_blind(self) -> bool:
        """Whether neither the policies nor earlier versions of them are known.

        Then any policy may be for any Cluster, and every gate holds its Clusters up.
        """
        return not self.store.knows_policies and self._remembered is None

    def now(self) -> datetime:
        return self._clock()

    def recall(self, text: str) -> None:
        """Use the stored policies until the policies themselves are known."""
        self._remembered = from_text(text)

    def connect(self, client: Client, namespace: str) -> None:
        """Use this client for the hooks. Cluster-wide reservations are in this namespace."""
        self._client = client
        self.judge.reservations = Reservations(client, namespace)

    async def live_cluster(self, requested: Occurrence, version: str) -> KnownCluster | None:
        """The Cluster that a request names, if that very Cluster exists.

        The replica's copy is enough unless it is older than the request. Then the API server gets
        one request.

        Raises:
            ClientError: the API server does not answer.
        """
        if (known := self.store.cluster_as_of(requested, version)) is not None:
            return known
        if self._client is None:
            raise ClientError("not connected to the API server yet")
        try:
            async with self._lookups:
                found = await self._client.find(
                    WholeCluster, requested.cluster, requested.namespace
                )
        except ValueError:
            # No object can have this name.
            return None
        if found is None or found.uid != requested.uid:
            return None
        return KnownCluster.of(found.dump())

    def is_discovered(self, handler: Handler) -> bool:
        if handler.name in in_place.HANDLERS.values():
            return self._options.in_place_updates
        needed = EVERY_GATE if self.is_blind else needed_handlers(self.policies)
        return handler.name in needed

    async def update_machine(self, request: UpdateMachineRequest) -> Response:
        """The state of the update of a machine in place.

        Raises:
            Failure: It has failed, or is unknown.
        """
        if self._client is None:
            raise Failure("not connected to the API server yet")
        async with self._lookups:
            return await in_place.update_machine(self._client, request)

    async def create(self, result: LifecycleResult) -> None:
        """Create a result, if no other call has.

        Raises:
            ClientError: it cannot be created.
        """
        if self._client is None:
            raise ClientError("not connected to the API server yet")
        try:
            await self._client.create(result)
        except AlreadyExists:
            return

    async def reopen(self, key: ObjectKey) -> None:
        """Have a result decided again that shows the end of its action.

        Raises:
            ClientError: it cannot be changed.
        """
        if self._client is None:
            raise ClientError("not connected to the API server yet")
        patch = {"record": {"phase": None, "finished": None, "message": None}}
        await self._client.patch(LifecycleResult, key.name, key.namespace, patch)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run for as long as the block lasts. It begins when the policies are known, or soon."""
        work = asyncio.create_task(self._run())
        try:
            await self._until_known()
            yield
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    await self.pending.all_created()
        finally:
            work.cancel()
            await asyncio.gather(work, self.judge.close(), return_exceptions=True)

    async def _until_known(self) -> None:
        try:
            async with asyncio.timeout(self._first_seconds):
                # Either source may stay unavailable.
                while not self.store.knows_policies and self._remembered is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            log.warning("Serving without policies: %s", self.store.problem)

    async def _run(self) -> None:
        while True:
            try:
                await self._work()
            except* asyncio.CancelledError:
                raise
            except* Exception as errors:  # noqa: BLE001 - it starts again
                for error in _leaves(errors):
                    log.error("The policy engine failed, and starts again: %s", error)  # noqa: TRY400
            self._client = self.judge.reservations = None
            await asyncio.sleep(_RESTART_SECONDS)

    async def _work(self) -> None:
        config = self._find_config()
        async with Client(config, manager=MANAGER, options=_OPTIONS) as client:
            self.connect(client, config.namespace)
            options = Options(
                leader_elect=self._options.leader_elect,
                concurrency=_CONCURRENCY,
                metrics_address=None,
                health_address=None,
            )
            manager = Manager(MANAGER, self._reconcilers(config.namespace), options, config)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.store.follow(client))
                tasks.create_task(self.pending.create(client))
                tasks.create_task(self._read_stored(client, config.namespace))
                tasks.create_task(manager.run())

    def _reconcilers(self, namespace: str) -> list[Reconciler[Any]]:
        others = in_place.HANDLERS.values() if self._options.in_place_updates else ()
        registration = Registration(self.store, self._options.extension_config, namespace, others)
        return [
            ResultReconciler(self.store, self.judge, namespace, self._clock, self.priority),
            LifecyclePolicyReconciler(self.store, namespace, registration),
            ClusterLifecyclePolicyReconciler(self.store, namespace),
        ]

    async def _read_stored(self, client: Client, namespace: str) -> None:
        """Read the stored policies until the policies themselves are known."""
        while not self.store.knows_policies:
            # The policies themselves usually come first.
            await asyncio.sleep(1.0)
            if self._remembered is None and not self.store.knows_policies:
                try:
                    found = await client.find(ConfigMap, CONFIG_MAP, namespace)
                except ClientError as error:
                    log.warning("Cannot read the stored policies: %s", error)
                else:
                    self.recall(stored_text(found))


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return [leaf for inner in group.exceptions for leaf in _leaves(inner)]
    return [error]
