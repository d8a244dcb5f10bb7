"""Serves the OpenAPI document of the extension's hooks, and Swagger UI."""

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
    """An application with `/docs` and `/openapi.json`."""
    app = FastAPI(title=extension.name, docs_url=None, redoc_url=None, openapi_url=None)
    hooks = {Discovery, *(handler.hook for handler in extension.handlers)}
    document = openapi_document(hooks, title=extension.name, version=version("capelin-core"))
    for handler in extension.handlers:
        operation = document["paths"][handler.hook.id.path("{name}")]["post"]
        operation["parameters"][0]["schema"].setdefault("enum", []).append(handler.name)
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
