"""What is decided without a server."""

import pytest
from capelin.api.capi import ExtensionClientConfig, ExtensionConfig, ServiceReference
from capelin.api.core import LabelSelector
from capelin.runtime import Catalog, Hook, Request, RetryResponse
from capelin.runtime.client import (
    EndpointError,
    NamespacedName,
    NoResponseError,
    RefusedError,
    Registry,
    UnknownHandlerError,
    endpoint_of,
    endpoint_of_url,
    merge_responses,
)
from capelin.runtime.client.backoff import BlockedCalls, TTLCache
from capelin.runtime.client.discovery import accepted, problems_of
from capelin.runtime.client.registry import selects
from capelin.runtime.client.responses import read_response
from capelin.runtime.v1alpha1 import (
    CLUSTER_API,
    AfterControlPlaneInitialized,
    BeforeClusterCreate,
    BeforeClusterCreateResponse,
    BeforeClusterUpgrade,
    ExtensionHandler,
    GeneratePatchesResponse,
    GroupVersionHook,
)

HOOK = "hooks.runtime.cluster.x-k8s.io/v1alpha1"
DEMO = NamespacedName("default", "demo")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def said(
    name: str = "gate",
    hook: str = "BeforeClusterCreate",
    version: str = HOOK,
    seconds: int | None = None,
    policy: str | None = None,
) -> ExtensionHandler:
    return ExtensionHandler(
        name=name,
        request_hook=GroupVersionHook(api_version=version, hook=hook),
        timeout_seconds=seconds,
        failure_policy=policy,
    )


def config(name: str, *handlers: ExtensionHandler) -> ExtensionConfig:
    made = ExtensionConfig.of(name)
    made.spec.client_config.url = "https://example.com"
    made.status.handlers = accepted(name, handlers)
    return made


def blocking(seconds: int, message: str = "") -> BeforeClusterCreateResponse:
    return BeforeClusterCreateResponse(
        status="Success", message=message, retry_after_seconds=seconds
    )


def test_a_service_is_reached_by_its_name_in_the_cluster() -> None:
    service = ServiceReference(namespace="guards", name="gate", port=9443, path="/hooks/")
    address = endpoint_of(ExtensionClientConfig(service=service, ca_bundle=b"PEM"))
    assert (address.authority, address.ca) == ("gate.guards.svc:9443", b"PEM")
    assert address.path(f"/{HOOK}/discovery") == f"/hooks/{HOOK}/discovery"


def test_a_url_keeps_its_prefix() -> None:
    address = endpoint_of(ExtensionClientConfig(url="https://[::1]:9443/a/b"))
    assert address.authority == "[::1]:9443"
    assert address.path("/c") == "/a/b/c"
    assert endpoint_of_url("https://example.com").path("/c") == "/c"
    assert endpoint_of_url("https://example.com//a%20b").path("/c") == "/a%20b/c"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("hooks", "/hooks/c"),
        ("//hooks", "/hooks/c"),
        ("@example.com:1", "/@example.com:1/c"),
        ("/a?b#c d", "/a%3Fb%23c%20d/c"),
        ("../..", "/c"),
    ],
)
def test_a_path_stays_one_whatever_is_in_it(path: str, asked: str) -> None:
    service = ServiceReference(namespace="guards", name="gate", path=path)
    address = endpoint_of(ExtensionClientConfig(service=service))
    assert (address.authority, address.path("/c")) == ("gate.guards.svc", asked)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (ExtensionClientConfig(), "either a url or a service"),
        (
            ExtensionClientConfig(url="https://a", service=ServiceReference(name="a")),
            "either a url or a service",
        ),
        (ExtensionClientConfig(service=ServiceReference(name="a")), "a name and a namespace"),
        (ExtensionClientConfig(url="http://a"), "must start with https://"),
        (ExtensionClientConfig(url="https://a:b"), "is no URL"),
        (ExtensionClientConfig(url="https://a..b"), "is no URL"),
        (ExtensionClientConfig(url=f"https://{'a' * 64}.b"), "is no URL"),
        (ExtensionClientConfig(url="https://a\\b"), "is no URL"),
        (ExtensionClientConfig(url="https://user:secret@a"), "must have no user, query"),
        (ExtensionClientConfig(url="https://user:secret@a:b"), "'a:b' is no URL"),
        (ExtensionClientConfig(url="http://user:secret@a"), "'a' must start with https://"),
        (ExtensionClientConfig(url="http://a?token=secret"), "'http://a' must start"),
        (ExtensionClientConfig(url="https://a?b=c"), "must have no user, query"),
    ],
)
def test_what_leads_nowhere_is_refused(said: ExtensionClientConfig, words: str) -> None:
    with pytest.raises(EndpointError, match=words) as error:
        endpoint_of(said)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("operator", "values", "labels", "holds"),
    [
        ("In", ["a", "b"], {"tier": "a"}, True),
        ("In", ["a", "b"], {"tier": "c"}, False),
        ("In", ["a"], {}, False),
        ("NotIn", ["a"], {"tier": "a"}, False),
        ("NotIn", ["a"], {}, True),
        ("Exists", [], {"tier": ""}, True),
        ("Exists", [], {}, False),
        ("DoesNotExist", [], {}, True),
        ("DoesNotExist", [], {"tier": ""}, False),
    ],
)
def test_selectors_read_labels_as_kubernetes_does(
    operator: str, values: list[str], labels: dict[str, str], holds: bool
) -> None:
    one = LabelSelector.Requirement(key="tier", operator=operator, values=values)
    selector = LabelSelector(match_labels={"team": "x"}, match_expressions=[one])
    assert selects(selector, {"team": "x", **labels}) is holds
    assert not selects(selector, labels)


def test_nothing_said_selects_everything() -> None:
    assert selects(None, {})
    assert selects(LabelSelector(), {"a": "b"})


@pytest.mark.parametrize(
    ("handlers", "words"),
    [
        ([said(), said(hook="BeforeClusterDelete")], "2 handlers are called gate"),
        ([said("Gate_1")], "'Gate_1' is no valid handler name"),
        ([said("a" * 64)], "is no valid handler name"),
        ([said("")], "'' is no valid handler name"),
        ([said(seconds=31)], "gate has a timeout of 31 seconds"),
        ([said(seconds=-1)], "gate has a timeout of -1 seconds"),
        ([said(policy="Retry")], "failure policy 'Retry'"),
        ([said(hook="BeforeLunch")], "gate serves BeforeLunch"),
        ([said(version="hooks.runtime.cluster.x-k8s.io/v1")], "which is not known here"),
    ],
)
def test_discovery_is_refused_as_cluster_api_does(
    handlers: list[ExtensionHandler], words: str
) -> None:
    (problem,) = problems_of(handlers, CLUSTER_API)
    assert words in problem


def test_what_a_handler_does_not_say_is_ten_seconds_and_fail() -> None:
    assert not problems_of([said(seconds=0), said("other", policy="Ignore")], CLUSTER_API)
    (found,) = accepted("ext", [said()])
    assert (found.name, found.timeout_seconds, found.failure_policy) == ("gate.ext", 10, "Fail")


def test_a_registry_finds_handlers_by_hook_and_name() -> None:
    registry = Registry(
        [config("b", said()), config("a", said(), said("up", "BeforeClusterUpgrade"))]
    )
    assert [one.name for one in registry.handlers(BeforeClusterCreate)] == ["gate.a", "gate.b"]
    assert registry.get("up.a").path == f"/{HOOK}/beforeclusterupgrade/up"
    registry.add(config("a"))
    assert not registry.handlers(BeforeClusterUpgrade)
    registry.remove("b")
    with pytest.raises(UnknownHandlerError, match=r"no handler gate\.b is registered; known: none"):
        registry.get("gate.b")


def test_a_registry_keeps_what_it_knew_when_an_address_is_spoilt() -> None:
    registry = Registry([config("a", said())])
    spoilt = config("a")
    spoilt.spec.client_config.url = "http://example.com"
    with pytest.raises(EndpointError):
        registry.add(spoilt)
    assert registry.get("gate.a")


def test_several_answers_wait_for_the_first_that_wants_to_be_asked() -> None:
    one = merge_responses(
        BeforeClusterCreate, [blocking(0), blocking(30, "late"), blocking(5, "soon"), blocking(0)]
    )
    assert one == blocking(5, "late, soon")
    assert merge_responses(BeforeClusterCreate, []) == blocking(0)
    assert (
        "retry_after_seconds" not in merge_responses(AfterControlPlaneInitialized, []).model_dump()
    )


def test_an_answer_is_read_as_go_reads_it() -> None:
    body = b' {"STATUS":"Success","Message":"m","more":1} and what comes after it'
    assert read_response("h", BeforeClusterCreateResponse, body) == blocking(0, "m")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is not JSON"),
        (b"<html>", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"a":' * 100_000, "is not JSON"),
        (b"[]", "is no JSON object"),
        (b'{"status":1}', "cannot be read"),
        (
            b'{"status":"Success","items":[{"uid":"1","patchType":"JSONPatch","patch":"["}]}',
            "base64",
        ),
    ],
)
def test_what_cannot_be_read_is_no_answer(body: bytes, words: str) -> None:
    with pytest.raises(NoResponseError, match=words) as error:
        read_response("h", GeneratePatchesResponse, body)
    assert error.value.failure_kind == "unreadable"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"status":"Failure","message":"closed"}', "h failed: closed"),
        (b'{"status":"Perhaps"}', "h responded with the unknown status 'Perhaps'"),
        (b"{}", "h responded with the unknown status ''"),
    ],
)
def test_what_is_no_success_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        read_response("h", BeforeClusterCreateResponse, body)


def test_what_holds_back_does_so_until_its_time_is_over() -> None:
    clock = Clock()
    blocked = BlockedCalls(clock)
    blocked.add(BeforeClusterCreate, DEMO, blocking(0, "go"))
    assert blocked.current(BeforeClusterCreate, DEMO) is None
    blocked.add(BeforeClusterCreate, DEMO, blocking(10, "closed"))
    clock.now += 4
    assert blocked.current(BeforeClusterCreate, DEMO) == blocking(6, "closed")
    assert blocked.current(BeforeClusterCreate, NamespacedName("default", "other")) is None
    assert blocked.current(BeforeClusterUpgrade, DEMO) is None
    clock.now += 5.9
    assert blocked.current(BeforeClusterCreate, DEMO) == blocking(1, "closed")
    clock.now += 0.1
    assert blocked.current(BeforeClusterCreate, DEMO) is None


ZOO = Catalog()


class _Zoo:
    @ZOO.hook("zoo.example.com/v1", tag="Zoo", summary="Before a cage is built")
    class BeforeClusterCreate(Hook[Request, RetryResponse]):
        """Has the name of one of Cluster API's hooks."""


def test_an_answer_holds_no_hook_of_another_group_back() -> None:
    blocked = BlockedCalls(Clock())
    blocked.add(BeforeClusterCreate, DEMO, blocking(10, "closed"))
    assert blocked.current(_Zoo.BeforeClusterCreate, DEMO) is None


class CountResponse(RetryResponse):
    visitors: int


@ZOO.hook("zoo.example.com/v1", tag="Zoo", summary="Before a gate opens")
class BeforeGateOpens(Hook[Request, CountResponse]):
    """Says more than when to ask again."""


class OldCountResponse(RetryResponse):
    """The old version counts nobody."""


class _OldZoo:
    @ZOO.hook("zoo.example.com/v1beta1", tag="Zoo", summary="Before a gate opens")
    class BeforeGateOpens(Hook[Request, OldCountResponse]):
        """Counts nobody."""


def test_an_answer_that_holds_back_is_given_again_with_all_that_it_says() -> None:
    clock = Clock()
    blocked = BlockedCalls(clock)
    full = CountResponse(status="Success", message="full", visitors=7, retry_after_seconds=10)
    blocked.add(BeforeGateOpens, DEMO, full)
    clock.now += 4
    assert blocked.current(BeforeGateOpens, DEMO) == full.model_copy(
        update={"retry_after_seconds": 6}
    )
    assert full.retry_after_seconds == 10
    old = OldCountResponse(status="Success", message="full", retry_after_seconds=6)
    assert blocked.current(_OldZoo.BeforeGateOpens, DEMO) == old


def test_a_store_forgets() -> None:
    clock = Clock()
    store: TTLCache[str] = TTLCache(10, clock)
    store.put("a", "1")
    clock.now += 5
    store.put("b", "2")
    store.put("a", "3")
    clock.now += 9
    assert (store.get("a"), store.get("b")) == ("3", "2")
    clock.now += 1
    assert (store.get("a"), store.get("b")) == (None, None)
