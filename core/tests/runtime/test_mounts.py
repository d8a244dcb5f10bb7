"""Applications of FastAPI in the server of an extension."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import orjson
import pytest
from capelin.runtime import Extension
from capelin.runtime.extension import InvalidExtensionError
from capelin.runtime.server import app as app_module
from capelin.runtime.server.app import App
from fastapi import Depends, FastAPI, Header
from pydantic import BaseModel

Answer = tuple[int, bytes]


class Report(BaseModel):
    cluster: str
    nodes: int = 3


def user(x_user: Annotated[str, Header()]) -> str:
    return x_user


def reports() -> FastAPI:
    api = FastAPI()

    @api.get("/{cluster}")
    def report(cluster: str, who: Annotated[str, Depends(user)]) -> Report:
        return Report(cluster=f"{cluster} for {who}")

    @api.post("/")
    async def add(report: Report) -> int:
        return report.nodes

    @api.get("/slow/one")
    async def slow() -> None:
        await asyncio.Event().wait()

    return api


async def ask(
    app: App, path: str, body: bytes = b"", *, method: str = "GET", **headers: str
) -> Answer:
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "root_path": "",
        "headers": [(name.replace("_", "-").encode(), headers[name].encode()) for name in headers],
    }
    pieces, sent = [body], list[Any]()

    async def receive() -> dict[str, Any]:
        if pieces:
            return {"type": "http.request", "body": pieces.pop(), "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


@pytest.fixture
def ext() -> Extension:
    ext = Extension("reporter")
    ext.mount("/reports", reports())
    return ext


async def test_an_application_has_its_routes_and_dependencies(ext: Extension) -> None:
    app = App(ext)
    status, body = await ask(app, "/reports/demo", x_user="ann")
    assert (status, orjson.loads(body)) == (200, {"cluster": "demo for ann", "nodes": 3})
    assert (await ask(app, "/reports/demo"))[0] == 422
    json = {"method": "POST", "content_type": "application/json"}
    assert await ask(app, "/reports/", b'{"cluster":"a","nodes":7}', **json) == (200, b"7")
    assert (await ask(app, "/other"))[0] == 404


async def test_one_document_describes_hooks_and_applications(ext: Extension) -> None:
    _, body = await ask(App(ext), "/openapi.json")
    document = orjson.loads(body)
    assert {"/hooks.runtime.cluster.x-k8s.io/v1alpha1/discovery", "/reports/{cluster}"} <= (
        document["paths"].keys()
    )
    content = document["paths"]["/reports/{cluster}"]["get"]["responses"]["200"]["content"]
    reference = content["application/json"]["schema"]["$ref"]
    assert reference == "#/components/schemas/reports.Report"
    assert "nodes" in document["components"]["schemas"]["reports.Report"]["properties"]


async def test_requests_have_the_bounds_of_hooks(
    ext: Extension, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(ext)
    large = b"x" * (20 * 2**20 + 1)
    assert (await ask(app, "/reports/", large, method="POST"))[0] == 413
    monkeypatch.setattr(app_module, "MAX_TIMEOUT_SECONDS", 0.05)
    assert (await ask(app, "/reports/slow/one"))[0] == 504


async def test_an_application_has_the_lifespan_of_the_server() -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        seen.append("begin")
        yield
        seen.append("end")

    ext = Extension("reporter")
    ext.mount("/reports", FastAPI(lifespan=lifespan))
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> dict[str, str]:
        return messages.pop(0)

    async def send(message: dict[str, str]) -> None:
        seen.append(message["type"].removeprefix("lifespan."))

    await App(ext)({"type": "lifespan"}, receive, send)
    assert seen == ["begin", "startup.complete", "end", "shutdown.complete"]


@pytest.mark.parametrize(
    "path", ["reports", "/", "/reports/", "/a/b", "/docs", "/../x", "/reports"]
)
def test_a_path_is_one_free_word(ext: Extension, path: str) -> None:
    with pytest.raises(InvalidExtensionError, match="application"):
        ext.mount(path, reports())
