"""The manager: a client, a lease, the watches and the runners, from start to a clean end."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

from capelin.client import (
    Client,
    ClientOptions,
    Config,
    ElectionTiming,
    LeaderElection,
    NotServed,
    Unavailable,
    Unreachable,
)
from capelin.contract.labels import WATCH_LABEL
from capelin.controller.context import Context
from capelin.controller.events import Recorder
from capelin.controller.metrics import Metrics
from capelin.controller.options import Options
from capelin.controller.probes import Probes
from capelin.controller.queue import Queue, Timing
from capelin.controller.reconciler import Reconciler
from capelin.controller.runner import Runner
from capelin.controller.watches import For, Labels
from capelin.controller.watching import Subscription, Watching

log = logging.getLogger(__name__)

_FLUSH = 5.0
# Five times what CAPI's managers allow themselves: reading from the API server, and not from a
# cache of everything, is what keeps the manager small and each reconcile up to date.
_QPS = 500


class Manager:
    """Runs reconcilers against one API server until it is stopped."""

    def __init__(
        self,
        name: str,
        reconcilers: Sequence[Reconciler[Any]],
        options: Options,
        config: Config,
    ) -> None:
        names = [reconciler.name for reconciler in reconcilers]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two reconcilers are called {', '.join(sorted(twice))}")
        self.name = name
        self.metrics = Metrics()
        self.probes = Probes(
            health=lambda: None, ready=self._not_ready, metrics=self.metrics.registry
        )
        self._reconcilers = reconcilers
        self._options = options
        self._config = config
        self._stopping = asyncio.Event()
        self._working = False
        self._state: Callable[[], str | None] = lambda: "starting"

    def stop(self) -> None:
        """Take no more work, let what runs end within the grace period, and return from `run`."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until `stop` is called.

        Raises:
            LeadershipLost: another process may lead now; nothing runs any more.
            WatchLostError: a watch ended by itself.
            ListenError: an address to listen on cannot be had.
        """
        options = self._options
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.probes)
            await self.probes.listen(health=options.health_address, metrics=options.metrics_address)
            client = await stack.enter_async_context(
                Client(
                    self._config,
                    manager=self.name,
                    options=ClientOptions(
                        qps=_QPS,
                        burst=2 * _QPS,
                        user_agent=self.name,
                        traces=(self.metrics.trace(),),
                    ),
                )
            )
            work = asyncio.create_task(self._lead(client))
            stop = asyncio.create_task(self._stopping.wait())
            try:
                await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
                if not self._working:
                    work.cancel()
                await asyncio.wait({work})
                if not work.cancelled():
                    work.result()
            finally:
                for task in (work, stop):
                    task.cancel()
                await asyncio.gather(work, stop, return_exceptions=True)

    async def _lead(self, client: Client) -> None:
        options = self._options
        if not options.leader_elect:
            await self._work(client)
            return
        election = LeaderElection(
            client,
            self.name,
            options.leader_elect_namespace or self._config.namespace,
            timing=ElectionTiming(
                lease=options.leader_elect_lease_duration,
                renew=options.leader_elect_renew_deadline,
                retry=options.leader_elect_retry_period,
            ),
        )
        # Standing by is all that a replica has to be ready for.
        self._state = lambda: None
        self.metrics.leads(self.name, leading=False)

        async def work() -> None:
            self.metrics.leads(self.name, leading=True)
            try:
                await self._work(client)
            finally:
                self.metrics.leads(self.name, leading=False)

        await election.run(work)

    async def _work(self, client: Client) -> None:
        self._working = True
        clock = asyncio.get_running_loop().time
        recorder = Recorder(client, self.name, socket.gethostname(), now=lambda: datetime.now(UTC))
        runners = [
            self._runner(reconciler, client, recorder, clock) for reconciler in self._reconcilers
        ]
        watching = Watching(
            self._config,
            [
                Subscription(watch, runner.reconciler.main_watch.kind.resource, runner)
                for runner in runners
                for watch in self._watches(runner.reconciler)
            ],
            self.metrics,
            namespace=self._options.namespace,
        )
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._run(client, watching, runners)),
            asyncio.create_task(recorder.run()),
            asyncio.create_task(self._stopping.wait()),
        ]
        # Without the lease, somebody else may already be at work: no time to finish anything.
        grace = 0.0
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            grace = self._options.grace_period
            for task in done:
                task.result()
        finally:
            self._state = lambda: "stopping"
            for task in tasks:
                task.cancel()
            await asyncio.gather(*(runner.stop(grace) for runner in runners))
            await asyncio.gather(*tasks, return_exceptions=True)
            if grace:
                await self._flush(recorder)

    async def _run(
        self, client: Client, watching: Watching, runners: Sequence[Runner[Any]]
    ) -> None:
        await self._kinds_are_there(client, watching)
        self._state = lambda: _listing(watching)
        watch = asyncio.create_task(watching.run())
        listed = asyncio.create_task(watching.listed.wait())
        try:
            await asyncio.wait({watch, listed}, return_when=asyncio.FIRST_COMPLETED)
            if listed.done():
                # Not sooner: an object and what it owns, listed one after the other, are one
                # reconcile.
                log.info("Watching; everything is listed")
                for runner in runners:
                    runner.start()
            await watch
        finally:
            for task in (watch, listed):
                task.cancel()
            await asyncio.gather(watch, listed, return_exceptions=True)

    async def _kinds_are_there(self, client: Client, watching: Watching) -> None:
        """Wait for what is watched to be installed: a provider may start before its CRDs."""
        told = ""
        while missing := await self._missing(client, watching):
            self._state = lambda missing=missing: missing
            if missing != told:
                log.info("%s", missing)
                told = missing
            await asyncio.sleep(1)

    async def _missing(self, client: Client, watching: Watching) -> str | None:
        for resource in watching.resources:
            try:
                found = await client.resources(resource.api_version)
            except NotServed:
                found = ()
            except (Unreachable, Unavailable) as error:
                return f"Waiting: {error}"
            if resource.plural not in {each.plural for each in found}:
                return f"Waiting for {resource.plural} in {resource.api_version} to be installed"
        return None

    def _runner(
        self,
        reconciler: Reconciler[Any],
        client: Client,
        recorder: Recorder,
        clock: Callable[[], float],
    ) -> Runner[Any]:
        logger = logging.getLogger(f"capelin.{reconciler.name}")
        runner = Runner(
            reconciler,
            # Jitter guards nothing.
            Queue(Timing(resync=self._options.sync_period), Random()),  # noqa: S311
            Context(client, logger, recorder),
            self.metrics,
            concurrency=self._options.concurrency,
            labels=self._labels(reconciler),
            clock=clock,
        )
        reconciler.connect(runner.add)
        return runner

    def _labels(self, reconciler: Reconciler[Any]) -> Labels:
        labels = reconciler.main_watch.labels
        shared = self._options.watch_filter
        return labels if shared is None else {**labels, WATCH_LABEL: shared}

    def _watches(self, reconciler: Reconciler[Any]) -> list[Any]:
        labels = self._labels(reconciler)
        return [
            replace(watch, labels=labels) if isinstance(watch, For) else watch
            for watch in reconciler.watches
        ]

    def _not_ready(self) -> str | None:
        return self._state()

    async def _flush(self, recorder: Recorder) -> None:
        try:
            async with asyncio.timeout(_FLUSH):
                await recorder.flush()
        except TimeoutError:
            log.warning("Some events could not be written in time")


def _listing(watching: Watching) -> str | None:
    waiting_for = watching.waiting_for
    return f"listing {', '.join(waiting_for)}" if waiting_for else None
