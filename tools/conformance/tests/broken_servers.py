"""A small extension without the SDK, and its broken variants."""

import asyncio
import base64
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

HOOKS = "hooks.runtime.cluster.x-k8s.io/v1alpha1"
PREFIX = f"/{HOOKS}"

Json = dict[str, Any]


class Plain:
    """Serves discovery, GeneratePatches, DiscoverVariables, an upgrade plan and a blocking hook."""

    handlers: list[Json] = [
        {"name": name, "requestHook": {"apiVersion": HOOKS, "hook": hook}, "timeoutSeconds": 2}
        for name, hook in (
            ("patches", "GeneratePatches"),
            ("variables", "DiscoverVariables"),
            ("plan", "GenerateUpgradePlan"),
            ("gate", "BeforeClusterUpgrade"),
        )
    ]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await self.body(request)
        return web.Response(body=json.dumps(await self.reply(request.path, body)).encode())

    async def body(self, request: web.BaseRequest) -> bytes:
        pieces = [piece async for piece in request.content.iter_any()]
        return b"".join(pieces)

    async def reply(self, path: str, body: bytes) -> Json:
        name = path.removeprefix(PREFIX).split("/")[1]
        try:
            request = self.read(body)
        except ValueError:
            return self.failure("no JSON")
        if name == "discovery":
            return self.response("Discovery", handlers=self.handlers)
        hook = next(
            handler["requestHook"]["hook"]
            for handler in self.handlers
            if handler["requestHook"]["hook"].lower() == name
        )
        return self.answer(hook, request)

    def read(self, body: bytes) -> Json:
        return {key.lower(): value for key, value in json.loads(body).items()}

    def answer(self, hook: str, request: Json) -> Json:
        if hook == "GeneratePatches":
            return self.response(hook, items=[self.patch(item) for item in request["items"]])
        if hook == "DiscoverVariables":
            return self.response(hook, variables=[self.variable()])
        if hook == "GenerateUpgradePlan":
            has_target = request["fromcontrolplanekubernetesversion"] == "v1.34.4"
            steps = [] if has_target else [{"version": "v1.34.4"}]
            return self.response(hook, controlPlaneUpgrades=steps)
        return self.response(hook, retryAfterSeconds=30, message="not yet")

    def patch(self, item: Json) -> Json:
        text = json.dumps(self.steps()).encode()
        return {
            "uid": item["uid"],
            "patchType": "JSONPatch",
            "patch": base64.b64encode(text).decode(),
        }

    def steps(self) -> Any:
        return [{"op": "add", "path": "/spec/template/spec/motto", "value": "swim"}]

    def variable(self) -> Json:
        return {"name": "motto", "schema": {"openAPIV3Schema": {"type": "string"}}}

    def response(self, hook: str, **fields: Any) -> Json:
        return {"apiVersion": HOOKS, "kind": f"{hook}Response", "status": "Success", **fields}

    def failure(self, message: str) -> Json:
        return {"status": "Failure", "message": message}


def discovering(change: Callable[[list[Json]], None]) -> type[Plain]:
    """A server that changes its discovery response."""

    class Announced(Plain):
        def __init__(self) -> None:
            self.handlers = json.loads(json.dumps(Plain.handlers))
            change(self.handlers)

    return Announced


def answering(change: Callable[[Json], object]) -> type[Plain]:
    """A server that changes its other responses."""

    class Changed(Plain):
        def answer(self, hook: str, request: Json) -> Json:
            response = super().answer(hook, request)
            change(response)
            return response

    return Changed


def responding(
    respond: Callable[[web.BaseRequest, Json], Awaitable[web.StreamResponse]],
) -> type[Plain]:
    """A server that replaces its other HTTP responses."""

    class Responding(Plain):
        async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
            if request.path.endswith("discovery"):
                return await super().handle(request)
            return await respond(request, await self.reply(request.path, await self.body(request)))

    return Responding


async def _status_500(_: web.BaseRequest, response: Json) -> web.StreamResponse:
    return web.json_response(response, status=500)


async def _redirect(request: web.BaseRequest, _: Json) -> web.StreamResponse:
    return web.Response(status=308, headers={"Location": f"{request.path}/"})


async def _hang(_: web.BaseRequest, __: Json) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def _page(_: web.BaseRequest, __: Json) -> web.StreamResponse:
    return web.Response(text="<html>")


class NeedsContentType(Plain):
    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.content_type != "application/json":
            return web.Response(status=415)
        return await super().handle(request)


class RejectsLarge(Plain):
    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await self.body(request)
        if len(body) > 1024 * 1024:
            return web.Response(status=413)
        return web.Response(body=json.dumps(await self.reply(request.path, body)).encode())


class RejectsUnknown(Plain):
    def answer(self, hook: str, request: Json) -> Json:
        return (
            self.failure("unknown field")
            if "fromthefuture" in request
            else super().answer(hook, request)
        )


class CaseSensitive(Plain):
    def read(self, body: bytes) -> Json:
        request = json.loads(body)
        if "ApiVersion" in request:
            raise ValueError
        return {key.lower(): value for key, value in request.items()}


class Crashes(Plain):
    def read(self, body: bytes) -> Json:
        try:
            return super().read(body)
        except ValueError:
            raise web.HTTPBadRequest from None

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await super().handle(request)
        except web.HTTPBadRequest:
            return web.Response(status=400)


class Changing(Plain):
    def __init__(self) -> None:
        self.count = itertools.count()

    def steps(self) -> Any:
        return [{"op": "add", "path": "/spec/template/spec/motto", "value": next(self.count)}]


class OnlyOnce(Plain):
    def __init__(self) -> None:
        self.done = False

    def answer(self, hook: str, request: Json) -> Json:
        if hook != "BeforeClusterUpgrade":
            return super().answer(hook, request)
        if self.done:
            return {**self.response(hook), "status": "Failure", "message": "done already"}
        self.done = True
        return super().answer(hook, request)


class Chatty(Plain):
    def __init__(self) -> None:
        self.count = itertools.count()

    def answer(self, hook: str, request: Json) -> Json:
        if hook != "BeforeClusterUpgrade":
            return super().answer(hook, request)
        number = next(self.count)
        if number > 1:
            return super().answer(hook, request)
        response = self.response(hook, retryAfterSeconds=0, message=f"try {number}")
        return {**response, "status": "Failure"}


class AlwaysFails(Plain):
    """Its gate lacks a setting and reports that correctly."""

    def answer(self, hook: str, request: Json) -> Json:
        answer = super().answer(hook, request)
        if hook == "BeforeClusterUpgrade":
            answer |= {"status": "Failure", "message": "settings: url is required"}
        return answer


class Unstable(Plain):
    def __init__(self) -> None:
        self.handlers = list(Plain.handlers)

    async def reply(self, path: str, body: bytes) -> Json:
        if path.endswith("discovery"):
            self.handlers.reverse()
        return await super().reply(path, body)


class Failing(Plain):
    async def reply(self, path: str, body: bytes) -> Json:
        if path.endswith("discovery"):
            return {**self.response("Discovery"), "status": "Failure", "message": "not ready"}
        return await super().reply(path, body)


def _steps(*steps: Json) -> type[Plain]:
    class Patching(Plain):
        def steps(self) -> Any:
            return list(steps)

    return Patching


class Repeating(Plain):
    """Has a step for a control plane that has the version."""

    def answer(self, hook: str, request: Json) -> Json:
        return super().answer(hook, {**request, "fromcontrolplanekubernetesversion": ""})


def _of(key: str, change: Callable[[Any], object]) -> Callable[[Json], object]:
    def at(response: Json) -> None:
        if key in response:
            change(response[key])

    return at


def _lose(key: str) -> Callable[[Json], object]:
    return lambda response: response.pop(key, None)


IN_PLACE = {"apiVersion": HOOKS, "hook": "CanUpdateMachine"}

BROKEN: dict[str, tuple[type[Plain], str, str]] = {
    "an HTTP error": (responding(_status_500), "status-200", "HTTP status 500"),
    "a redirect": (responding(_redirect), "redirects", "HTTP status 308"),
    "no response": (responding(_hang), "timeouts", "no response in 2 s"),
    "no JSON": (responding(_page), "responses", "is not a JSON object"),
    "requires Content-Type": (NeedsContentType, "content-type", "without Content-Type"),
    "a wrong type": (
        answering(_of("items", lambda items: items[0].update(patch="not base64"))),
        "responses",
        "should be base64",
    ),
    "a wrong kind": (
        answering(lambda response: response.update(kind="Response")),
        "kinds",
        f"it is {HOOKS} Response, not {HOOKS} GeneratePatchesResponse",
    ),
    "a wrong version": (
        answering(lambda response: response.update(apiVersion="hooks/v2")),
        "kinds",
        "it is hooks/v2 GeneratePatchesResponse",
    ),
    "no status": (answering(_lose("status")), "status", "status is None"),
    "an invalid status": (
        answering(lambda response: response.update(status="success")),
        "status",
        "status is 'success'",
    ),
    "no discovery": (Failing, "discovery", "Failure: not ready"),
    "a discovery that changes": (Unstable, "discovery", "have different responses"),
    "an invalid name": (
        discovering(lambda all_: all_[0].update(name="Gate_Keeper")),
        "handler-names",
        "'Gate_Keeper' is not a valid handler name",
    ),
    "a duplicate name": (
        discovering(lambda all_: all_.append(all_[0])),
        "unique-names",
        "2 handlers have the name patches",
    ),
    "a long timeout": (
        discovering(lambda all_: all_[0].update(timeoutSeconds=60)),
        "handler-timeouts",
        "patches has a timeout of 60 seconds",
    ),
    "an unknown failure policy": (
        discovering(lambda all_: all_[0].update(failurePolicy="Retry")),
        "failure-policies",
        "failure policy 'Retry'",
    ),
    "an unknown hook": (
        discovering(
            lambda all_: all_.append(
                {"name": "new", "requestHook": {"apiVersion": HOOKS, "hook": "BeforeLunch"}}
            )
        ),
        "known-hooks",
        "new serves BeforeLunch",
    ),
    "two handlers of an exclusive hook": (
        discovering(
            lambda all_: all_.extend({"name": n, "requestHook": IN_PLACE} for n in ("one", "two"))
        ),
        "exclusive-hooks",
        "2 handlers serve CanUpdateMachine",
    ),
    "a negative wait": (
        answering(lambda response: "message" in response and response.update(retryAfterSeconds=-5)),
        "retry-after",
        "retryAfterSeconds is -5",
    ),
    "a missing wait": (
        answering(_lose("retryAfterSeconds")),
        "retry-after",
        "retryAfterSeconds is None",
    ),
    "a patch for an unknown uid": (
        answering(_of("items", lambda items: items[0].update(uid="other"))),
        "patches",
        "a uid that is not in the request",
    ),
    "a patch that does not fit": (
        _steps({"op": "remove", "path": "/spec/nowhere"}),
        "patches",
        "does not fit the document (DevClusterTemplate at spec.infrastructureRef)",
    ),
    "a patch of the name": (
        _steps({"op": "replace", "path": "/metadata/name", "value": "other"}),
        "patch-scope",
        "changes more than it may (DevClusterTemplate",
    ),
    "a variable without a schema": (
        answering(_of("variables", lambda all_: all_[0].pop("schema"))),
        "variables",
        "variable motto has no schema",
    ),
    "a plan with a wrong end": (
        answering(_of("controlPlaneUpgrades", lambda steps: steps.append({"version": "v1.35.0"}))),
        "upgrade-plans",
        "does not end with v1.34.4",
    ),
    "a plan for an upgraded control plane": (
        Repeating,
        "upgrade-plans",
        "upgraded): the control plane needs no step",
    ),
    "different patches each time": (Changing, "determinism", "another response the second time"),
    "a handler that never succeeds": (
        AlwaysFails,
        "success",
        "gate (BeforeClusterUpgrade): it never succeeded: settings: url is required",
    ),
    "an error the second time": (OnlyOnce, "idempotence", "fails the second time: done already"),
    "messages that change": (Chatty, "messages", "another message the second time"),
    "rejects unknown fields": (RejectsUnknown, "unknown-fields", "unknown-fields): Failure"),
    "rejects large requests": (RejectsLarge, "large-requests", "large): HTTP status 413"),
    "case-sensitive fields": (CaseSensitive, "field-case", "other-case): Failure"),
    "a crash": (Crashes, "malformed-requests", "malformed): HTTP status 400"),
}
