"""The controller of `Extension`, on a real API server and with real extensions."""

import base64
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest
from aiohttp import web
from capelin.api import ObjectMeta
from capelin.client import Client, Config, Impersonation, Invalid
from capelin.contract.vocabulary import WATCH_LABEL
from capelin.controller import Manager
from capelin.controller.options import OptionsError, parse
from capelin.extensions import Extension, Extensions, manifests
from capelin.extensions.__main__ import ExtensionsOptions, build
from capelin.extensions.api import ClientConfig, GroupVersionHook, Handler, Service, Spec
from capelin.extensions.controller import discover, reason_of, status_of
from capelin.pki import new_ca
from capelin.runtime import Catalog, Hook, Message, Response
from capelin.runtime.calling import (
    AddressError,
    CallingError,
    DiscoveryError,
    NoAnswerError,
    Registry,
)
from capelin.runtime.v1alpha1 import CLUSTER_API, BeforeClusterUpgrade
from capelin.testing.managers import running
from capelin.testing.waiting import until

from core.tests.runtime.calling.wire import CA as WIRE_CA
from core.tests.runtime.calling.wire import Server, answer, credentials, listening, server_context
from core.tests.runtime.running import CA as SERVED_CA
from core.tests.runtime.running import certificate, serving, write

ZOO = Catalog()


@ZOO.hook("zoo.example.com/v1", tag="Zoo", summary="Before the gates open")
class BeforeOpening(Hook[Message, Response]):
    """Asked every morning."""


NOW = datetime.now(UTC).replace(microsecond=0)
LATER = NOW + timedelta(minutes=5)
DISCOVERY = "/hooks.runtime.cluster.x-k8s.io/v1alpha1/discovery"
HOOK = {"apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "hook": "BeforeClusterUpgrade"}
USER = "capelin-extensions"
MINE = f"test-{uuid4().hex[:8]}"
"""The kind has no namespaces, and other workers run its controller at the same API server."""


def extension(name: str, url: str, ca: bytes) -> Extension:
    where = ClientConfig(url=url, ca_bundle=base64.b64encode(ca).decode())
    made = Extension.of(name, spec=Spec(client_config=where))
    made.metadata.labels = {WATCH_LABEL: MINE}
    return made


def handler(name: str) -> Handler:
    hook = GroupVersionHook(api_version=HOOK["apiVersion"], hook=HOOK["hook"])
    return Handler(name=name, request_hook=hook, timeout_seconds=10, failure_policy="Fail")


def test_handlers_that_were_known_stay_while_nobody_knows_better() -> None:
    one = extension("one", "https://one", b"")
    one.metadata = ObjectMeta(name="one", generation=3)
    one.status = status_of(one, [handler("b.one"), handler("a.one")], NOW)
    assert [known.name for known in one.status.handlers] == ["a.one", "b.one"]
    one.metadata.generation = 4
    status = status_of(one, NoAnswerError("timeout", "one does not answer"), LATER)
    assert status.handlers == one.status.handlers
    (said,) = status.conditions
    assert (said.status, said.reason, said.message) == ("False", "TimedOut", "one does not answer")
    assert (said.last_transition_time, status.observed_generation) == (LATER, 4)
    one.status = status
    still = status_of(one, NoAnswerError("timeout", "one does not answer"), LATER + timedelta(1))
    assert still == status


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Server]:
    made = Server()
    async with listening(made.handle, server_context(credentials(tmp_path / "wire"))) as made.port:
        yield made


async def unreadable(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(body=b"<html>")


async def elsewhere(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": "https://example.com"})


async def broken(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(status=500)


async def malformed(_: web.BaseRequest) -> web.StreamResponse:
    return answer(status="Success", handlers=[{"name": "No Name", "requestHook": HOOK}])


async def too_many(_: web.BaseRequest) -> web.StreamResponse:
    said = [{"name": f"h{number}", "requestHook": HOOK} for number in range(513)]
    return answer(status="Success", handlers=said)


async def failing(_: web.BaseRequest) -> web.StreamResponse:
    return answer(status="Failure", message="not today")


@pytest.mark.parametrize(
    ("respond", "reason"),
    [
        (unreadable, "Unreadable"),
        (elsewhere, "Redirected"),
        (broken, "UnexpectedStatus"),
        (malformed, "HandlersInvalid"),
        (too_many, "HandlersInvalid"),
        (failing, "Refused"),
    ],
)
async def test_each_bad_answer_has_its_reason(
    server: Server,
    respond: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    reason: str,
) -> None:
    server.says[DISCOVERY] = respond
    found = await discover(extension("one", server.url, WIRE_CA.certificate_pem))
    assert isinstance(found, CallingError)
    assert reason_of(found) == reason


async def test_handlers_for_hooks_of_others_are_taken_where_the_hooks_are_known(
    server: Server,
) -> None:
    opens = {"apiVersion": "zoo.example.com/v1", "hook": "BeforeOpening"}
    handlers = [{"name": "gates", "requestHook": opens}]
    server.says[DISCOVERY] = {"status": "Success", "handlers": handlers}
    made = extension("one", server.url, WIRE_CA.certificate_pem)
    unknown = await discover(made)
    assert isinstance(unknown, DiscoveryError)
    (found,) = cast("list[Handler]", await discover(made, CLUSTER_API.joined(ZOO)))
    assert (found.name, found.request_hook.hook) == ("gates.one", "BeforeOpening")


def test_the_program_is_told_whose_hooks_it_knows() -> None:
    place = f"{__name__}:ZOO"
    options = parse(ExtensionsOptions, "extensions", "", [f"--catalog={place}, {place}"], {})
    assert options.catalog.find("zoo.example.com/v1", "BeforeOpening") is BeforeOpening
    assert options.catalog.find(HOOK["apiVersion"], HOOK["hook"]) is BeforeClusterUpgrade
    assert len(build(options)) == 1
    with pytest.raises(OptionsError, match=r"--catalog: 'zoo' names no catalog"):
        parse(ExtensionsOptions, "extensions", "", ["--catalog=zoo"], {})


async def test_nobody_there_somebody_else_and_nowhere(server: Server) -> None:
    other = new_ca("other", now=NOW).certificate_pem
    for url, reason in (
        (server.url, "Untrusted"),
        ("https://127.0.0.1:1", "Unreachable"),
        ("http://127.0.0.1", "AddressInvalid"),
    ):
        found = await discover(extension("one", url, other))
        assert isinstance(found, CallingError)
        assert reason_of(found) == reason
    assert isinstance(found, AddressError)


@pytest.fixture(scope="module")
async def client(kubeconfig: Path, install_crds: Callable[..., None]) -> AsyncGenerator[Client]:
    """An administrator, where the kind is served and its controller may work."""
    crd, role = manifests()
    install_crds(crd)
    async with Client(Config.from_kubeconfig(kubeconfig), manager="user") as made:
        await made.apply(role)
        group = "rbac.authorization.k8s.io"
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": USER},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role["metadata"]["name"]},
            "subjects": [{"apiGroup": group, "kind": "User", "name": USER}],
        }
        await made.apply(binding)
        yield made


def discovering(kubeconfig: Path, period: timedelta) -> AbstractAsyncContextManager[Manager]:
    """The controller, with no more rights than its role gives."""
    config = Config.from_kubeconfig(kubeconfig)
    limited = replace(config, user=replace(config.user, impersonate=Impersonation(USER)))
    return running(Extensions(period), config=limited, name="capelin-extensions", watch_filter=MINE)


async def is_said(client: Client, name: str, reason: str, *handlers: str) -> bool:
    status = (await client.get(Extension, name)).status
    if status is None or not status.conditions:
        return False
    known = tuple(handler.name for handler in status.handlers)
    return (status.conditions[0].reason, known) == (reason, handlers)


async def is_gone(client: Client, name: str) -> bool:
    return await client.find(Extension, name) is None


async def test_what_an_extension_answers_stands_in_its_status(
    client: Client, kubeconfig: Path, tmp_path: Path
) -> None:
    """With another CA it is not believed any more, and what was known of it stays."""
    folder, name = tmp_path / "tls", f"served-{uuid4().hex[:8]}"
    write(folder, certificate())
    other = base64.b64encode(new_ca("other", now=NOW).certificate_pem).decode()
    with serving(folder) as served:
        async with discovering(kubeconfig, timedelta(minutes=10)):
            url = f"https://127.0.0.1:{served.port}"
            made = await client.create(extension(name, url, SERVED_CA.certificate_pem))

            async def is_discovered() -> bool:
                status = (await client.get(Extension, name)).status
                return bool(status and status.conditions and status.conditions[0].status == "True")

            await until(is_discovered)
            found = await client.get(Extension, name)
            assert found.status is not None
            names = tuple(handler.name for handler in found.status.handlers)
            assert f"slow.{name}" in names
            (registered,) = Registry([found.config()]).handlers(BeforeClusterUpgrade)
            assert (registered.name, registered.address.url) == (f"slow.{name}", url)
            bundle = {"spec": {"clientConfig": {"caBundle": other}}}
            await client.patch(Extension, name, None, bundle)
            await until(lambda: is_said(client, name, "Untrusted", *names))
            bundle["spec"]["clientConfig"]["caBundle"] = made.spec.client_config.ca_bundle or ""
            await client.patch(Extension, name, None, bundle)
            await until(lambda: is_said(client, name, "Discovered", *names))
            await client.delete(Extension, name)
            await until(lambda: is_gone(client, name))


async def test_an_extension_is_asked_again_from_time_to_time(
    client: Client, kubeconfig: Path, server: Server
) -> None:
    name = f"changing-{uuid4().hex[:8]}"
    server.says[DISCOVERY] = {
        "status": "Success",
        "handlers": [{"name": "one", "requestHook": HOOK}],
    }
    await client.create(extension(name, server.url, WIRE_CA.certificate_pem))
    async with discovering(kubeconfig, timedelta(seconds=0.2)):
        await until(lambda: is_said(client, name, "Discovered", f"one.{name}"))
        server.says[DISCOVERY] = failing
        await until(lambda: is_said(client, name, "Refused", f"one.{name}"))
        server.says[DISCOVERY] = {
            "status": "Success",
            "handlers": [{"name": "two", "requestHook": HOOK}],
        }
        await until(lambda: is_said(client, name, "Discovered", f"two.{name}"))
        await client.delete(Extension, name)


async def test_who_answers_otherwise_each_time_is_not_asked_for_that(
    client: Client, kubeconfig: Path, server: Server
) -> None:
    """The status that changes is an event, and no reason to ask."""
    name, times = f"fickle-{uuid4().hex[:8]}", 0

    async def fickle(_: web.BaseRequest) -> web.StreamResponse:
        nonlocal times
        times += 1
        return answer(status="Success", handlers=[{"name": f"h{times}", "requestHook": HOOK}])

    server.says[DISCOVERY] = fickle
    await client.create(extension(name, server.url, WIRE_CA.certificate_pem))
    async with discovering(kubeconfig, timedelta(minutes=10)):
        await until(lambda: is_said(client, name, "Discovered", f"h1.{name}"))
        # Whatever follows the first answer comes before what follows these.
        await client.patch(Extension, name, None, {"spec": {"settings": {"strict": "true"}}})
        await until(lambda: is_said(client, name, "Discovered", f"h2.{name}"))
        await client.delete(Extension, name)
        await until(lambda: is_gone(client, name))
        await client.create(extension(name, server.url, WIRE_CA.certificate_pem))
        await until(lambda: is_said(client, name, "Discovered", f"h3.{name}"))
        await client.delete(Extension, name)
    assert times == 3


async def test_an_extension_at_rest_is_not_written(
    client: Client, kubeconfig: Path, server: Server
) -> None:
    name, times = f"steady-{uuid4().hex[:8]}", 0

    async def counting(_: web.BaseRequest) -> web.StreamResponse:
        nonlocal times
        times += 1
        handlers = [{"name": one, "requestHook": HOOK} for one in ("b", "a")]
        return answer(status="Success", handlers=handlers if times % 2 else handlers[::-1])

    server.says[DISCOVERY] = counting
    await client.create(extension(name, server.url, WIRE_CA.certificate_pem))
    async with discovering(kubeconfig, timedelta(seconds=0.2)):
        await until(lambda: is_said(client, name, "Discovered", f"a.{name}", f"b.{name}"))
        before, asked = await client.get(Extension, name), times
        await until(lambda: times >= asked + 3)
        after = await client.get(Extension, name)
        assert after.metadata.resource_version == before.metadata.resource_version
        await client.delete(Extension, name)


async def test_what_is_no_base64_is_refused(client: Client) -> None:
    for wrong in ("A", "AAA", "=", "AA="):
        where = ClientConfig.model_construct(url="https://one", ca_bundle=wrong)
        spec = Spec.model_construct(client_config=where)
        with pytest.raises(Invalid, match="caBundle"):
            await client.create(Extension.of("wrong", spec=spec))


async def test_an_address_is_either_a_url_or_a_service(client: Client) -> None:
    both = ClientConfig(url="https://one", service=Service(namespace="one", name="one"))
    for wrong in (both, ClientConfig()):
        with pytest.raises(Invalid, match="say either url or service"):
            await client.create(Extension.of("wrong", spec=Spec(client_config=wrong)))
