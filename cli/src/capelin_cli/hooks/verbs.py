"""The verbs of `capelin hooks`, with their output for people and programs."""

import asyncio
import base64
import json as jsonlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from itertools import groupby
from typing import Any, Final

import yaml
from capelin.api import Unstructured
from capelin.api.capi import ExtensionConfig
from capelin.errors import InvalidInputError, MissingError, UserError
from capelin.runtime import AnyHook, MessageError
from capelin.runtime.client import (
    CallError,
    Connections,
    DiscoveryError,
    Endpoint,
    EndpointError,
    RefusedError,
)
from capelin.runtime.client import call as call_hook
from capelin.runtime.client import discover as discover_handlers
from capelin.runtime.messages import read
from capelin.runtime.topology import PatchError, UnreadablePatchError, apply_patch, same
from capelin.runtime.v1alpha1 import ExtensionHandler, GeneratePatches, GeneratePatchesRequest
from capelin_conformance.extensions import check_extension
from capelin_conformance.report import ConformanceReport, Result, render
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from capelin_cli.environments.connection import client_of, find_environment
from capelin_cli.hooks.targets import RequestOptions, Target, registered
from capelin_cli.status.policies import policy_list, read_policies, read_results
from capelin_cli.terminal.tables import (
    Column,
    Format,
    listing_console,
    print_data,
    print_list,
    table_of,
)
from capelin_cli.terminal.text import as_invoked, printable

_OWN_GROUP: Final = "hooks.runtime.cluster.x-k8s.io"
"""The API group of Cluster API's own hooks."""


def preview(request: Unstructured, response: Unstructured) -> Iterator[str]:
    """The lines of a diff for each template that changes."""
    patches: dict[str, list[Unstructured]] = {}
    for patch in response.get("items", []):
        patches.setdefault(patch["uid"], []).append(patch)
    if unknown := patches.keys() - {item["uid"] for item in request["items"]}:
        raise _unusable(
            "A patch is for no template of the request.",
            f"No item of the request has the uid {min(unknown)!r}.",
        )
    changed = False
    for item in request["items"]:
        before = after = item["object"]
        for patch in patches.get(item["uid"], []):
            after = _applied(after, patch)
        if not same(before, after):
            changed = True
            yield from _difference(_title(item), before, after)
    if not changed:
        yield "No template changes."


def _applied(template: Any, patch: Unstructured) -> Any:
    try:
        return apply_patch(template, patch["patchType"], base64.b64decode(patch["patch"]))
    except UnreadablePatchError as error:
        raise _unusable("A patch cannot be read.", f"{error}.") from None
    except PatchError as error:
        raise _unusable("A patch does not fit its template.", f"{error}.") from None


def _unusable(what: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        what,
        reason=why,
        hint="Correct the extension: Cluster API would report it in the Cluster's conditions.",
    )


def _title(item: Unstructured) -> str:
    holder, template = item["holderReference"], item["object"]
    return f"{template['kind']} of {holder['kind']} {holder['name']} ({holder['fieldPath']})"


def _difference(title: str, before: Any, after: Any) -> Iterator[str]:
    texts = [yaml.safe_dump(document, sort_keys=True).splitlines() for document in (before, after)]
    yield from unified_diff(texts[0], texts[1], f"{title}: now", f"{title}: patched", lineterm="")


class CallFailedError(UserError):
    """The extension did not respond, or not with success."""


@dataclass(frozen=True, slots=True)
class _Handler:
    hook: AnyHook
    discovered: ExtensionHandler
    endpoint: Endpoint
    config: ExtensionConfig
    target: Target

    @property
    def full_name(self) -> str:
        """The name in ClusterClasses. A URL does not contain the extension's."""
        name = self.discovered.name
        return name if self.target.is_url else f"{name}.{self.config.metadata.name}"

    async def request(self, options: RequestOptions) -> Unstructured:
        settings = self.config.spec.settings
        return await options.request(self.hook, self.full_name, self.target.environment, settings)

    async def call(self, connections: Connections, request: Unstructured) -> Unstructured:
        response = await call_hook(
            connections,
            self.endpoint,
            self.hook,
            request,
            handler=self.discovered.name,
            seconds=self.discovered.timeout_seconds or 10,
        )
        kind = self.hook.response_type().__name__
        return {"apiVersion": self.hook.id.api_version, "kind": kind, **response.dump()}


@dataclass(frozen=True, slots=True)
class Listed:
    """A handler as a row of a table, or an ExtensionConfig that has none."""

    config: ExtensionConfig
    handler: ExtensionHandler | None = None

    @property
    def discovered(self) -> str:
        conditions = [c for c in self.config.status.conditions if c.type == "Discovered"]
        state = conditions[0].status if conditions else "Unknown"
        return state if state in {"True", "Unknown"} else f"{state}: {conditions[0].message}"


async def ls(environment: str, *, output: Format) -> None:
    """List the environment's ExtensionConfigs and their handlers."""
    async with client_of(find_environment(environment)) as client:
        configs = sorted(await registered(client), key=lambda config: config.metadata.name)
        policies, results = await read_policies(client), await read_results(client)
    if output in {"json", "yaml"}:
        print_data([obj.dump() for obj in (*configs, *policies, *results)], output)
        return
    if not configs:
        Console().print(
            as_invoked("No ExtensionConfigs. Register one: capelin hooks register URL.")
        )
        return
    rows: list[Listed] = []
    for config in configs:
        handlers = [ExtensionHandler.read(handler.dump()) for handler in config.status.handlers]
        rows += [Listed(config, handler) for handler in handlers] or [Listed(config)]
    if output == "wide":
        columns = (
            Column[Listed]("EXTENSION", lambda row: row.config.name),
            *_COLUMNS,
            Column[Listed]("URL", lambda row: row.config.spec.client_config.url or ""),
            Column[Listed]("DISCOVERED", lambda row: row.discovered),
        )
        listing_console().print(table_of(rows, columns, wide=True))
    else:
        listing_console().print(by_extension(rows))
    if policies:
        Console().print()
        Console().print(policy_list(policies, results))


def by_extension(rows: Sequence[Listed]) -> RenderableType:
    """The handlers under the names of their extensions, so that both fit on a narrow terminal."""
    parts: list[RenderableType] = []
    for config, group in groupby(rows, key=lambda row: row.config):
        listed = list(group)
        discovered = listed[0].discovered
        word = "discovered" if discovered == "True" else f"discovered: {discovered}"
        style = "dim" if discovered == "True" else "yellow"
        parts.append(Text.assemble((config.name, "bold"), "  ", (printable(word), style)))
        handlers = [row for row in listed if row.handler is not None]
        if handlers:
            parts.append(Padding(table_of(handlers, _COLUMNS), (0, 0, 0, 2)))
    return Group(*parts)


async def discover(target: Target, *, output: Format) -> None:
    """Show the handlers that an extension has now."""
    config = await target.config()
    rows = [Listed(config, handler) for handler in await _discover(target, config)]
    print_list(rows, _COLUMNS, lambda row: row.handler and row.handler.dump(), output)


def _of(text: Callable[[ExtensionHandler], str]) -> Callable[[Listed], str]:
    return lambda row: text(row.handler) if row.handler is not None else ""


def _hook(handler: ExtensionHandler) -> str:
    """The hook, with its version where it is none of Cluster API's own."""
    hook, version = handler.request_hook.hook, handler.request_hook.api_version
    return hook if version.startswith(f"{_OWN_GROUP}/") else f"{hook} {version}"


def _timeout(handler: ExtensionHandler) -> str:
    return f"{10 if handler.timeout_seconds is None else handler.timeout_seconds} s"


_COLUMNS = (
    Column[Listed]("HANDLER", _of(lambda handler: handler.name)),
    Column[Listed]("HOOK", _of(_hook)),
    Column[Listed]("FAILURE", _of(lambda handler: handler.failure_policy or "Fail")),
    Column[Listed]("VERSION", _of(lambda handler: handler.request_hook.api_version), wide=True),
    Column[Listed]("TIMEOUT", _of(_timeout), wide=True),
)


async def call(
    target: Target, name: str, options: RequestOptions, *, diff: bool, show_request: bool
) -> bool:
    """Call a handler and show its response. Returns whether it blocks the caller."""
    handler = await _find(target, name)
    request = await handler.request(options)
    if show_request:
        _print_json(request)
        return False
    if diff and handler.hook is not GeneratePatches:
        raise InvalidInputError(
            f"{name} has no templates to compare.",
            reason=f"It serves {handler.hook.id.name}, and only GeneratePatches changes templates.",
            hint="Leave --diff out.",
        )
    templates = _templates(request) if diff else {}
    async with target.connections() as connections:
        try:
            response = await handler.call(connections, request)
        except CallError as error:
            raise _failed(target, error) from None
    if diff:
        for line in preview(templates, response):
            print(line)  # noqa: T201
    else:
        _print_json(response)
    return bool(handler.hook.blocks() and response.get("retryAfterSeconds"))


async def bench(
    target: Target,
    name: str,
    options: RequestOptions,
    *,
    seconds: float,
    connections: int,
    output: Format,
) -> None:
    """Call a handler again and again for some seconds, and show how long it takes."""
    handler = await _find(target, name)
    request = await handler.request(options)
    durations: list[float] = []
    async with target.connections() as pool:

        async def call_until(end: float) -> None:
            while time.perf_counter() < end:
                start = time.perf_counter()
                await handler.call(pool, request)
                durations.append(time.perf_counter() - start)

        try:
            # The first call opens a connection, which is not measured.
            await handler.call(pool, request)
            end = time.perf_counter() + seconds
            await asyncio.gather(*(call_until(end) for _ in range(connections)))
        except CallError as error:
            raise _failed(target, error) from None
    figures = {
        "calls": len(durations),
        "perSecond": round(len(durations) / seconds, 1),
        **{f"p{part}Milliseconds": percentile(durations, part) for part in (50, 90, 99)},
    }
    if output in {"json", "yaml"}:
        print_data(figures, output)
        return
    Console(highlight=False).print(
        f"{figures['calls']} calls, {figures['perSecond']} a second over {connections} "
        f"connections. 50 % took at most {figures['p50Milliseconds']} ms, 90 % "
        f"{figures['p90Milliseconds']} ms, 99 % {figures['p99Milliseconds']} ms.",
        soft_wrap=True,
    )


async def conformance(
    target: Target, options: RequestOptions, *, pure_only: bool, output: Format
) -> bool:
    """Check an extension against every rule, show the results, and return whether it passed."""
    config = await target.config()
    try:
        report = await check_extension(
            target.endpoint(config),
            cluster=await options.cluster_fixture(target.environment),
            settings=config.spec.settings,
            client_certificate=target.client_certificate,
            catalog=target.catalog,
            pure_only=pure_only,
        )
    except EndpointError as error:
        raise InvalidInputError(
            "Capelin cannot call the extension.", reason=f"{error}.", hint="Name other files."
        ) from None
    results = tuple(
        Result(it.rule.name, it.rule.requirement, it.outcome, it.problems, it.rule.hint)
        for it in report.results
    )
    shown = ConformanceReport(f"{target.name}: {len(report.handlers)} handlers", results)
    if output in {"json", "yaml"}:
        data = jsonlib.loads(render(shown, "json"))
        print_data({**data, "leftOut": list(report.left_out)}, output)
    else:
        lines = [render(shown, "text"), *(f"not called: {it}" for it in report.left_out)]
        print(printable("\n".join(lines)))  # noqa: T201
    return report.passed


async def _discover(target: Target, config: ExtensionConfig) -> list[ExtensionHandler]:
    async with target.connections() as connections:
        try:
            return await discover_handlers(
                connections,
                target.endpoint(config),
                name=config.metadata.name,
                catalog=target.catalog,
            )
        except CallError as error:
            raise _failed(target, error) from None


async def _find(target: Target, name: str) -> _Handler:
    """The handler of this name, with or without its extension's."""
    config = await target.config()
    handlers = await _discover(target, config)
    for handler in handlers:
        if handler.name == name.removesuffix(f".{config.metadata.name}"):
            hook = target.catalog.find(handler.request_hook.api_version, handler.request_hook.hook)
            return _Handler(hook, handler, target.endpoint(config), config, target)
    known = ", ".join(sorted(handler.name for handler in handlers)) or "none"
    raise MissingError(
        f"Handler {name} does not exist.",
        reason=f"Its handlers: {known}.",
        hint="Name one of them.",
    )


def _failed(target: Target, error: CallError) -> CallFailedError:
    match error:
        case RefusedError():
            hint = "See its log for more, and --show-request for the request."
        case DiscoveryError():
            hint = (
                "Correct its handlers: Cluster API would refuse all of them. Hooks that are not"
                " Cluster API's own are known with --catalog MODULE:NAME."
            )
        case _:
            hint = f"See what else is wrong with capelin hooks conformance {target.name}."
    return CallFailedError("The call failed.", reason=f"{error}.", hint=hint)


def _templates(request: Unstructured) -> Unstructured:
    """The request with the field names of its type, in whatever form it was written."""
    try:
        return read(GeneratePatchesRequest, request).dump()
    except MessageError as error:
        raise InvalidInputError(
            "The request has no templates to compare.",
            reason=f"It is not a request of GeneratePatches ({error}).",
            hint="See --show-request for an example.",
        ) from None


def percentile(durations: Sequence[float], part: int) -> float:
    """The milliseconds that so many percent of the calls took at most."""
    ordered = sorted(durations)
    return round(ordered[min(len(ordered) * part // 100, len(ordered) - 1)] * 1000, 2)


def _print_json(value: object) -> None:
    print(jsonlib.dumps(value, indent=2))  # noqa: T201
