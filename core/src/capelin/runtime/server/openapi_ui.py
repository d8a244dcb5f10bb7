"""FastAPI of an extension: the OpenAPI document, Swagger UI and mounted applications."""

import json
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

from capelin.runtime.extension import Extension
from capelin.runtime.openapi import openapi_document
from capelin.runtime.v1alpha1 import Discovery


def openapi_app(extension: Extension) -> FastAPI:
    """An application with `/docs`, `/openapi.json` and those that the extension mounts."""
    app = FastAPI(title=extension.name, docs_url=None, redoc_url=None, openapi_url=None)
    hooks = {Discovery, *(handler.hook for handler in extension.handlers)}
    document = openapi_document(hooks, title=extension.name, version=version("capelin-core"))
    for handler in extension.handlers:
        operation = document["paths"][handler.hook.id.path("{name}")]["post"]
        operation["parameters"][0]["schema"].setdefault("enum", []).append(handler.name)
    for path, mounted in extension.mounts.items():
        app.mount(path, mounted)
        if isinstance(mounted, FastAPI):
            _add(document, path, mounted)
    app.mount("/docs/assets", StaticFiles(packages=[("fastapi_swagger", "resources")]))

    @app.get("/openapi.json")
    def openapi() -> dict[str, Any]:
        return document

    @app.get("/docs")
    def swagger_ui() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title=extension.name,
            swagger_js_url="docs/assets/swagger-ui-bundle.js",
            swagger_css_url="docs/assets/swagger-ui.css",
            swagger_favicon_url="docs/assets/favicon-32x32.png",
        )

    return app


def _add(document: dict[str, Any], path: str, mounted: FastAPI) -> None:
    """Describe an application, whose types get its path as a prefix."""
    prefix, ours = f"{path[1:]}.", "#/components/schemas/"
    theirs = json.loads(json.dumps(mounted.openapi()).replace(ours, ours + prefix))
    document["openapi"] = theirs["openapi"]
    document["paths"] |= {path + name: item for name, item in theirs["paths"].items()}
    components = theirs.get("components", {})
    schemas = components.pop("schemas", {})
    for name, parts in components.items():
        document["components"].setdefault(name, {}).update(parts)
    document["components"]["schemas"] |= {prefix + name: schemas[name] for name in schemas}
