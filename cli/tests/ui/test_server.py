"""The server of the page, on a real socket."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from capelin.errors import InvalidInputError, NotReadyError, UserError
from capelin_cli.ui import server
from capelin_cli.ui.access import HEADERS, Access
from capelin_cli.ui.command import link, listen, open_browser, serving
from capelin_cli.ui.observed import Key
from capelin_cli.ui.server import MOST_STREAMS, Site, page_files

from .objects import cluster, machine, put, store

API = "/api/v1alpha1"


@dataclass
class Page:
    """A client of the server, with the key of a session."""

    site: Site
    session: aiohttp.ClientSession
    opened: list[str]

    def get(self, path: str, **headers: str) -> Any:
        return self.session.get(path, headers=self._headers(headers))

    def post(self, path: str, **headers: str) -> Any:
        return self.session.post(path, headers=self._headers(headers))

    def _headers(self, others: dict[str, str]) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.site.access.key}", **others}


@asynccontextmanager
async def served(*manifests: Any, actions: dict[str, Any] | None = None) -> AsyncGenerator[Page]:
    listener = listen(0)
    port = listener.getsockname()[1]
    site = Site(store(*manifests), Access.at(port), title="test", actions=actions or {})
    site.store.report(loading=False)
    opened: list[str] = []
    site.on_opened = lambda: opened.append(link(site.access))
    base = f"http://127.0.0.1:{port}"
    async with serving(site, listener), aiohttp.ClientSession(base) as session:
        yield Page(site, session, opened)


async def next_event(response: aiohttp.ClientResponse) -> tuple[str, Any]:
    name = (await response.content.readline()).decode().strip().removeprefix("event: ")
    data = (await response.content.readline()).removeprefix(b"data: ")
    await response.content.readline()
    return name, json.loads(data)


async def test_every_response_has_the_headers() -> None:
    async with served() as page:
        for path in ("/", "/app.js", "/nothing", f"{API}/nothing", "/docs", "/openapi.json"):
            async with page.get(path) as response:
                assert {name: response.headers.get(name) for name in HEADERS} == HEADERS
                assert response.status == (200 if path in {"/", "/app.js"} else 404)
        async with page.session.get(f"{API}/changes") as response:
            assert response.status == 401
            assert "content-security-policy" in response.headers
            assert "server" not in response.headers


async def test_a_link_opens_one_session() -> None:
    async with served() as page:
        bearer = {"Authorization": f"Bearer {page.site.access.link_token}"}
        async with page.session.post(f"{API}/session", headers=bearer) as response:
            assert await response.json() == {
                "key": page.site.access.key,
                "title": "test",
                "actions": [],
                "versions": [],
            }
        async with page.session.post(f"{API}/session", headers=bearer) as response:
            assert response.status == 401
        assert page.opened == [link(page.site.access)]


async def test_the_stream_sends_all_clusters_and_then_changes() -> None:
    async with served(cluster("one"), cluster("two")) as page, page.get(f"{API}/changes") as stream:
        assert stream.content_type == "text/event-stream"
        name, data = await next_event(stream)
        assert (name, data["kind"], data["total"]) == ("changes", "Changes", 2)
        put(page.site.store, machine("m", "two"))
        await page.site.store.announce()
        _, data = await next_event(stream)
        assert [each["name"] for each in data["clusters"]] == ["two"]
        assert data["clusters"][0]["machines"]["good"] == 1


async def test_the_stream_follows_the_focus() -> None:
    async with (
        served(cluster("one"), cluster("two")) as page,
        page.get(f"{API}/changes?focus=cluster/default/one") as stream,
    ):
        await next_event(stream)
        name, data = await next_event(stream)
        assert (name, data["summary"]["name"]) == ("focus", "one")
        put(page.site.store, cluster("one"), deleted=True)
        await page.site.store.announce()
        await next_event(stream)
        assert await next_event(stream) == ("focus", None)


async def test_changes_come_together() -> None:
    async with served(cluster("one")) as page, page.get(f"{API}/changes") as stream:
        await next_event(stream)
        for number in range(100):
            put(page.site.store, machine(f"m{number}", "one"))
            await page.site.store.announce()
        _, data = await next_event(stream)
        assert data["clusters"][0]["machines"]["good"] == 100


async def test_an_idle_stream_sends_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEARTBEAT_SECONDS", 0.01)
    async with served() as page, page.get(f"{API}/changes") as stream:
        await next_event(stream)
        name, data = await next_event(stream)
        assert (name, data["clusters"]) == ("changes", [])


async def test_streams_are_bounded_and_counted() -> None:
    async with served() as page:
        page.site.streams = MOST_STREAMS
        async with page.get(f"{API}/changes") as response:
            assert response.status == 429
        page.site.streams = 0
        stream = await page.get(f"{API}/changes")
        await next_event(stream)
        assert page.site.streams == 1
        stream.close()
        async with asyncio.timeout(10):
            while page.site.streams:
                await page.site.store.announce()
                page.site.store.number += 1
                await asyncio.sleep(0.01)


async def test_a_cluster_as_json() -> None:
    async with served(cluster("one")) as page:
        async with page.get(f"{API}/clusters/default/one") as response:
            data = await response.json()
            assert data["apiVersion"] == "ui.capelin.cluster.x-k8s.io/v1alpha1"
            assert data["tree"]["title"] == "Cluster/one"
        async with page.get(f"{API}/clusters/default/two") as response:
            assert response.status == 404


async def test_actions_need_permission() -> None:
    async with (
        served(cluster("one")) as page,
        page.post(f"{API}/clusters/default/one/actions/wake") as response,
    ):
        assert response.status == 403
        assert "--allow-actions" in await response.text()


async def test_an_action_is_requested_for_a_known_cluster() -> None:
    requested: list[Key] = []

    async def wake(key: Key) -> None:
        requested.append(key)

    async def sleep(_: Key) -> None:
        raise NotReadyError("Cluster one cannot sleep.", reason="It has no nodes.")

    async with served(cluster("one"), actions={"wake": wake, "sleep": sleep}) as page:
        for name, action, status in (
            ("one", "wake", 202),
            ("two", "wake", 404),
            ("one", "delete", 403),
            ("one", "sleep", 409),
        ):
            async with page.post(f"{API}/clusters/default/{name}/actions/{action}") as response:
                assert response.status == status
        async with page.get(f"{API}/clusters/default/one/actions/wake") as response:
            assert response.status == 405
    assert requested == [("default", "one")]


async def test_a_plan_of_a_known_cluster() -> None:
    planned: list[tuple[Key, str]] = []

    async def plan(key: Key, version: str) -> bytes:
        planned.append((key, version))
        if version == "v9":
            raise UserError("v9 is not a version.")
        return b'{"kind": "Plan"}'

    path = f"{API}/clusters/default"
    async with served(cluster("one")) as page:
        async with page.post(f"{path}/one/plan?version=v1.34.4") as response:
            assert response.status == 404
        page.site.plans = plan
        async with page.post(f"{path}/one/plan?version=v1.34.4") as response:
            assert await response.json() == {"kind": "Plan"}
        for name, version, status, text in (
            ("two", "v1.34.4", 404, "Cluster two does not exist in namespace default."),
            ("one", "v9", 409, "v9 is not a version."),
        ):
            async with page.post(f"{path}/{name}/plan?version={version}") as response:
                assert (response.status, await response.text()) == (status, text)
        async with page.post(f"{path}/one/plan") as response:
            assert response.status == 422
    assert planned == [(("default", "one"), "v1.34.4"), (("default", "one"), "v9")]


@pytest.mark.parametrize("path", ["/../server.py", "/%2e%2e/server.py", "//etc/passwd", "/app.js/"])
async def test_only_the_files_of_the_page_are_served(path: str) -> None:
    async with served() as page:
        reader, writer = await _connection(page)
        host = next(iter(page.site.access.hosts))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        status = (await reader.readline()).split()[1]
        writer.close()
        assert status in {b"404", b"307"}


async def _connection(page: Page) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(next(iter(page.site.access.hosts)).rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port)


def test_only_this_machine_reaches_the_socket() -> None:
    with listen(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        with pytest.raises(InvalidInputError, match="in use"):
            listen(listener.getsockname()[1])


def test_the_browser_gets_the_link_in_a_private_file(tmp_path: Path) -> None:
    shown: list[str] = []
    open_browser("http://127.0.0.1:1/#token=x", tmp_path, lambda url: not shown.append(url))
    (file,) = tmp_path.iterdir()
    assert shown == [file.as_uri()]
    assert file.stat().st_mode & 0o077 == 0
    assert "#token=x" in file.read_text()


_SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|Function\(|srcdoc"
)
_LOADS = re.compile(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(")


def test_the_page_loads_nothing_else_and_never_parses_text_as_html() -> None:
    for path, (content, _) in page_files().items():
        text = content.decode()
        assert not _SINKS.search(text), path
        assert not _LOADS.search(text.replace('xmlns="http://www.w3.org/2000/svg"', "")), path
        assert " style=" not in text, path
        assert "<script>" not in text, path
