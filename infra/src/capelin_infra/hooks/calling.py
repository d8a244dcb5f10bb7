"""Calling an extension from the command line, and showing what it says."""

import json as jsonlib

import orjson
from capelin.api import Unstructured
from capelin.api.views.capi import ExtensionConfig
from capelin.errors import InvalidInputError, MissingError, UserError
from capelin.runtime import AnyHook, MessageError
from capelin.runtime.calling import (
    Address,
    CallingError,
    Connections,
    DiscoveryError,
    RefusedError,
    check_status,
    read_answer,
)
from capelin.runtime.calling.discovery import SaidHandler, SaidHandlers, problems_of
from capelin.runtime.messages import read
from capelin.runtime.requests import example_scene, request_for
from capelin.runtime.v1alpha1 import Discovery, GeneratePatches, GeneratePatchesRequest
from rich.console import Console

from capelin_infra.hooks.listing import handler_table
from capelin_infra.hooks.preview import preview
from capelin_infra.hooks.requests import Wanted
from capelin_infra.hooks.targets import Target

DISCOVERY_SECONDS = 10


class NotAnsweredError(UserError):
    """An extension that does not do what it was asked."""


def not_answered(which: str, error: CallingError) -> NotAnsweredError:
    """What people are told when an extension does not answer, or not well."""
    match error:
        case RefusedError():
            remedy = "Its log says more; the request that it got is shown by --show-request."
        case DiscoveryError():
            remedy = (
                "Correct its handlers: Cluster API would refuse all of them. Hooks that are not"
                " Cluster API's own are known with --catalog MODULE:NAME."
            )
        case _:
            remedy = f"See what else is wrong with capelin hooks conformance {which}."
    return NotAnsweredError("The call failed.", reason=f"{error}.", hint=remedy)


async def discover(target: Target, *, json: bool) -> None:
    """Show the handlers that an extension has now."""
    config = await target.config()
    handlers = await discovered(target, config)
    if json:
        print(jsonlib.dumps([one.dump() for one in handlers], indent=2))  # noqa: T201
    else:
        Console().print(handler_table(handlers))


async def discovered(target: Target, config: ExtensionConfig) -> list[SaidHandler]:
    """The handlers of an extension.

    Raises:
        NotAnsweredError: it does not say, or not what Cluster API would take.
    """
    address, name = target.address(config), config.metadata.name
    body = orjson.dumps(request_for(Discovery, example_scene()))
    async with target.connections() as connections:
        try:
            answer = await connections.post(
                address, address.path(Discovery.id.path()), body, seconds=DISCOVERY_SECONDS
            )
            check_status(name, answer)
            handlers = read_answer(name, SaidHandlers, answer.body).handlers
            if problems := problems_of(handlers, target.catalog):
                raise DiscoveryError(name, problems)
        except CallingError as error:
            raise not_answered(target.which, error) from None
    return handlers


async def call(
    target: Target, name: str, wanted: Wanted, *, diff: bool, show_request: bool
) -> bool:
    """Call a handler and show its answer; whether it holds its caller back."""
    config = await target.config()
    handler = find_handler(await discovered(target, config), name, config.metadata.name)
    hook = hook_of(handler, target)
    request = await request_of(target, wanted, handler, config)
    if show_request:
        print(jsonlib.dumps(request, indent=2))  # noqa: T201
        return False
    if diff and hook is not GeneratePatches:
        raise InvalidInputError(
            f"{name} has nothing to compare.",
            reason=f"It answers {hook.id.name}, and only GeneratePatches changes templates.",
            hint="Leave --diff out.",
        )
    compared = _templates(request) if diff else {}
    async with target.connections() as connections:
        try:
            answer = await ask(connections, target.address(config), handler, hook, request)
        except CallingError as error:
            raise not_answered(target.which, error) from None
    if diff:
        for line in preview(compared, answer):
            print(line)  # noqa: T201
    else:
        print(jsonlib.dumps(answer, indent=2))  # noqa: T201
    return bool(hook.blocks() and answer.get("retryAfterSeconds"))


async def request_of(
    target: Target, wanted: Wanted, handler: SaidHandler, config: ExtensionConfig
) -> Unstructured:
    """What to ask a handler.

    Raises:
        InvalidInputError: nobody can say what.
        MissingError: what it is to be about is not there.
    """
    name = handler.name if target.is_url else f"{handler.name}.{config.metadata.name}"
    return await wanted.request(
        hook_of(handler, target), name, target.environment, config.spec.settings
    )


def _templates(request: Unstructured) -> Unstructured:
    """The request with its fields named as they are compared, whoever wrote it.

    Raises:
        InvalidInputError: it is none of GeneratePatches.
    """
    try:
        return read(GeneratePatchesRequest, request).dump()
    except MessageError as error:
        raise InvalidInputError(
            "There is nothing to compare with.",
            reason=f"The request is none of GeneratePatches ({error}).",
            hint="See --show-request for how one looks.",
        ) from None


async def ask(
    connections: Connections,
    address: Address,
    handler: SaidHandler,
    hook: AnyHook,
    request: Unstructured,
) -> Unstructured:
    """A handler's answer, which is a success.

    Raises:
        CallingError: it is none, or there is none.
    """
    answer = await connections.post(
        address,
        address.path(hook.id.path(handler.name)),
        orjson.dumps(request),
        seconds=handler.timeout_seconds or 10,
    )
    check_status(handler.name, answer)
    response = read_answer(handler.name, hook.response_type(), answer.body)
    return {
        "apiVersion": hook.id.api_version,
        "kind": hook.response_type().__name__,
        **response.dump(),
    }


def find_handler(handlers: list[SaidHandler], name: str, extension: str) -> SaidHandler:
    """The handler of this name, with or without its extension's.

    Raises:
        MissingError: there is none.
    """
    for handler in handlers:
        if handler.name == name.removesuffix(f".{extension}"):
            return handler
    known = ", ".join(sorted(handler.name for handler in handlers)) or "none"
    raise MissingError(
        f"There is no handler {name}.",
        reason=f"Those that there are: {known}.",
        hint="Name one of them.",
    )


def hook_of(handler: SaidHandler, target: Target) -> AnyHook:
    """What a discovered handler answers."""
    return target.catalog.find(handler.request_hook.api_version, handler.request_hook.hook)
