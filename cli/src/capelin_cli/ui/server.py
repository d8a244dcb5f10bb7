"""The server of the page: its files, a stream of changes, and the actions that are allowed."""

import asyncio
import mimetypes
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Annotated, Final

from capelin.api import Model
from capelin.errors import UserError
from capelin_embedded.binaries import KNOWN_KUBERNETES
from fastapi import FastAPI, HTTPException, Query, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from capelin_cli.ui.access import Access, Application, Gate
from capelin_cli.ui.explaining import Explainer
from capelin_cli.ui.observed import Key
from capelin_cli.ui.store import Store
from capelin_cli.ui.views import changes, class_view, cluster_view

COALESCE_SECONDS: Final = 0.2
"""The least time between two messages of a stream."""
HEARTBEAT_SECONDS: Final = 10.0
MOST_STREAMS: Final = 16

Plans = Callable[[Key, str], Awaitable[bytes]]
"""Computes the JSON of the effect that another version has on a cluster."""

Action = Callable[[Key], Awaitable[None]]
"""Requests a change of a cluster, and does not wait for its end."""


class Session(Model):
    """The key, title, actions and versions for a page that opens."""

    key: str
    title: str
    actions: list[str]
    versions: list[str]
    """The versions of Kubernetes that a plan can have, the oldest first."""


@dataclass(slots=True)
class Site:
    """All that the server serves."""

    store: Store
    access: Access
    explainer: Explainer | None = None
    title: str = ""
    actions: Mapping[str, Action] = field(default_factory=dict[str, Action])
    """By name. Empty unless the user allowed them."""
    plans: Plans | None = None
    on_opened: Callable[[], None] = lambda: None
    """Called when a page was opened with the link, which is no longer valid."""
    streams: int = 0


def page_files() -> dict[str, tuple[bytes, str]]:
    """Content and type of the page's files by path."""
    folder = files("capelin_cli.ui") / "page"
    found: dict[str, tuple[bytes, str]] = {}
    for file in folder.iterdir():
        path = "/" if file.name == "index.html" else f"/{file.name}"
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        found[path] = (file.read_bytes(), "text/javascript" if path.endswith(".js") else kind)
    return found


def application(site: Site) -> Application:
    """The application behind its gate."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(HTTPException)
    async def _(_: object, error: HTTPException) -> Response:
        # The page shows it to its user.
        return PlainTextResponse(error.detail, error.status_code)

    _add_files(app)
    _add_api(app, site)
    return Gate(app, site.access)


def _add_files(app: FastAPI) -> None:
    def serve(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
        # FastAPI calls other functions in threads, of which each takes memory.
        async def file() -> Response:
            return Response(content, media_type=kind)

        return file

    for path, (content, kind) in page_files().items():
        app.add_api_route(path, serve(content, kind), methods=["GET", "HEAD"])


def _add_api(app: FastAPI, site: Site) -> None:
    @app.post("/api/v1alpha1/session")
    async def _() -> Response:
        site.access.renew_link()
        site.on_opened()
        session = Session(
            key=site.access.key,
            title=site.title,
            actions=[*site.actions],
            versions=[*KNOWN_KUBERNETES] if site.plans else [],
        )
        return Response(session.model_dump_json(by_alias=True), media_type="application/json")

    @app.get("/api/v1alpha1/changes")
    async def _(focus: Annotated[str, Query(max_length=600)] = "") -> Response:
        if site.streams >= MOST_STREAMS:
            raise HTTPException(429, f"At most {MOST_STREAMS} pages can be open.")
        return StreamingResponse(stream(site, focus), media_type="text/event-stream")

    @app.get("/api/v1alpha1/clusters/{namespace}/{name}")
    async def _(namespace: str, name: str) -> Response:
        view = cluster_view(site.store, (namespace, name))
        if view is None:
            raise HTTPException(404, f"Cluster {name} does not exist in namespace {namespace}.")
        return Response(_json(view), media_type="application/json")

    @app.post("/api/v1alpha1/clusters/{namespace}/{name}/actions/{action}")
    async def _(namespace: str, name: str, action: str) -> Response:
        if (requested := site.actions.get(action)) is None:
            raise HTTPException(403, "Start capelin ui with --allow-actions.")
        with known_cluster(site, (namespace, name)) as key:
            await requested(key)
        return PlainTextResponse("requested", 202)

    @app.post("/api/v1alpha1/clusters/{namespace}/{name}/plan")
    async def _(
        namespace: str, name: str, version: Annotated[str, Query(max_length=40)]
    ) -> Response:
        if site.plans is None:
            raise HTTPException(404, "This server computes no plans.")
        with known_cluster(site, (namespace, name)) as key:
            return Response(await site.plans(key, version), media_type="application/json")


@contextmanager
def known_cluster(site: Site, key: Key) -> Generator[Key]:
    """Check that a cluster exists, and translate errors for people into responses."""
    namespace, name = key
    if key not in site.store.entries:
        raise HTTPException(404, f"Cluster {name} does not exist in namespace {namespace}.")
    try:
        yield key
    except UserError as error:
        raise HTTPException(409, f"{error.message} {error.reason}".strip()) from None


@dataclass(frozen=True, slots=True)
class Focus:
    """The one cluster or class that a page shows."""

    kind: str
    key: Key

    def is_changed(self, store: Store, after: int) -> bool:
        """Whether its view may have changed after a number of the store."""
        if self.kind != "cluster":
            return bool(self.kind)
        entry = store.entries.get(self.key)
        return entry is None or entry.changed > after or not after

    def view(self, store: Store) -> bytes:
        """Its JSON, or null if it does not exist."""
        view = cluster_view(store, self.key) if self.kind == "cluster" else None
        view = class_view(store, self.key) if self.kind == "class" else view
        return _json(view) if view is not None else b"null"


async def stream(site: Site, focus: str) -> AsyncGenerator[bytes]:
    """Server-sent events: changed clusters, and the focused cluster or class when it changed.

    The store provides each message when the connection can take it, so a slow page gets fewer
    messages, and nothing queues up.
    """
    store, sent, shown = site.store, 0, b""
    kind, _, rest = focus.partition("/")
    namespace, _, name = rest.partition("/")
    focused = Focus(kind, (namespace, name))
    site.streams += 1
    if site.explainer is not None:
        site.explainer.viewers += 1
    try:
        while True:
            number = store.number
            yield event("changes", _json(changes(store, sent)))
            if focused.is_changed(store, sent) and (view := focused.view(store)) != shown:
                shown = view
                yield event("focus", view)
            sent = max(number, 1)
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await store.changed_after(number)
            await asyncio.sleep(COALESCE_SECONDS)
    finally:
        site.streams -= 1
        if site.explainer is not None:
            site.explainer.viewers -= 1


def event(name: str, data: bytes) -> bytes:
    """A server-sent event. JSON has no line breaks."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def _json(model: Model) -> bytes:
    return model.model_dump_json(by_alias=True, exclude_none=True).encode()
