"""The launcher of KWOK, which runs in the provider's container."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from capelin.client import ResponseTooLarge
from capelin_machine_pool.backends.kwok_launcher import delete_leases


async def test_the_launcher_stops_reading_a_large_response(tmp_path: Path) -> None:
    sent: list[int] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        sent.append(0)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for _ in range(64):
            await response.write(b" " * (1 << 20))
            sent[-1] += 1
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port, *_ = runner.addresses[0]
    kubeconfig = tmp_path / "kubeconfig"
    named: dict[str, Any] = {
        "clusters": [{"name": "a", "cluster": {"server": f"http://{host}:{port}"}}],
        "users": [{"name": "a", "user": {}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
    }
    kubeconfig.write_text(yaml.safe_dump(named))
    with pytest.raises(ResponseTooLarge, match="more than 16 MiB"):
        await delete_leases(kubeconfig)
    await runner.cleanup()
    assert max(sent) < 32
