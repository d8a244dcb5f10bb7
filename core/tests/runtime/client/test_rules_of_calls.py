"""Rules of calls that need no server."""

import pytest
from capelin.api.capi import ExtensionClientConfig, ServiceReference
from capelin.runtime.client import (
    EndpointError,
    NoResponseError,
    RefusedError,
    endpoint_of,
    endpoint_of_url,
)
from capelin.runtime.client.discovery import problems_of
from capelin.runtime.client.responses import read_response
from capelin.runtime.v1alpha1 import (
    CLUSTER_API,
    BeforeClusterCreateResponse,
    ExtensionHandler,
    GeneratePatchesResponse,
    GroupVersionHook,
)

HOOK = "hooks.runtime.cluster.x-k8s.io/v1alpha1"


def handler(
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


def blocking(seconds: int, message: str = "") -> BeforeClusterCreateResponse:
    return BeforeClusterCreateResponse(
        status="Success", message=message, retry_after_seconds=seconds
    )


def test_a_service_endpoint_has_its_dns_name_in_the_cluster() -> None:
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
    ("path", "expected"),
    [
        ("hooks", "/hooks/c"),
        ("//hooks", "/hooks/c"),
        ("@example.com:1", "/@example.com:1/c"),
        ("/a?b#c d", "/a%3Fb%23c%20d/c"),
        ("../..", "/c"),
    ],
)
def test_special_characters_in_a_path_are_escaped(path: str, expected: str) -> None:
    service = ServiceReference(namespace="guards", name="gate", path=path)
    address = endpoint_of(ExtensionClientConfig(service=service))
    assert (address.authority, address.path("/c")) == ("gate.guards.svc", expected)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (ExtensionClientConfig(), "either a url or a service"),
        (
            ExtensionClientConfig(url="https://a", service=ServiceReference(name="a")),
            "either a url or a service",
        ),
        (ExtensionClientConfig(service=ServiceReference(name="a")), "a name and a namespace"),
        (ExtensionClientConfig(url="http://a"), "must start with https://"),
        (ExtensionClientConfig(url="https://a:b"), "is not a URL"),
        (ExtensionClientConfig(url="https://a..b"), "is not a URL"),
        (ExtensionClientConfig(url=f"https://{'a' * 64}.b"), "is not a URL"),
        (ExtensionClientConfig(url="https://a\\b"), "is not a URL"),
        (ExtensionClientConfig(url="https://user:secret@a"), "must have no user, query"),
        (ExtensionClientConfig(url="https://user:secret@a:b"), "'a:b' is not a URL"),
        (ExtensionClientConfig(url="http://user:secret@a"), "'a' must start with https://"),
        (ExtensionClientConfig(url="http://a?token=secret"), "'http://a' must start"),
        (ExtensionClientConfig(url="https://a?b=c"), "must have no user, query"),
    ],
)
def test_an_invalid_client_config_fails_without_quoting_secrets(
    config: ExtensionClientConfig, words: str
) -> None:
    with pytest.raises(EndpointError, match=words) as error:
        endpoint_of(config)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("handlers", "words"),
    [
        ([handler(), handler(hook="BeforeClusterDelete")], "2 handlers have the name gate"),
        ([handler("Gate_1")], "'Gate_1' is not a valid handler name"),
        ([handler("a" * 64)], "is not a valid handler name"),
        ([handler("")], "'' is not a valid handler name"),
        ([handler(seconds=31)], "gate has a timeout of 31 seconds"),
        ([handler(seconds=-1)], "gate has a timeout of -1 seconds"),
        ([handler(policy="Retry")], "failure policy 'Retry'"),
        ([handler(hook="BeforeLunch")], "gate serves BeforeLunch"),
        ([handler(version="hooks.runtime.cluster.x-k8s.io/v1")], "which is not known here"),
    ],
)
def test_invalid_discovery_is_rejected(handlers: list[ExtensionHandler], words: str) -> None:
    (problem,) = problems_of(handlers, CLUSTER_API)
    assert words in problem


def test_discovery_accepts_missing_and_zero_values() -> None:
    handlers = [handler(), handler("zero", seconds=0), handler("other", policy="Ignore")]
    assert not problems_of(handlers, CLUSTER_API)


def test_a_response_is_read_like_in_go() -> None:
    body = b' {"STATUS":"Success","Message":"m","more":1} and trailing text'
    assert read_response("h", BeforeClusterCreateResponse, body) == blocking(0, "m")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is not JSON"),
        (b"<html>", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"a":' * 100_000, "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b'{"status":1}', "cannot be read"),
        (
            b'{"status":"Success","items":[{"uid":"1","patchType":"JSONPatch","patch":"["}]}',
            "base64",
        ),
    ],
)
def test_an_unreadable_response_fails(body: bytes, words: str) -> None:
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
def test_any_status_except_success_fails(body: bytes, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        read_response("h", BeforeClusterCreateResponse, body)
