"""A manager's metrics, with controller-runtime's names, and the pages that serve its state."""

import hashlib
import logging
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, Literal, Self

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from capelin.api import Unstructured
from capelin.client import Client, ClientError, load_certificate
from capelin.controller.options import Address
from capelin.controller.queue import Queue
from capelin.controller.serving import serve
from capelin.pki import issue, new_ca

log = logging.getLogger(__name__)

Clock = Callable[[], float]

_ANSWER_SECONDS = 60.0
_ANSWERS = 1000
_RECONCILE = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_QUEUE = (0.0001, 0.001, 0.01, 0.1, 1, 10, 100, 1000)


class Metrics:
    """Every metric of a manager, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._queues = _Queues()
        self.registry.register(self._queues)
        self._results = Counter(
            "controller_runtime_reconcile_total",
            "Reconciles by result",
            ["controller", "result"],
            registry=self.registry,
        )
        self._errors = Counter(
            "controller_runtime_reconcile_errors_total",
            "Reconciles that failed",
            ["controller"],
            registry=self.registry,
        )
        self._durations = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "How long reconciles took",
            ["controller"],
            buckets=_RECONCILE,
            registry=self.registry,
        )
        self._limits = Gauge(
            "controller_runtime_max_concurrent_reconciles",
            "How many reconciles may run at a time",
            ["controller"],
            registry=self.registry,
        )
        self._waits = Histogram(
            "workqueue_queue_duration_seconds",
            "How long keys were ready before they ran",
            ["name", "controller"],
            buckets=_QUEUE,
            registry=self.registry,
        )
        self._work = Histogram(
            "workqueue_work_duration_seconds",
            "How long keys ran",
            ["name", "controller"],
            buckets=_QUEUE,
            registry=self.registry,
        )
        self._requests = Counter(
            "rest_client_requests_total",
            "Requests to the API server",
            ["code", "method", "host"],
            registry=self.registry,
        )
        self._leading = Gauge(
            "leader_election_master_status",
            "1 while this process holds the lease",
            ["name"],
            registry=self.registry,
        )

    def watch_queue(self, controller: str, queue: Queue, limit: int, clock: Clock) -> None:
        """Report the state of a queue whenever the metrics are read."""
        self._queues.add(controller, queue, clock)
        self._limits.labels(controller).set(limit)
        self._errors.labels(controller)
        for result in ("success", "requeue_after", "error"):
            self._results.labels(controller, result)

    def taken(self, controller: str, waited: float) -> None:
        self._waits.labels(controller, controller).observe(waited)

    def reconciled(
        self, controller: str, result: Literal["success", "requeue_after", "error"], took: float
    ) -> None:
        self._results.labels(controller, result).inc()
        if result == "error":
            self._errors.labels(controller).inc()
        self._durations.labels(controller).observe(took)
        self._work.labels(controller, controller).observe(took)

    def trace(self) -> aiohttp.TraceConfig:
        """Counts the requests of a session, with the code `<error>` for failed ones."""

        async def answered(_: Any, __: Any, params: aiohttp.TraceRequestEndParams) -> None:
            code = str(params.response.status)
            self._requests.labels(code, params.method, params.url.authority).inc()

        async def failed(_: Any, __: Any, params: aiohttp.TraceRequestExceptionParams) -> None:
            self._requests.labels("<error>", params.method, params.url.authority).inc()

        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(answered)
        trace.on_request_exception.append(failed)
        return trace

    def leads(self, name: str, *, leading: bool) -> None:
        self._leading.labels(name).set(leading)


class _Queues(Collector):
    """Reads the queues at the time of the scrape, and measures nothing in between."""

    def __init__(self) -> None:
        self._known: list[tuple[str, Queue, Clock]] = []

    def add(self, controller: str, queue: Queue, clock: Clock) -> None:
        self._known.append((controller, queue, clock))

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        labels = ["name", "controller"]
        depth = GaugeMetricFamily("workqueue_depth", "Keys that are ready", labels=labels)
        adds = CounterMetricFamily("workqueue_adds", "Keys that became ready", labels=labels)
        retries = CounterMetricFamily("workqueue_retries", "Keys that failed", labels=labels)
        unfinished = GaugeMetricFamily(
            "workqueue_unfinished_work_seconds", "How long running keys run in all", labels=labels
        )
        longest = GaugeMetricFamily(
            "workqueue_longest_running_processor_seconds",
            "How long the longest running key runs",
            labels=labels,
        )
        active = GaugeMetricFamily(
            "controller_runtime_active_workers", "Reconciles that run", labels=["controller"]
        )
        for controller, queue, clock in self._known:
            running = queue.running_for(clock())
            names = [controller, controller]
            depth.add_metric(names, queue.depth)
            adds.add_metric(names, queue.adds)
            retries.add_metric(names, queue.retries)
            unfinished.add_metric(names, sum(running))
            longest.add_metric(names, max(running, default=0.0))
            active.add_metric([controller], len(running))
        return [depth, adds, retries, unfinished, longest, active]


Check = Callable[[], str | None]
"""Returns the problem in a sentence, or `None`."""


class ScrapeAuthorizer:
    """Asks the API server for the user of a token, and whether that user may read a page.

    It uses TokenReview and SubjectAccessReview, like CAPI's managers, and caches results for a
    minute.
    """

    def __init__(self, client: Client, clock: Clock = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._answers: OrderedDict[bytes, tuple[float, int]] = OrderedDict()

    async def status(self, header: str | None, path: str) -> int:
        """200 if the user may read the page at a path, else 401 or 403."""
        scheme, _, token = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return 401
        key = hashlib.sha256(f"{path} {token}".encode()).digest()
        answered, status = self._answers.get(key, (0.0, 0))
        if not status or self._clock() >= answered + _ANSWER_SECONDS:
            status = await self._ask(token, path)
            self._answers[key] = self._clock(), status
            if len(self._answers) > _ANSWERS:
                self._answers.popitem(last=False)
        return status

    async def _ask(self, token: str, path: str) -> int:
        review = await self._review("authentication", "TokenReview", {"token": token})
        if not review.get("authenticated"):
            return 401
        user = review["user"]
        access = await self._review(
            "authorization",
            "SubjectAccessReview",
            {
                "user": user["username"],
                "uid": user.get("uid", ""),
                "groups": user.get("groups", []),
                "extra": user.get("extra", {}),
                "nonResourceAttributes": {"path": path, "verb": "get"},
            },
        )
        return 200 if access.get("allowed") else 403

    async def _review(self, group: str, kind: str, spec: Unstructured) -> Unstructured:
        path = f"/apis/{group}.k8s.io/v1/{kind.lower()}s"
        body = {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, "spec": spec}
        return (await self._client.request("POST", path, body=body)).get("status") or {}


class Probes:
    """Serves the pages of a manager inside its `async with`.

    On a loopback address, everyone may read metrics. On others, unless `insecure`,
    they require TLS with a certificate created at the start, and a token whose user may get the
    path.
    """

    def __init__(
        self, *, health: Check, ready: Check, metrics: CollectorRegistry, webhooks: Check
    ) -> None:
        self._health = health
        self._ready = ready
        self._webhooks = webhooks
        self._metrics = metrics
        self._stack = AsyncExitStack()
        self.bound: dict[str, Address] = {}
        """The addresses of the pages, by flag. Useful if the system chose the port."""

    async def listen(
        self,
        *,
        health: Address | None,
        metrics: Address | None,
        authorizer: ScrapeAuthorizer | None = None,
        insecure: bool = False,
    ) -> None:
        """Start to serve. If both addresses are equal, one server has all pages.

        Raises:
            ListenError: An address is in use, or does not belong to this machine.
        """
        pages = {"--health-address": health, "--metrics-address": metrics}
        is_open = insecure or metrics is None or metrics.is_loopback
        self._authorizer = None if is_open else authorizer
        if health is not None and health == metrics:
            await self._serve(health, pages, secure=not is_open)
            return
        for flag, address in pages.items():
            if address is not None:
                secure = not is_open and flag == "--metrics-address"
                await self._serve(address, [flag], secure=secure)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _serve(self, address: Address, flags: Iterable[str], *, secure: bool) -> None:
        app = web.Application()
        for flag in flags:
            if flag == "--health-address":
                app.router.add_get("/healthz", self._page(self._health))
                app.router.add_get("/readyz", self._page(self._ready))
                app.router.add_get("/readyz/webhooks", self._page(self._webhooks))
            else:
                app.router.add_get("/metrics", self._guarded(self._numbers))
        context = own_certificate() if secure else None
        bound = await serve(self._stack, app, address, next(iter(flags)), context)
        self.bound |= dict.fromkeys(flags, bound)

    def _page(self, check: Check) -> Handler:
        async def page(_: web.Request) -> web.Response:
            problem = check()
            return web.Response(text=problem or "ok", status=503 if problem else 200)

        return page

    def _guarded(self, handler: Handler) -> Handler:
        async def page(request: web.Request) -> web.StreamResponse:
            if self._authorizer is not None:
                header = request.headers.get("Authorization")
                try:
                    status = await self._authorizer.status(header, request.path)
                except ClientError as error:
                    log.warning("A token for %s cannot be reviewed: %s", request.path, error)
                    status = 503
                if status != 200:
                    return web.Response(status=status)
            return await handler(request)

        return page

    async def _numbers(self, _: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._metrics), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
        )


def own_certificate() -> ssl.SSLContext:
    """TLS with a certificate that lasts as long as the process. Clients cannot verify it."""
    now = datetime.now(UTC)
    name = socket.gethostname()[:64]
    ca = new_ca(f"{name[:50]}-ca", now=now)
    pair = issue(ca, common_name=name, usages={"server"}, dns_names=[name], now=now)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, pair.certificate_pem, pair.private_key_pem)
    return context
