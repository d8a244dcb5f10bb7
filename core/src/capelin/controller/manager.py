"""The manager: a client, a lease, the watches and the runners, from start to a clean end."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any, NoReturn, Protocol

from kopf import OperatorRegistry

from capelin import tracing
from capelin.api import Resource
from capelin.client import (
    Client,
    ClientError,
    ClientOptions,
    Config,
    ElectionTiming,
    LeaderElection,
    LeadershipLost,
    NotServed,
    ObjectCache,
)
from capelin.collection import keep_loaded_code
from capelin.contract import WATCH_LABEL
from capelin.controller import Recorder, logs
from capelin.controller.background import Background
from capelin.controller.context import Context
from capelin.controller.diagnostics import Check, Metrics, Probes, ScrapeAuthorizer
from capelin.controller.guard import LoopGuard
from capelin.controller.informer import Attempts
from capelin.controller.kopf_handlers import KopfHandlers
from capelin.controller.kopf_thread import WatchLostError
from capelin.controller.options import Options, OptionsT
from capelin.controller.queue import Queue, Timing
from capelin.controller.reconciler import For, Labels, Reconciler, Subscription, Watch
from capelin.controller.runner import Runner
from capelin.controller.serving import ListenError
from capelin.controller.watching import Watching
from capelin.controller.webhooks import Webhooks
from capelin.flags import OptionsError, parse, report
from capelin.programs import raise_file_limit
from capelin.tls import CertificateError

log = logging.getLogger(__name__)

_FLUSH = 5.0
# Five times the limit of CAPI's managers: the cache has only objects that were read before, so that
# the manager is small.
_QPS = 500
# Seconds between checks for kinds that are not installed yet. Installing takes a second or two.
_FIRST_LOOK, _LAST_LOOK = 0.1, 1.0
_OPTIONAL_EVERY = 5.0
# A watch that lasted so long may start again at once.
_LONG = 60.0


class Manager:
    """Runs reconcilers and kopf handlers against one API server until it is stopped.

    With `ends_process`, which `main` sets, the process exits rather than work without the lease.
    """

    def __init__(
        self,
        name: str,
        reconcilers: Sequence[Reconciler[Any]],
        options: Options,
        config: Config,
        *,
        kopf: OperatorRegistry | None = None,
        ends_process: bool = False,
    ) -> None:
        names = [reconciler.name for reconciler in reconcilers]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two reconcilers have the name {', '.join(sorted(twice))}")
        self.name = name
        self.metrics = Metrics()
        self.probes = Probes(
            health=self._unhealthy,
            ready=self.not_ready,
            metrics=self.metrics.registry,
            webhooks=lambda: None if self.webhooks and self.webhooks.bound else "not serving",
        )
        self.webhooks: Webhooks | None = None
        """The server of webhooks, if the options have an address for it."""
        if options.webhook_address is not None and options.cert_dir is not None:
            self.webhooks = Webhooks(options.webhook_address, options.cert_dir)
        self._checks: dict[str, Check] = {}
        for reconciler in reconcilers:
            self.add_check(reconciler.name, reconciler.health)
        self._background = Background()
        self.add_check("background", self._background.health)
        self._ends_process = ends_process
        self._election: LeaderElection | None = None
        self._reconcilers = reconcilers
        self._options = options
        self._config = config
        self._stopping = asyncio.Event()
        self._working = False
        self._state: Callable[[], str | None] = lambda: "starting"
        self._cache = ObjectCache()
        self._handlers: KopfHandlers | None = None
        if kopf is not None:
            self._handlers = KopfHandlers(
                kopf,
                config,
                self.metrics,
                connect=lambda: self._client(qps=_QPS),
                namespace=options.namespace,
            )

    def add_check(self, name: str, check: Check) -> None:
        """Make /healthz fail while `check` returns a problem. `None` means healthy."""
        self._checks[name] = check

    def _unhealthy(self) -> str | None:
        problems = {name: check() for name, check in self._checks.items()}
        return "\n".join(f"{name}: {why}" for name, why in problems.items() if why) or None

    def not_ready(self) -> str | None:
        """What /readyz reports: the reason why the manager does not work yet, or `None`."""
        return self._state()

    def stop(self) -> None:
        """Take no new work, give running work the grace period, and then return from `run`."""
        self._stopping.set()

    async def run(self) -> None:
        """Run until `stop` is called.

        Raises:
            LeadershipLost: Another process may lead now. Nothing runs here any more.
            ListenError: An address is in use or not available.
            CertificateError: The certificate for webhooks is missing or unusable.
        """
        options = self._options
        async with AsyncExitStack() as stack:
            stack.enter_context(self._guard())
            client = await stack.enter_async_context(self._client(qps=_QPS))
            await stack.enter_async_context(self.probes)
            await self.probes.listen(
                health=options.health_address,
                metrics=options.metrics_address,
                authorizer=ScrapeAuthorizer(client),
                insecure=options.insecure_diagnostics,
            )
            if self.webhooks is not None:
                # Before any list, because the API server may need it to list our own objects.
                await self.webhooks.listen(stack, self._background)
            # The lease waits for no other request.
            leases = await stack.enter_async_context(self._client(qps=0))
            work = asyncio.create_task(self._lead(client, leases))
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

    def _guard(self) -> LoopGuard:
        lease, renew = (
            self._options.leader_elect_lease_duration,
            self._options.leader_elect_renew_deadline,
        )
        return LoopGuard(
            lambda: self._election.renewed_at if self._election is not None else None,
            lease - (lease - renew) / 10 if self._ends_process else None,
        )

    def _client(self, *, qps: float) -> Client:
        return Client(
            self._config,
            manager=self.name,
            options=ClientOptions(
                qps=qps, burst=2 * _QPS, user_agent=self.name, traces=(self.metrics.trace(),)
            ),
        )

    async def _lead(self, client: Client, leases: Client) -> None:
        options = self._options
        if not options.leader_elect:
            await self._work(client)
            return
        self._election = election = LeaderElection(
            leases,
            self.name,
            options.leader_elect_namespace or self._config.namespace,
            timing=ElectionTiming(
                lease=options.leader_elect_lease_duration,
                renew=options.leader_elect_renew_deadline,
                retry=options.leader_elect_retry_period,
            ),
        )
        # A standby replica is ready.
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
        client.use_cache(self._cache)
        recorder = Recorder(client, self.name, socket.gethostname(), now=lambda: datetime.now(UTC))
        async with AsyncExitStack() as stack:
            runners: list[Runner[Any]] = []
            for reconciler in self._reconcilers:
                logger = logging.getLogger(f"capelin.{reconciler.name}")
                context = Context(client, logger, recorder, self.metrics.registry, self._background)
                await stack.enter_async_context(reconciler.lifespan(context))
                runners.append(self._runner(reconciler, context))
            await self._run(client, recorder, runners)

    async def _run(
        self, client: Client, recorder: Recorder, runners: Sequence[Runner[Any]]
    ) -> None:
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._watch(client, runners)),
            asyncio.create_task(self._stopping.wait()),
        ]
        # Without the lease, another manager may already work: do not finish anything.
        grace = 0.0
        try:
            async with self._background.running(events=recorder.run):
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            grace = self._options.grace_period
            for task in done:
                task.result()
        finally:
            self._state = lambda: "stopping"
            for task in tasks:
                task.cancel()
            stubborn = await asyncio.gather(*(runner.stop(grace) for runner in runners))
            await asyncio.gather(*tasks, return_exceptions=True)
            if grace:
                await self._flush(recorder)
            if any(stubborn) and self._ends_process:
                # Do not release the lease while something still works.
                _exit()

    async def _watch(self, client: Client, runners: Sequence[Runner[Any]]) -> None:
        required: list[Subscription] = []
        optional: dict[Resource, list[Subscription]] = {}
        for runner in runners:
            for watch in self._watches(runner.reconciler):
                if isinstance(watch, For) or not watch.optional:
                    required.append(Subscription(watch, runner))
                else:
                    subscriptions = optional.setdefault(watch.kind.resource, [])
                    subscriptions.append(Subscription(watch, runner))
        watching = self._watching(required)
        listed = asyncio.create_task(watching.listed.wait())
        kept: list[tuple[Watching | KopfHandlers, float]] = [
            (self._watching(subscriptions), _OPTIONAL_EVERY) for subscriptions in optional.values()
        ]
        if self._handlers is not None:
            kept.append((self._handlers, _LAST_LOOK))
        if required:
            kept.append((watching, _LAST_LOOK))
        else:
            watching.listed.set()
        keep = [self._keep_watching(client, each, longest) for each, longest in kept]
        tasks: list[asyncio.Task[Any]] = [listed, *map(asyncio.create_task, keep)]
        handlers = self._handlers
        self._state = lambda: _listing(watching) or (handlers and handlers.missing) or None
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if listed.done():
                # Not sooner: an object and the objects that it owns are listed one after the other,
                # and need only one reconcile.
                log.info("Watching all kinds: their first lists are complete")
                for runner in runners:
                    runner.start()
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_watching(
        self, client: Client, watching: Watching | KopfHandlers, longest: float
    ) -> None:
        """Watch kinds once they are installed, and again whatever ends it."""
        attempts, clock = Attempts(), asyncio.get_running_loop().time
        while True:
            await self._until_served(client, watching, longest)
            began = clock()
            try:
                await watching.run()
            except WatchLostError as error:
                log.warning("%s. Starting again", error)
                if clock() - began > _LONG:
                    attempts.worked()
                attempts.failed(str(error))
            await attempts.pause()

    def _watching(self, subscriptions: Sequence[Subscription]) -> Watching:
        return Watching(
            self._config,
            subscriptions,
            self.metrics,
            namespace=self._options.namespace,
            cache=self._cache,
        )

    async def _until_served(
        self, client: Client, watching: Watching | KopfHandlers, longest: float
    ) -> None:
        """Wait until all watched kinds are installed: a provider may start before its CRDs."""
        logged, pause = "", _FIRST_LOOK
        while missing := await self._missing(client, watching.resources):
            watching.missing = missing
            if missing != logged:
                log.info("%s", missing)
                logged = missing
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
        watching.missing = ""

    async def _missing(self, client: Client, resources: Sequence[Resource]) -> str | None:
        for resource in resources:
            try:
                served = await client.resources(resource.api_version)
            except NotServed:
                served = ()
            except ClientError as error:
                return f"Waiting: {error}"
            if resource.plural not in {other.plural for other in served}:
                return f"Waiting for {resource.plural} in {resource.api_version} to be installed"
        return None

    def _runner(self, reconciler: Reconciler[Any], context: Context) -> Runner[Any]:
        third = self._options.concurrency // 3
        queue = Queue(
            Timing(resync=self._options.sync_period),
            Random(),  # noqa: S311 - jitter guards nothing
            group_limit=max(1, third),
            slow_limit=max(1, self._options.concurrency - third),
        )
        runner = Runner(
            reconciler,
            queue,
            context,
            self.metrics,
            concurrency=self._options.concurrency,
            labels=self._labels(reconciler),
            clock=asyncio.get_running_loop().time,
        )
        reconciler.connect(runner.add)
        return runner

    def _labels(self, reconciler: Reconciler[Any]) -> Labels:
        labels = reconciler.main_watch.labels
        shared = self._options.watch_filter
        return labels if shared is None else {**labels, WATCH_LABEL: shared}

    def _watches(self, reconciler: Reconciler[Any]) -> list[Watch]:
        labels = self._labels(reconciler)
        return [
            replace(watch, labels=labels) if isinstance(watch, For) else watch
            for watch in reconciler.watches
        ]

    async def _flush(self, recorder: Recorder) -> None:
        try:
            async with asyncio.timeout(_FLUSH):
                await recorder.flush()
        except TimeoutError:
            log.warning("Some events could not be written in time")


def _listing(watching: Watching) -> str | None:
    waiting_for = watching.waiting_for
    if waiting_for and watching.missing:
        return watching.missing
    return f"listing {', '.join(waiting_for)}" if waiting_for else None


def main(
    name: str,
    build: Callable[[OptionsT], Sequence[Reconciler[Any]]],
    options: type[OptionsT] = Options,
    arguments: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    kopf: OperatorRegistry | None = None,
) -> int:
    """Run a manager until SIGTERM or SIGINT. Returns the exit code for `sys.exit`.

    Args:
        name: The manager's name, in logs and as the name of its lease and field manager.
        build: Creates the reconcilers from the options.
        options: The class of the options, for managers with additional flags.
        arguments: The command line, if not the process's own.
        environ: The environment, if not the process's own.
        kopf: Plain kopf handlers, which run with the reconcilers while the manager leads. With
            decorators that name no registry, it is `kopf.get_default_registry()`.
    """
    try:
        chosen = parse(
            options,
            name,
            f"Runs the controllers of {name}.",
            sys.argv[1:] if arguments is None else arguments,
            os.environ if environ is None else environ,
        )
        logs.configure(chosen.log_format, chosen.verbosity)
        tracing.configure(name, os.environ if environ is None else environ)
        config = Config.find(chosen.kubeconfig, environ=os.environ if environ is None else environ)
        manager = Manager(name, build(chosen), chosen, config, kopf=kopf, ends_process=True)
        keep_loaded_code()
        raise_file_limit()
        asyncio.run(serve(manager))
    except OptionsError as error:
        report(name, error)
        return 2
    except (CertificateError, ClientError, ListenError) as error:
        log.error("%s", error)  # noqa: TRY400 - the message has all the details
        return 1
    except Exception:
        log.exception("The manager failed")
        return 1
    return 0


class Stoppable(Protocol):
    """The methods of a manager that `serve` uses."""

    def stop(self) -> None: ...

    async def run(self) -> None: ...


async def serve(manager: Stoppable) -> None:
    """Run a manager until a signal stops it."""
    loop = asyncio.get_running_loop()

    def stop(number: int, _: object) -> None:
        log.info("Stopping on %s", signal.Signals(number).name)
        # A second signal kills the process at once.
        signal.signal(number, signal.SIG_DFL)
        loop.call_soon_threadsafe(manager.stop)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        await manager.run()
    except LeadershipLost as error:
        log.error("%s", error)  # noqa: TRY400 - the message has all the details
        # Another process may lead. Work that cannot be cancelled, such as a thread, ends here too.
        _exit()


def _exit() -> NoReturn:
    logging.shutdown()
    os._exit(1)
