"""Every verb against the real API server."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import capelin.client.reader as reader_module
import pytest
from capelin.api import Resource, Unstructured
from capelin.api.core import ConfigMap, Namespace
from capelin.client import (
    AlreadyExists,
    BadRequest,
    Client,
    ClientOptions,
    Config,
    Conflict,
    Expired,
    Forbidden,
    Impersonation,
    Invalid,
    NotFound,
    NotServed,
    Server,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    User,
)

if TYPE_CHECKING:
    from pathlib import Path

    from capelin_embedded.apiserver import ApiServer

    from core.tests.client.conftest import Scripted

MAPS = Resource("", "v1", "ConfigMap", "configmaps")
PODS = Resource("", "v1", "Pod", "pods")
ACCOUNTS = Resource("", "v1", "ServiceAccount", "serviceaccounts")
BUDGETS = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
DEPLOYMENTS = Resource("apps", "v1", "Deployment", "deployments")


async def test_create_get_and_find_return_the_same_object(client: Client, namespace: str) -> None:
    made = await client.create(ConfigMap.of("a", namespace, data={"x": "1"}))
    assert made.uid
    assert made == await client.get(ConfigMap, "a", namespace)
    assert made == await client.find(ConfigMap, "a", namespace)
    plain = await client.get(MAPS, "a", namespace)
    assert (plain["kind"], plain["data"]) == ("ConfigMap", {"x": "1"})


async def test_get_raises_not_found_and_find_returns_none(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound, match='configmaps "a" not found') as caught:
        await client.get(ConfigMap, "a", namespace)
    assert (caught.value.status, caught.value.reason) == (404, "NotFound")
    assert caught.value.details["name"] == "a"
    assert await client.find(ConfigMap, "a", namespace) is None


@pytest.mark.parametrize("group_version", ["nowhere.example/v1", "apps/v1"])
async def test_requests_for_an_unserved_kind_fail(
    client: Client, namespace: str, group_version: str
) -> None:
    group, _, version = group_version.partition("/")
    unknown = Resource(group, version, "Thing", "things")
    for verb in (client.find, client.delete):
        with pytest.raises(NotServed, match="is its CRD installed"):
            await verb(unknown, "a", namespace)


async def test_each_error_has_its_own_class(client: Client, namespace: str) -> None:
    await client.create(ConfigMap.of("a", namespace))
    with pytest.raises(AlreadyExists):
        await client.create(ConfigMap.of("a", namespace))
    with pytest.raises(Invalid) as caught:
        await client.create(ConfigMap.of("NOT A NAME", namespace))
    assert caught.value.causes[0]["field"] == "metadata.name"
    with pytest.raises(Conflict):
        await client.delete(ConfigMap, "a", namespace, uid=str(uuid4()))
    unknown: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "spec": {}}
    with pytest.raises(BadRequest, match="unknown field"):
        await client.create({**unknown, "metadata": {"name": "b", "namespace": namespace}})


async def test_forbidden_and_unauthorized_users_get_different_errors(
    client: Client, namespace: str
) -> None:
    config = client.config
    stranger = User(
        certificate=config.user.certificate,
        key=config.user.key,
        impersonate=Impersonation("stranger"),
    )
    async with Client(Config(config.server, stranger)) as other:
        with pytest.raises(Forbidden, match='User "stranger" cannot get'):
            await other.get(ConfigMap, "a", namespace)
    with pytest.raises(Unauthorized):
        await Client.connect(Config(config.server, User(token="wrong")))


async def test_a_server_with_another_ca_is_not_trusted(client: Client) -> None:
    async with Client(Config(Server(client.config.server.address))) as stranger:
        with pytest.raises(Unreachable, match="its certificate is not trusted"):
            await stranger.get(Namespace, "default")


async def test_a_list_has_all_pages_and_the_version_for_a_watch(
    client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "_PAGE", 2)
    for name in "abcde":
        await client.create(ConfigMap.of(name, namespace))
    listing = await client.list(ConfigMap, namespace)
    assert [item.name for item in listing.items] == ["a", "b", "c", "d", "e"]
    plain = await client.list(MAPS, namespace)
    assert {item["kind"] for item in plain.items} == {"ConfigMap"}
    await client.create(ConfigMap.of("f", namespace))
    async with aclosing(
        client.watch(ConfigMap, namespace, since=listing.resource_version)
    ) as events:
        assert (await anext(events)).object.name == "f"


async def test_iterate_reads_one_page_at_a_time(
    server: Scripted,
) -> None:
    def page(*names: str, token: str = "") -> dict[str, Any]:
        items = [{"metadata": {"name": name}} for name in names]
        return {"metadata": {"resourceVersion": "7", "continue": token}, "items": items}

    server.then(server.reply(200, page("a", "b", token="more")), server.reply(200, page("c")))
    async with server.client() as client, aclosing(client.iterate(ConfigMap, "here")) as objects:
        assert [(await anext(objects)).name, (await anext(objects)).name] == ["a", "b"]
        assert len(server.requests) == 1
        assert [obj.name async for obj in objects] == ["c"]
    assert [request.target.partition("?")[2] for request in server.requests] == [
        "limit=100",
        "limit=100&continue=more",
    ]


async def test_iterate_returns_plain_objects_across_pages(
    client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "_SMALL_PAGE", 1)
    for name in "abc":
        made = ConfigMap.of(name, namespace)
        made.metadata.labels = {"app": "other" if name == "b" else "mine"}
        await client.create(made)
    objects = [obj async for obj in client.iterate(MAPS, namespace, labels={"app": "mine"})]
    assert [(obj["kind"], obj["metadata"]["name"]) for obj in objects] == [
        ("ConfigMap", "a"),
        ("ConfigMap", "c"),
    ]


async def test_list_reads_everything_at_once_if_the_next_page_expires(server: Scripted) -> None:
    def page(*names: str, token: str = "") -> dict[str, Any]:
        metadata = {"resourceVersion": "7", "continue": token}
        return {"metadata": metadata, "items": [{"metadata": {"name": name}} for name in names]}

    server.then(
        server.reply(200, page("a", token="more")),
        server.failure(410, "Expired"),
        server.reply(200, page("a", "b")),
        server.failure(410, "Expired"),
        server.failure(410, "Expired"),
    )
    async with server.client() as client:
        listing = await client.list(ConfigMap)
        assert [item.name for item in listing.items] == ["a", "b"]
        with pytest.raises(Expired):
            await client.list(ConfigMap)
    assert [request.target.partition("?")[2] for request in server.requests[:3]] == [
        "limit=500",
        "limit=500&continue=more",
        "",
    ]


async def test_list_selects_by_labels_and_fields(client: Client, namespace: str) -> None:
    for name in "ab":
        made = ConfigMap.of(name, namespace)
        made.metadata.labels = {"app": name}
        await client.create(made)
    by_label = await client.list(ConfigMap, namespace, labels={"app": "a"})
    by_expression = await client.list(ConfigMap, namespace, labels="app in (a, c)")
    by_field = await client.list(ConfigMap, namespace, fields={"metadata.name": "a"})
    for listing in (by_label, by_expression, by_field):
        assert [item.name for item in listing.items] == ["a"]


async def test_apply_creates_changes_and_removes_fields(client: Client, namespace: str) -> None:
    await client.apply(ConfigMap.of("a", namespace, data={"x": "1", "y": "1"}))
    await client.apply(ConfigMap.of("a", namespace, data={"z": "1"}), manager="other")
    after = await client.apply(ConfigMap.of("a", namespace, data={"x": "2"}))
    assert after.data == {"x": "2", "z": "1"}


async def test_only_a_forced_apply_takes_fields_of_others(client: Client, namespace: str) -> None:
    await client.apply(ConfigMap.of("a", namespace, data={"x": "1"}), manager="other")
    desired = ConfigMap.of("a", namespace, data={"x": "2"})
    with pytest.raises(Conflict, match=r'conflict with "other": \.data\.x'):
        await client.apply(desired, force=False)
    assert (await client.apply(desired)).data == {"x": "2"}


async def test_a_dry_run_changes_nothing(client: Client, namespace: str) -> None:
    assert (await client.apply(ConfigMap.of("a", namespace), dry_run=True)).uid
    assert (await client.create(ConfigMap.of("a", namespace), dry_run=True)).uid
    assert await client.find(ConfigMap, "a", namespace) is None


async def test_apply_discovers_the_kind_of_a_plain_object(client: Client, namespace: str) -> None:
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {"name": "a", "namespace": namespace},
        "revision": 1,
        "data": {},
    }
    made = await client.apply(manifest)
    assert made["revision"] == 1
    with pytest.raises(NotServed, match="no kind Nonsense in apps/v1"):
        await client.apply({**manifest, "kind": "Nonsense"})


async def test_merge_and_json_patches_change_only_their_fields(
    client: Client, namespace: str
) -> None:
    await client.create(ConfigMap.of("a", namespace, data={"x": "1", "y": "1"}))
    merged = await client.patch(ConfigMap, "a", namespace, {"data": {"x": "2", "y": None}})
    assert merged.data == {"x": "2"}
    operations = [
        {"op": "test", "path": "/data/x", "value": "2"},
        {"op": "remove", "path": "/data"},
    ]
    patched = await client.patch(MAPS, "a", namespace, operations, type="json")
    assert "data" not in patched


async def test_delete_respects_its_preconditions(client: Client, namespace: str) -> None:
    made = await client.create(ConfigMap.of("a", namespace))
    changed = await client.patch(ConfigMap, "a", namespace, {"data": {"x": "1"}})
    with pytest.raises(Conflict):
        await client.delete(
            ConfigMap, "a", namespace, resource_version=made.metadata.resource_version
        )
    assert await client.delete(
        ConfigMap,
        "a",
        namespace,
        uid=made.uid,
        resource_version=changed.metadata.resource_version,
        grace_seconds=0,
    )
    assert not await client.delete(ConfigMap, "a", namespace)


async def test_delete_sends_all_its_options(server: Scripted) -> None:
    server.then(server.reply(200), server.reply(200))
    async with server.client() as client:
        assert await client.delete(MAPS, "a", "b")
        await client.delete(
            MAPS,
            "a",
            "b",
            uid="1",
            resource_version="7",
            propagation="Foreground",
            grace_seconds=0,
        )
    plain, full = (json.loads(request.body) for request in server.requests)
    assert plain == {"apiVersion": "v1", "kind": "DeleteOptions"}
    assert full == plain | {
        "preconditions": {"uid": "1", "resourceVersion": "7"},
        "propagationPolicy": "Foreground",
        "gracePeriodSeconds": 0,
    }


async def test_evict_respects_the_disruption_budget(client: Client, namespace: str) -> None:
    await client.create(ACCOUNT | {"metadata": {"name": "web", "namespace": namespace}})
    labels = {"app": "web"}
    pod: Unstructured = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": namespace, "labels": labels},
        "spec": {
            "serviceAccountName": "web",
            "automountServiceAccountToken": False,
            "containers": [{"name": "web", "image": "web"}],
            "nodeName": "node",
        },
    }
    made = await client.create(pod, resource=PODS)
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await client.patch(PODS, "web", namespace, running, subresource="status")
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
    }
    await client.create(budget, resource=BUDGETS)
    with pytest.raises(TooManyRequests, match="disruption budget"):
        await client.evict("web", namespace, uid=made["metadata"]["uid"])
    await client.delete(BUDGETS, "web", namespace)
    with pytest.raises(Conflict):
        await client.evict("web", namespace, uid=str(uuid4()))
    assert await client.evict("web", namespace, grace_seconds=0)
    assert not await client.evict("web", namespace)


ACCOUNT: dict[str, Any] = {"apiVersion": "v1", "kind": "ServiceAccount"}


async def test_scale_sets_the_replicas(client: Client, namespace: str) -> None:
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "web", "image": "web"}]},
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }
    await client.apply(deployment, resource=DEPLOYMENTS)
    await client.scale(DEPLOYMENTS, "web", namespace, 5)
    assert (await client.get(DEPLOYMENTS, "web", namespace))["spec"]["replicas"] == 5


async def test_a_service_account_token_authenticates(client: Client, namespace: str) -> None:
    await client.create(ACCOUNT | {"metadata": {"name": "me", "namespace": namespace}})
    token = await client.create_token("me", namespace, seconds=600)
    assert token.value not in repr(token)
    remaining = token.expires - datetime.now(UTC)
    assert timedelta(minutes=9) < remaining < timedelta(minutes=11)
    async with Client(Config(client.config.server, User(token=token.value))) as me:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        review_result = await me.request("POST", path, body=review)
    assert (
        review_result["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:me"
    )


async def test_resources_lists_the_kinds_of_a_group_version(client: Client) -> None:
    core = await client.resources("v1")
    assert MAPS in core
    assert Resource("", "v1", "Namespace", "namespaces", namespaced=False) in core
    assert DEPLOYMENTS in await client.resources("apps/v1")
    assert not [resource for resource in core if "/" in resource.plural]
    with pytest.raises(NotServed):
        await client.resources("nowhere.example/v1")


async def test_request_sends_arbitrary_requests(client: Client) -> None:
    assert await client.request("GET", "/readyz") == "ok"
    assert (await client.request("GET", "/version"))["major"] == "1"
    listing = await client.request("GET", "/api/v1/namespaces", parameters={"limit": "1"})
    assert len(listing["items"]) == 1


async def test_connect_returns_a_working_client(kubeconfig: Path) -> None:
    client = await Client.connect(Config.from_kubeconfig(kubeconfig), manager="me")
    assert client.manager == "me"
    assert await client.get(Namespace, "default")
    await client.close()


async def test_a_watch_continues_after_a_crash_of_the_api_server(own_api_server: ApiServer) -> None:
    config = Config.from_kubeconfig(own_api_server.kubeconfig)
    async with Client(config, options=ClientOptions(qps=0)) as client:
        await client.create(ConfigMap.of("before", "default"))
        async with aclosing(client.watch(ConfigMap, "default")) as events:
            assert (await anext(events)).object.name == "before"
            following = asyncio.create_task(anext(events))
            process = own_api_server.process("kube-apiserver")
            assert process is not None
            process.signal(signal.SIGKILL)
            await process.wait()
            with pytest.raises(Unreachable):
                await client.get(ConfigMap, "before", "default")
            await own_api_server.start()
            await client.create(ConfigMap.of("after", "default"))
            event = await following
            assert (event.type, event.object.name) == ("ADDED", "after")
