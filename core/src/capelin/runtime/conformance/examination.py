"""Asking an extension everything that the rules look at."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from capelin.api import Unstructured
from capelin.runtime.calling import Address, Connections, Identity, NoAnswerError
from capelin.runtime.calling.connections import HttpAnswer
from capelin.runtime.calling.discovery import SaidHandler, SaidHandlers, unknown_hooks
from capelin.runtime.calling.registry import DEFAULT_TIMEOUT_SECONDS
from capelin.runtime.catalog import AnyHook, Catalog, CatalogError
from capelin.runtime.conformance.evidence import (
    Asked,
    Evidence,
    Reaction,
    enlarged,
    in_other_case,
    with_unknown_fields,
)
from capelin.runtime.conformance.rules import RULES, Rule
from capelin.runtime.messages import MessageError, read
from capelin.runtime.requests import Scene, example_scene, request_for
from capelin.runtime.v1alpha1 import CLUSTER_API, Discovery
from capelin.runtime.v1alpha1.discovery import HANDLER_NAME, MAX_TIMEOUT_SECONDS

LARGE_BYTES = 19 * 1024 * 1024
TOGETHER = 8
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rule, and what speaks against it."""

    rule: Rule
    problems: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Whether the extension may not be used as it is."""
        return bool(self.problems) and not self.rule.advice


@dataclass(frozen=True, slots=True)
class Report:
    """What came of an examination."""

    verdicts: tuple[Verdict, ...]
    handlers: tuple[SaidHandler, ...]
    left_out: tuple[str, ...]
    """Handlers that were not called, and why."""

    @property
    def passed(self) -> bool:
        """Whether all rules hold, advice aside."""
        return not any(verdict.failed for verdict in self.verdicts)

    @property
    def failed(self) -> list[str]:
        """The names of the rules that do not hold, advice included."""
        return [verdict.rule.name for verdict in self.verdicts if verdict.problems]


async def examine(
    address: Address,
    *,
    scene: Scene | None = None,
    settings: Mapping[str, str] | None = None,
    identity: Identity | None = None,
    catalog: Catalog = CLUSTER_API,
    pure_only: bool = False,
) -> Report:
    """Hold an extension against every rule.

    Its handlers are called for a cluster that does not exist, `conformance/example`, several times
    each.

    Args:
        address: Where it is.
        scene: What to call it about instead.
        settings: What the ExtensionConfig says to it.
        identity: What to show it, if it wants to know who calls.
        catalog: The hooks that its callers know.
        pure_only: Call no handler that may do something beyond computing an answer.

    Raises:
        AddressError: the identity cannot be used.
    """
    scene = scene or example_scene("example", "conformance")
    async with Connections(identity) as connections:
        asking = _Asking(address, connections, catalog, scene, settings or {})
        seen, left_out = await asking.everything(pure_only=pure_only)
    verdicts = tuple(Verdict(rule, _once(rule.look(seen))) for rule in RULES)
    return Report(verdicts, tuple(seen.handlers), tuple(left_out))


def _once(problems: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(problems))


class _Asking:
    """Asks one server."""

    def __init__(
        self,
        address: Address,
        connections: Connections,
        catalog: Catalog,
        scene: Scene,
        settings: Mapping[str, str],
    ) -> None:
        self._address, self._connections = address, connections
        self._catalog, self._scene, self._settings = catalog, scene, settings
        self._headers: Mapping[str, str] = {}

    async def everything(self, *, pure_only: bool) -> tuple[Evidence, list[str]]:
        first = await self._discover()
        refused = first.trouble == "status" or (first.status == "Failure")
        if refused:
            # Perhaps all that is wrong is what does not stand above the request.
            self._headers = _JSON
            first = await self._discover()
            refused = not first.succeeded
        needs_content_type = bool(self._headers) and not refused
        if not needs_content_type:
            self._headers = {}
        reactions = [first, await self._discover()]
        handlers = _said(first)
        asked: list[Asked] = []
        left_out: list[str] = []
        for handler in {one.name: one for one in handlers}.values():
            hook = self._hook(handler)
            if why := _why_not(handler, hook, pure_only=pure_only):
                left_out.append(f"{handler.name}: {why}")
            elif hook is not None:
                try:
                    request = request_for(hook, self._scene, self._settings)
                except CatalogError as error:
                    left_out.append(f"{handler.name}: {error}")
                else:
                    asked.append(await self._handler(handler, hook, request))
        together = await asyncio.gather(*(self._discover() for _ in range(TOGETHER)))
        seen = Evidence(
            host=self._address.authority,
            discovery_hook=Discovery.id,
            discovery=reactions,
            needs_content_type=needs_content_type,
            handlers=handlers,
            unknown=list(unknown_hooks(handlers, self._catalog)),
            asked=asked,
            together=together,
        )
        return seen, left_out

    def _hook(self, handler: SaidHandler) -> AnyHook | None:
        try:
            return self._catalog.find(handler.request_hook.api_version, handler.request_hook.hook)
        except CatalogError:
            return None

    async def _discover(self) -> Reaction:
        head = request_for(Discovery, self._scene)
        return await self._ask(
            "discovery", Discovery.id.path(), orjson.dumps(head), DEFAULT_TIMEOUT_SECONDS
        )

    async def _handler(self, handler: SaidHandler, hook: AnyHook, request: Unstructured) -> Asked:
        path = hook.id.path(handler.name)
        seconds = min(handler.timeout_seconds or DEFAULT_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS)

        async def ask(body: bytes, how: str = "") -> Reaction:
            what = f"{handler.name} ({hook.id.name}{how})"
            return await self._ask(what, path, body, seconds)

        first = await ask(orjson.dumps(request))
        if first.trouble is not None:
            # What does not answer at all would only take its time again.
            return Asked(handler, hook, request, first, first)
        again = await ask(orjson.dumps(request))
        bodies = {
            "unknown-fields": orjson.dumps(with_unknown_fields(request)),
            "other-case": orjson.dumps(in_other_case(request)),
            "malformed": b'{"apiVersion":',
        }
        if (large := enlarged(request, LARGE_BYTES)) is not None:
            bodies["large"] = orjson.dumps(large)
        derived = {name: await ask(body, f", {name}") for name, body in bodies.items()}
        return Asked(handler, hook, request, first, again, derived)

    async def _ask(self, what: str, path: str, body: bytes, seconds: float) -> Reaction:
        answer: HttpAnswer | NoAnswerError
        try:
            answer = await self._connections.post(
                self._address,
                self._address.path(path),
                body,
                seconds=seconds,
                headers=self._headers,
            )
        except NoAnswerError as error:
            answer = error
        return Reaction(what, answer)


def _said(discovery: Reaction) -> Sequence[SaidHandler]:
    if not discovery.succeeded or discovery.document is None:
        return ()
    try:
        return read(SaidHandlers, discovery.document).handlers
    except MessageError:
        return ()


def _why_not(handler: SaidHandler, hook: AnyHook | None, *, pure_only: bool) -> str | None:
    if hook is None:
        return "its hook is not known"
    if not HANDLER_NAME.fullmatch(handler.name):
        return "it cannot be called by its name"
    if hook.singleton:
        return "it is discovery itself"
    if pure_only and not hook.pure:
        return "it may do something beyond computing an answer"
    return None
