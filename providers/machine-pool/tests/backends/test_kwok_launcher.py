"""The launcher of KWOK, which runs in the provider's container."""

from pathlib import Path

import pytest
from aiohttp import web
from capelin.client import ResponseTooLarge
from capelin_machine_pool.backends.kwok_launcher import delete_leases

from tests.support.web import api_server, kubeconfig_secret


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

    kubeconfig = tmp_path / "kubeconfig"
    async with api_server(handler) as address:
        kubeconfig.write_bytes(kubeconfig_secret("a", "team", address).data["value"])
        with pytest.raises(ResponseTooLarge, match="more than 16 MiB"):
            await delete_leases(kubeconfig)
    assert max(sent) < 32
