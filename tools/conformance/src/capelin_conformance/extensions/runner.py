"""Sends an extension everything that the rules judge."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import orjson
from capelin.api import Unstructured
from capelin.runtime import AnyHook, Catalog, CatalogError
from capelin.runtime.client import (
    ClientCertificate,
    Connections,
    Endpoint,
    HttpResponse,
    NoResponseError,
    unknown_hooks,
)
from capelin.runtime.fixtures import ClusterFixture, request_for, sample_cluster
from capelin.runtime.messages import MessageError, read
from capelin.runtime.v1alpha1 import (
    CLUSTER_API,
    Discovery,
    DiscoveryResponse,
    ExtensionHandler,
    GenerateUpgradePlan,
)
from capelin.runtime.v1alpha1.discovery import (
    DEFAULT_TIMEOUT_SECONDS,
    HANDLER_NAME,
    MAX_TIMEOUT_SECONDS,
)

from capelin_conformance.extensions.exchange import (
    UPGRADED,
    Exchange,
    Observations,
    Probe,
    enlarged,
    in_other_case,
    with_unknown_fields,
)
from capelin_conformance.extensions.rules import RULES, Rule

LARGE_BYTES = 19 * 1024 * 1024
CONCURRENT = 8
_JSON = {"Content-Type": "application/json"}

Outcome = Literal["ok", "failed", "advice", "untried"]


@dataclass(frozen=True, slots=True)
class RuleResult:
    """A rule and its problems."""

    rule: Rule
    problems: tuple[str, ...]
    tried: bool = True

    @property
    def failed(self) -> bool:
        """Whether the extension must not be used."""
        return bool(self.problems) and not self.rule.advice

    @property
    def outcome(self) -> Outcome:
        if self.problems:
            return "advice" if self.rule.advice else "failed"
        return "ok" if self.tried else "untried"


@dataclass(frozen=True, slots=True)
class Report:
    """The results of all rules."""

    results: tuple[RuleResult, ...]
    handlers: tuple[ExtensionHandler, ...]
    left_out: tuple[str, ...]
    """Handlers that the checks skipped, and why."""

    @property
    def passed(self) -> bool:
        """Whether all rules hold, advice aside."""
        return not any(result.failed for result in self.results)

    @property
    def failed(self) -> list[str]:
        """The names of the rules that do not hold, advice included."""
        return [result.rule.name for result in self.results if result.problems]


async def check_extension(
    endpoint: Endpoint,
    *,
    cluster: ClusterFixture | None = None,
    settings: Mapping[str, str] | None = None,
    client_certificate: ClientCertificate | None = None,
    catalog: Catalog = CLUSTER_API,
    pure_only: bool = False,
) -> Report:
    """Check an extension against every rule.

    The checks call its handlers for a cluster that does not exist, `conformance/example`, several
    times each.

    Args:
        endpoint: The server.
        cluster: Another cluster to send to the handlers.
        settings: The settings of the ExtensionConfig.
        client_certificate: For a server that verifies its clients.
        catalog: The hooks that its callers know.
        pure_only: Call no handler that may have side effects.

    Raises:
        EndpointError: The client certificate is unusable.
    """
    cluster = cluster or sample_cluster("example", "conformance")
    async with Connections(client_certificate) as connections:
        runner = _Runner(endpoint, connections, catalog, cluster, settings or {})
        observed, left_out = await runner.run(pure_only=pure_only)
    results = tuple(
        RuleResult(rule, _unique(rule.check(observed)), rule.tried(observed)) for rule in RULES
    )
    return Report(results, tuple(observed.handlers), tuple(left_out))


def _unique(problems: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(problems))


class _Runner:
    def __init__(
        self,
        endpoint: Endpoint,
        connections: Connections,
        catalog: Catalog,
        cluster: ClusterFixture,
        settings: Mapping[str, str],
    ) -> None:
        self._endpoint, self._connections = endpoint, connections
        self._catalog, self._cluster, self._settings = catalog, cluster, settings
        self._headers: Mapping[str, str] = {}

    async def run(self, *, pure_only: bool) -> tuple[Observations, list[str]]:
        first = await self._discover()
        refused = first.failure_kind == "status" or (first.status == "Failure")
        if refused:
            # Perhaps only the Content-Type is missing.
            self._headers = _JSON
            first = await self._discover()
            refused = not first.succeeded
        needs_content_type = bool(self._headers) and not refused
        if not needs_content_type:
            self._headers = {}
        exchanges = [first, await self._discover()]
        handlers = _handlers(first)
        probes: list[Probe] = []
        left_out: list[str] = []
        for handler in {handler.name: handler for handler in handlers}.values():
            hook = self._hook(handler)
            if reason := _why_not(handler, hook, pure_only=pure_only):
                left_out.append(f"{handler.name}: {reason}")
            elif hook is not None:
                try:
                    request = request_for(hook, self._cluster, self._settings)
                except CatalogError as error:
                    left_out.append(f"{handler.name}: {error}")
                else:
                    probes.append(await self._probe(handler, hook, request))
        concurrent = await asyncio.gather(*(self._discover() for _ in range(CONCURRENT)))
        observed = Observations(
            discovery_hook=Discovery.id,
            discovery=exchanges,
            needs_content_type=needs_content_type,
            handlers=handlers,
            unknown=list(unknown_hooks(handlers, self._catalog)),
            probes=probes,
            concurrent=concurrent,
        )
        return observed, left_out

    def _hook(self, handler: ExtensionHandler) -> AnyHook | None:
        try:
            return self._catalog.find(handler.request_hook.api_version, handler.request_hook.hook)
        except CatalogError:
            return None

    async def _discover(self) -> Exchange:
        request = request_for(Discovery, self._cluster)
        return await self._send(
            "discovery", Discovery.id.path(), orjson.dumps(request), DEFAULT_TIMEOUT_SECONDS
        )

    async def _probe(
        self, handler: ExtensionHandler, hook: AnyHook, request: Unstructured
    ) -> Probe:
        path = hook.id.path(handler.name)
        seconds = min(handler.timeout_seconds or DEFAULT_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS)

        async def send(body: bytes, variant: str = "") -> Exchange:
            label = f"{handler.name} ({hook.id.name}{variant})"
            # The rule about large requests is about their size, and this machine may be busy.
            limit = MAX_TIMEOUT_SECONDS if variant == ", large" else seconds
            return await self._send(label, path, body, limit)

        first = await send(orjson.dumps(request))
        if first.failure_kind is not None:
            # A handler that does not respond would only run into its timeout again.
            return Probe(handler, hook, request, first, first)
        again = await send(orjson.dumps(request))
        bodies = {
            "unknown-fields": orjson.dumps(with_unknown_fields(request)),
            "other-case": orjson.dumps(in_other_case(request)),
            "malformed": b'{"apiVersion":',
        }
        if hook is GenerateUpgradePlan:
            target = request["toKubernetesVersion"]
            upgraded = {**request, "fromControlPlaneKubernetesVersion": target}
            bodies[UPGRADED] = orjson.dumps(upgraded)
        if (large := enlarged(request, LARGE_BYTES)) is not None:
            bodies["large"] = orjson.dumps(large)
        variants = {name: await send(body, f", {name}") for name, body in bodies.items()}
        return Probe(handler, hook, request, first, again, variants)

    async def _send(self, label: str, path: str, body: bytes, seconds: float) -> Exchange:
        outcome: HttpResponse | NoResponseError
        try:
            outcome = await self._connections.post(
                self._endpoint,
                self._endpoint.path(path),
                body,
                seconds=seconds,
                headers=self._headers,
            )
        except NoResponseError as error:
            outcome = error
        return Exchange(label, outcome)


def _handlers(discovery: Exchange) -> Sequence[ExtensionHandler]:
    if not discovery.succeeded or discovery.document is None:
        return ()
    try:
        return read(DiscoveryResponse, discovery.document).handlers
    except MessageError:
        return ()


def _why_not(handler: ExtensionHandler, hook: AnyHook | None, *, pure_only: bool) -> str | None:
    if hook is None:
        return "its hook is unknown"
    if not HANDLER_NAME.fullmatch(handler.name):
        return "its name is invalid"
    if hook.singleton:
        return "it is discovery itself"
    if pure_only and not hook.pure:
        return "it may have side effects"
    return None
