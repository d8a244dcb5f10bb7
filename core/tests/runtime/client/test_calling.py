"""Calls over real connections."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiohttp import web
from capelin.api.capi import ExtensionConfig
from capelin.api.core import LabelSelector
from capelin.runtime import Catalog, Deprecation, Hook, Message, Response
from capelin.runtime.client import (
    Backoff,
    Caller,
    CallMetrics,
    ClientCertificate,
    DiscoveryError,
    Endpoint,
    EndpointError,
    HttpResponse,
    NamespacedName,
    NamespaceMismatchError,
    NoHandlerError,
    NoMergeRuleError,
    NoResponseError,
    RefusedError,
    Registry,
    TooManyHandlersError,
    UnknownHandlerError,
    merge_responses,
)
from capelin.runtime.client.http import MAX_RESPONSE_BYTES, Connections
from capelin.runtime.v1alpha1 import (
    BeforeClusterCreate,
    BeforeClusterCreateRequest,
    BeforeClusterDelete,
    CanUpdateMachine,
    CanUpdateMachineRequest,
    CanUpdateMachineResponse,
    DiscoverVariables,
    DiscoverVariablesRequest,
    Discovery,
    GeneratePatches,
    GeneratePatchesRequest,
)
from prometheus_client import CollectorRegistry

from .hook_server import CA, Server, bound, credentials, listening, server_context

HOOK = "hooks.runtime.cluster.x-k8s.io/v1alpha1"
DISCOVERY = Discovery.id.path()
GATE = BeforeClusterCreate.id.path("gate")
OTHER = BeforeClusterCreate.id.path("other")
VARIABLES = DiscoverVariables.id.path("variables")
DEMO = NamespacedName("default", "demo")
CREATE = BeforeClusterCreateRequest(cluster_json={"metadata": {"name": "demo"}})


def handler(name: str, hook: str = "BeforeClusterCreate", **more: Any) -> dict[str, Any]:
    return {"name": name, "requestHook": {"apiVersion": HOOK, "hook": hook}, **more}


def discovers(*handlers: dict[str, Any]) -> dict[str, Any]:
    return {"status": "Success", "handlers": list(handlers)}


async def labels(namespace: str) -> Mapping[str, str]:
    return {"kubernetes.io/metadata.name": namespace}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def calling(*configs: ExtensionConfig, **options: Any) -> AsyncGenerator[Caller]:
    """A caller that has discovered these."""
    options.setdefault("clock", Clock())
    async with Caller(Registry(), namespace_labels=labels, **options) as caller:
        for config in configs:
            caller.registry.add(await caller.discover(config))
        yield caller


async def test_a_call_travels_as_cluster_api_sends_it(server: Server) -> None:
    server.says[DISCOVERY] = discovers(handler("gate", timeoutSeconds=7))
    server.says[GATE] = {"status": "Success", "message": "closed", "retryAfterSeconds": 30}
    async with calling(server.config(settings={"a": "config", "b": "config"})) as caller:
        request = CREATE.model_copy(update={"settings": {"a": "request"}})
        response = await caller.call(BeforeClusterCreate, "gate.ext", request, about=DEMO)
    assert (response.message, response.retry_after_seconds) == ("closed", 30)
    asked, body = server.asked[-1], server.bodies[-1]
    assert (asked.method, asked.query_string) == ("POST", "timeout=7s")
    assert not {"Content-Type", "Accept", "Cookie"} & set(asked.headers)
    assert body == {
        "apiVersion": HOOK,
        "kind": "BeforeClusterCreateRequest",
        "cluster": {"metadata": {"name": "demo"}},
        "settings": {"a": "request", "b": "config"},
    }
    assert server.bodies[0] == {"apiVersion": HOOK, "kind": "DiscoveryRequest"}


async def test_discovery_is_refused_with_everything_that_is_wrong(server: Server) -> None:
    server.says[DISCOVERY] = discovers(handler("Gate"), handler("slow", timeoutSeconds=60))
    async with calling() as caller:
        with pytest.raises(DiscoveryError) as error:
            await caller.discover(server.config())
    assert len(error.value.problems) == 2
    assert "the handlers of ext are invalid: 'Gate' is no valid handler name" in str(error.value)


async def broken_status(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(status=500, text="x" * 600)


async def redirecting(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": GATE})


async def endless(_: web.BaseRequest) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def hanging_up(request: web.BaseRequest) -> web.StreamResponse:
    assert request.transport
    request.transport.abort()
    return web.Response()


async def boundless(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(MAX_RESPONSE_BYTES // 2**20 + 1):
        await response.write(b" " * 2**20)
    return response


async def words(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text="fine")


TROUBLES = [
    (broken_status, "status", "gate.ext responded with status 500: '" + "x" * 512 + "...'"),
    (redirecting, "redirect", "gate.ext redirects (status 307)"),
    (endless, "timeout", "does not respond (no response in 1 s)"),
    (hanging_up, "unreachable", "does not respond (it closed the connection)"),
    (boundless, "unreadable", "above 20 MiB"),
    (words, "unreadable", "not JSON"),
]


@pytest.mark.parametrize(("does", "trouble", "words"), TROUBLES)
async def test_no_answer_fails_or_is_ignored_as_the_handler_says(
    server: Server, does: Any, trouble: str, words: str
) -> None:
    server.says[GATE] = server.says[OTHER] = does
    server.says[DISCOVERY] = discovers(
        handler("gate", timeoutSeconds=1),
        handler("other", timeoutSeconds=1, failurePolicy="Ignore"),
    )
    async with calling(server.config(), backoff=Backoff(0, 0)) as caller:
        with pytest.raises(NoResponseError) as error:
            await caller.call(BeforeClusterCreate, "gate.ext", CREATE, about=DEMO)
        ignored = await caller.call(BeforeClusterCreate, "other.ext", CREATE, about=DEMO)
    assert error.value.failure_kind == trouble
    assert words in str(error.value)
    assert (ignored.status, ignored.message, ignored.retry_after_seconds) == ("Success", "", 0)


@pytest.mark.parametrize("status", ["Failure", "Perhaps"])
async def test_a_failure_is_never_ignored(server: Server, status: str) -> None:
    server.says[DISCOVERY] = discovers(handler("gate", failurePolicy="Ignore"))
    server.says[GATE] = {"status": status, "message": "closed"}
    async with calling(server.config()) as caller:
        with pytest.raises(RefusedError, match="closed"):
            await caller.call(BeforeClusterCreate, "gate.ext", CREATE, about=DEMO)


async def ask(caller: Caller, name: str) -> str:
    try:
        await caller.call(BeforeClusterCreate, name, CREATE, about=DEMO)
    except NoResponseError as error:
        return str(error)
    return "answered"


async def test_a_server_that_is_not_reached_is_left_alone_for_a_while(
    server: Server, tmp_path: Path
) -> None:
    clock = Clock()
    server.says[DISCOVERY] = discovers(handler("gate"), handler("other"))
    async with calling(server.config(), clock=clock, backoff=Backoff(2, 60)) as caller:
        port = bound()
        moved = await caller.discover(server.config())
        moved.spec.client_config.url = f"https://127.0.0.1:{port.getsockname()[1]}"
        caller.registry.add(moved)
        first = await ask(caller, "gate.ext")
        assert "connection refused" in first
        async with listening(
            server.handle, server_context(credentials(tmp_path / "also")), at=port
        ):
            # It is there by now, and nobody looks.
            assert await ask(caller, "gate.ext") == await ask(caller, "other.ext") == first
            clock.now += 2
            assert await ask(caller, "other.ext") == "answered"


async def test_a_server_that_takes_no_connection_is_left_alone_as_a_whole(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tenth of it lies between the two ends of waiting: enough for a machine that is busy.
    server.says[DISCOVERY] = discovers(handler("gate", timeoutSeconds=5), handler("other"))
    with bound() as port, ExitStack() as waiting:
        port.listen(0)
        # More than fit: nobody takes them, and whoever comes next gets no answer at all.
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(port.getsockname())
        async with calling(server.config(), backoff=Backoff(2, 60)) as caller:
            moved = await caller.discover(server.config())
            moved.spec.client_config.url = f"https://127.0.0.1:{port.getsockname()[1]}"
            caller.registry.add(moved)
            first = await ask(caller, "gate.ext")
            assert "no connection in time" in first
            monkeypatch.setattr(Connections, "post", AsyncMock(side_effect=AssertionError))
            assert await ask(caller, "other.ext") == first


async def test_any_answer_shows_that_its_server_is_well(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    server.says[DISCOVERY] = discovers(handler("gate"), handler("other"))
    gone = NoResponseError("unreachable", "gone", reached=False)
    fine = HttpResponse(200, b'{"status":"Success"}', 0)
    post = AsyncMock(side_effect=[gone, HttpResponse(500, b"", 0), gone, fine])
    async with calling(server.config(), clock=clock, backoff=Backoff(2, 60)) as caller:
        monkeypatch.setattr(Connections, "post", post)
        assert await ask(caller, "gate.ext") == "gone"
        clock.now += 2
        assert "status 500" in await ask(caller, "gate.ext")
        assert await ask(caller, "other.ext") == "gone"
        # As long as the first time.
        clock.now += 2
        assert await ask(caller, "other.ext") == "answered"


@pytest.mark.parametrize(
    "does", [broken_status, redirecting, endless, hanging_up, boundless, words]
)
async def test_a_handler_in_trouble_rests_without_the_others_of_its_server(
    server: Server, does: Any
) -> None:
    clock = Clock()
    server.says[DISCOVERY] = discovers(handler("gate", timeoutSeconds=1), handler("other"))
    server.says[GATE] = does
    async with calling(server.config(), clock=clock, backoff=Backoff(2, 60)) as caller:
        first = await ask(caller, "gate.ext")
        assert first != "answered"
        # Whoever else answers failedthing of how this one is.
        assert await ask(caller, "other.ext") == "answered"
        asked = len(server.asked)
        assert await ask(caller, "gate.ext") == first
        assert len(server.asked) == asked
        clock.now += 2
        del server.says[GATE]
        assert await ask(caller, "gate.ext") == "answered"


async def test_all_handlers_are_called_in_turn_and_their_answers_merged(server: Server) -> None:
    server.says[DISCOVERY] = discovers(handler("gate"), handler("other"), handler("third"))
    server.says[GATE] = {"status": "Success", "message": "late", "retryAfterSeconds": 30}
    server.says[OTHER] = {"status": "Success", "message": "soon", "retryAfterSeconds": 5}
    clock = Clock()
    async with calling(server.config(), clock=clock) as caller:
        response = await caller.call_all(BeforeClusterCreate, CREATE, about=DEMO)
        assert (response.retry_after_seconds, response.message) == (5, "late, soon")
        asked = len(server.asked)
        clock.now += 2
        response = await caller.call_all(BeforeClusterCreate, CREATE, about=DEMO)
        assert (response.retry_after_seconds, response.message) == (3, "late, soon")
        assert len(server.asked) == asked
        clock.now += 3
        server.says[OTHER] = {"status": "Failure"}
        with pytest.raises(RefusedError):
            await caller.call_all(BeforeClusterCreate, CREATE, about=DEMO)
        assert [one.path for one in server.asked[asked:]] == [GATE, OTHER]


async def test_a_hook_can_have_its_own_rule_for_several_answers(server: Server) -> None:
    server.says[DISCOVERY] = discovers(handler("gate"), handler("other"))
    server.says[GATE] = {"status": "Success", "message": "one"}

    def last(hook: Any, responses: Any) -> Response:
        return merge_responses(hook, responses[:1])

    async with calling(server.config(), merges={BeforeClusterCreate: last}) as caller:
        assert (await caller.call_all(BeforeClusterCreate, CREATE, about=DEMO)).message == "one"


PATCHES = GeneratePatches.id.path("gate")
IN_PLACE = CanUpdateMachine.id.path("gate")
PATCH = {"patchType": "JSONPatch", "patch": "W10="}
UPDATE = CanUpdateMachineRequest.model_construct()


async def test_what_answers_say_beside_waiting_is_merged_by_a_rule_or_not_at_all(
    server: Server,
) -> None:
    server.says[DISCOVERY] = discovers(
        handler("gate", "GeneratePatches"), handler("other", "GeneratePatches")
    )
    server.says[PATCHES] = {"status": "Success", "items": [{"uid": "1", **PATCH}]}
    server.says[GeneratePatches.id.path("other")] = {"status": "Success", "items": []}
    request = GeneratePatchesRequest(items=[])

    def first(_: Any, responses: Any) -> Response:
        return responses[0]

    async with calling(server.config()) as caller:
        asked = len(server.asked)
        with pytest.raises(NoMergeRuleError, match="no rule merges items"):
            await caller.call_all(GeneratePatches, request, about=DEMO)
        assert len(server.asked) == asked
    async with calling(server.config(), merges={GeneratePatches: first}) as caller:
        response = await caller.call_all(GeneratePatches, request, about=DEMO)
        assert [item.uid for item in response.items] == ["1"]


async def test_one_answer_needs_no_rule_and_none_says_nothing(server: Server) -> None:
    server.says[DISCOVERY] = discovers(handler("gate", "GeneratePatches"))
    server.says[PATCHES] = {"status": "Success", "items": [{"uid": "1", **PATCH}]}
    request = GeneratePatchesRequest(items=[])
    async with calling() as caller:
        nobody = await caller.call_all(GeneratePatches, request, about=DEMO)
        assert (nobody.status, nobody.items) == ("Success", [])
        caller.registry.add(await caller.discover(server.config()))
        response = await caller.call_all(GeneratePatches, request, about=DEMO)
        assert [item.uid for item in response.items] == ["1"]


async def test_a_hook_that_one_handler_answers_is_asked_of_one_only(server: Server) -> None:
    server.says[DISCOVERY] = discovers(handler("gate", "CanUpdateMachine"))
    server.says[IN_PLACE] = {"status": "Success", "machinePatch": PATCH}
    prod = LabelSelector(match_labels={"kubernetes.io/metadata.name": "prod"})
    async with calling() as caller:
        nobody = await caller.call_all(CanUpdateMachine, UPDATE, about=DEMO)
        assert nobody == CanUpdateMachineResponse(status="Success")
        caller.registry.add(await caller.discover(server.config()))
        other = server.config(namespace_selector=prod)
        other.metadata.name = "other"
        caller.registry.add(await caller.discover(other))
        response = await caller.call_all(CanUpdateMachine, UPDATE, about=DEMO)
        assert response.machine_patch
        asked = len(server.asked)
        with pytest.raises(TooManyHandlersError, match=r"gate\.ext, gate\.other"):
            await caller.call_all(CanUpdateMachine, UPDATE, about=NamespacedName("prod", "demo"))
        assert len(server.asked) == asked


async def test_handlers_are_for_the_namespaces_that_their_extension_selects(
    server: Server,
) -> None:
    server.says[DISCOVERY] = discovers(handler("gate"))
    only = LabelSelector(match_labels={"kubernetes.io/metadata.name": "prod"})
    async with calling(server.config(namespace_selector=only)) as caller:
        asked = len(server.asked)
        await caller.call_all(BeforeClusterCreate, CREATE, about=DEMO)
        with pytest.raises(NamespaceMismatchError, match=r"gate\.ext is not for namespace default"):
            await caller.call(BeforeClusterCreate, "gate.ext", CREATE, about=DEMO)
        assert len(server.asked) == asked
        await caller.call_all(BeforeClusterCreate, CREATE, about=NamespacedName("prod", "demo"))
        assert len(server.asked) == asked + 1


async def test_a_handler_is_called_for_its_own_hook_only(server: Server) -> None:
    server.says[DISCOVERY] = discovers(handler("gate"))
    async with calling(server.config()) as caller:
        with pytest.raises(UnknownHandlerError, match=r"gate\.ext serves BeforeClusterC"):
            await caller.call(
                BeforeClusterDelete,
                "gate.ext",
                BeforeClusterDelete.request_type()(cluster_json={}),
                about=DEMO,
            )


async def test_answers_are_kept_by_what_they_depend_on(server: Server) -> None:
    server.says[DISCOVERY] = discovers(handler("variables", "DiscoverVariables"))
    clock = Clock()

    async with calling(server.config(), clock=clock) as caller:

        async def calls(**settings: str) -> int:
            before = len(server.asked)
            request = DiscoverVariablesRequest(settings=settings)
            await caller.call(
                DiscoverVariables, "variables.ext", request, about=DEMO, cache_key="all"
            )
            return len(server.asked) - before

        assert await calls() == 1
        assert await calls() == 0
        assert await calls(a="b") == 1
        clock.now += 600
        assert await calls() == 1
        server.says[VARIABLES] = {"status": "Failure"}
        config = server.config()
        config.metadata.resource_version = "2"
        caller.registry.add(await caller.discover(config))
        with pytest.raises(RefusedError):
            await calls()


async def test_calls_are_counted_under_cluster_api_s_names(server: Server) -> None:
    registry = CollectorRegistry()
    server.says[DISCOVERY] = discovers(handler("gate"))
    server.says[GATE] = {"status": "Failure"}
    async with calling(server.config(), metrics=CallMetrics(registry)) as caller:
        with pytest.raises(RefusedError):
            await caller.call(BeforeClusterCreate, "gate.ext", CREATE, about=DEMO)
        server.says[GATE] = hanging_up
        with pytest.raises(NoResponseError):
            await caller.call(BeforeClusterCreate, "gate.ext", CREATE, about=DEMO)
    where = {
        "host": f"127.0.0.1:{server.port}",
        "group": "hooks.runtime.cluster.x-k8s.io",
        "version": "v1alpha1",
        "hook": "BeforeClusterCreate",
    }

    def total(code: str, status: str) -> float | None:
        return registry.get_sample_value(
            "capi_runtime_sdk_requests_total", {"code": code, "status": status, **where}
        )

    assert (total("200", "Failure"), total("<error>", "Unknown")) == (1, 1)
    name = "capi_runtime_sdk_request_duration_seconds_count"
    assert registry.get_sample_value(name, where) == 2


# Two versions of a hook of somebody's own.
ZOO = Catalog()


class FeedRequest(Message):
    animal: str
    grams: int


class FeedResponse(Response):
    eaten: int


class OldFeedRequest(Message):
    animal: str


class OldFeedResponse(Response):
    """The old version failedthing of how much."""


@ZOO.hook("zoo.example.com/v1", tag="Zoo", summary="Feeds")
class Feed(Hook[FeedRequest, FeedResponse]):
    """Feeds."""


class WeighResponse(Response):
    scale: FeedRequest


@ZOO.hook("zoo.example.com/v1", tag="Zoo", summary="Weighs")
class Weigh(Hook[FeedRequest, WeighResponse]):
    """Weighs; whoever does has a scale."""


@ZOO.hook("zoo.example.com/v1", tag="Zoo", summary="Weighs", exclusive=True)
class WeighAlone(Hook[FeedRequest, WeighResponse]):
    """Weighs; there is one scale."""


class _Old:
    @ZOO.hook(
        "zoo.example.com/v1beta1",
        tag="Zoo",
        summary="Feeds",
        deprecated=Deprecation("1.16", date(2026, 8, 1), replaced_by="v1"),
    )
    class Feed(Hook[OldFeedRequest, OldFeedResponse]):
        """Feeds."""


ZOO.conversion(
    Feed,
    _Old.Feed,
    request=lambda new: OldFeedRequest(animal=new.animal),
    response=lambda old: FeedResponse(status=old.status, message=old.message, eaten=0),
)


def feeds(version: str, name: str) -> dict[str, Any]:
    hook = {"apiVersion": f"zoo.example.com/{version}", "hook": "Feed"}
    return {"name": name, "requestHook": hook}


async def test_older_versions_are_called_with_newest_types(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.says[DISCOVERY] = discovers(feeds("v1beta1", "a"), feeds("v1", "b"))
    server.says["/zoo.example.com/v1/feed/b"] = {"status": "Success", "eaten": 3}
    server.says["/zoo.example.com/v1beta1/feed/a"] = {"status": "Success", "message": "all"}
    async with calling(server.config(), catalog=ZOO) as caller:
        assert [one.name for one in caller.registry.handlers(Feed)] == ["b.ext", "a.ext"]
        request = FeedRequest(animal="otter", grams=5)
        new = await caller.call(Feed, "b.ext", request, about=DEMO)
        old = await caller.call(Feed, "a.ext", request, about=DEMO)
    assert (new.eaten, old.eaten, old.message) == (3, 0, "all")
    # Discovery warns, and then the call does not warn again.
    (warning,) = (record for record in caplog.records if record.levelname == "WARNING")
    words = "a.ext serves a deprecated hook: Feed zoo.example.com/v1beta1"
    assert warning.getMessage().startswith(words)
    assert server.bodies[-1] == {
        "apiVersion": "zoo.example.com/v1beta1",
        "kind": "OldFeedRequest",
        "animal": "otter",
    }


async def test_trouble_with_a_hook_of_others_is_ignored_as_far_as_nothing_is_an_answer(
    server: Server,
) -> None:
    server.says[DISCOVERY] = discovers(
        {**feeds("v1", "gate"), "failurePolicy": "Ignore"},
        {
            "name": "weigh",
            "requestHook": {**feeds("v1", "")["requestHook"], "hook": "Weigh"},
            "failurePolicy": "Ignore",
        },
    )
    server.says["/zoo.example.com/v1/feed/gate"] = server.says[
        "/zoo.example.com/v1/weigh/weigh"
    ] = words
    request = FeedRequest(animal="otter", grams=5)
    async with calling(server.config(), catalog=ZOO) as caller:
        nothing = await caller.call(Feed, "gate.ext", request, about=DEMO)
        assert nothing == FeedResponse(status="Success", eaten=0)
        with pytest.raises(NoResponseError, match="not JSON"):
            await caller.call(Weigh, "weigh.ext", request, about=DEMO)


@pytest.mark.parametrize("hook", [Weigh, WeighAlone])
async def test_no_answer_is_made_up_where_there_is_no_handler(hook: Any) -> None:
    request = FeedRequest(animal="otter", grams=5)
    async with calling(catalog=ZOO) as caller:
        with pytest.raises(NoHandlerError, match="no handler serves Weigh"):
            await caller.call_all(hook, request, about=DEMO)


async def post(connections: Connections, address: Endpoint) -> int:
    answer = await connections.post(address, DISCOVERY, b"{}", seconds=10)
    return answer.status


@asynccontextmanager
async def also(
    server: Server, folder: Path, change: Callable[[ssl.SSLContext], None]
) -> AsyncGenerator[Endpoint]:
    """Another port of the same server, with TLS of its own."""
    context = server_context(folder)
    change(context)
    async with listening(server.handle, context) as port:
        yield Endpoint("127.0.0.1", port, ca=CA.certificate_pem)


async def test_a_certificate_that_is_not_trusted_is_no_answer(server: Server) -> None:
    async with Connections() as connections:
        address = Endpoint("127.0.0.1", server.port, ca=CA.certificate_pem)
        assert await post(connections, address) == 200
        with pytest.raises(NoResponseError, match="certificate is not trusted") as error:
            await post(connections, replace(address, ca=None))
    assert error.value.failure_kind == "untrusted"


async def test_a_service_is_reached_through_a_tunnel_by_its_own_name(
    server: Server, tmp_path: Path
) -> None:
    named = credentials(tmp_path / "named", names=("gate.guards.svc",))
    async with also(server, named, lambda _: None) as other, Connections() as connections:
        address = Endpoint("gate.guards.svc", ca=CA.certificate_pem, through=other.authority)
        assert await post(connections, address) == 200
        assert server.asked[-1].headers["Host"] == "gate.guards.svc"
        with pytest.raises(NoResponseError, match="not trusted"):
            await post(connections, replace(address, host="other.guards.svc"))


async def test_a_caller_shows_who_it_is_and_follows_its_files(
    server: Server, tmp_path: Path
) -> None:
    mine = credentials(tmp_path / "mine")
    identity = ClientCertificate(mine / "tls.crt", mine / "tls.key")

    def demand(context: ssl.SSLContext) -> None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=CA.certificate_pem.decode())

    served = credentials(tmp_path / "other")
    async with also(server, served, demand) as address, Connections(identity) as connections:
        shown: set[int] = set()

        async def serial() -> None:
            assert await post(connections, address) == 200
            transport = server.asked[-1].transport
            assert transport
            shown.add(transport.get_extra_info("peercert")["serialNumber"])

        await serial()
        await serial()
        assert len(shown) == 1
        credentials(tmp_path / "mine")
        await serial()
        assert len(shown) == 2
        async with Connections() as nobody:
            with pytest.raises(NoResponseError):
                await post(nobody, address)
        identity.key.unlink()
        with pytest.raises(EndpointError, match="cannot read the client certificate"):
            await post(connections, address)
