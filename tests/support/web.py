"""API servers with scripted answers, and Secrets with kubeconfigs for them."""

import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import yaml
from aiohttp import web
from capelin.api.core import Secret

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def api_server(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncGenerator[str]:
    """The address of a server that passes every request to the handler."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        host, port, *_ = runner.addresses[0]
        yield f"{'https' if tls else 'http'}://{host}:{port}"
    finally:
        await runner.cleanup()


async def not_found(_: web.Request) -> web.StreamResponse:
    """Answer 404 like an API server without the object."""
    body = {"kind": "Status", "reason": "NotFound", "details": {"name": "one"}}
    return web.json_response(body, status=404)


def kubeconfig_secret(cluster: str, namespace: str, address: str) -> Secret:
    """The kubeconfig Secret of a workload cluster at an address."""
    kubeconfig: dict[str, Any] = {
        "clusters": [{"name": cluster, "cluster": {"server": address}}],
        "users": [{"name": cluster, "user": {}}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": cluster}}],
        "current-context": cluster,
    }
    content = yaml.safe_dump(kubeconfig).encode()
    return Secret.of(f"{cluster}-kubeconfig", namespace, data={"value": content})
