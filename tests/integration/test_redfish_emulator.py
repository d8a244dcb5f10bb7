"""Power cycles of a system that the Redfish emulator of OpenStack (sushy-tools) simulates."""

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from capelin.client import Destinations, tls_context
from capelin.pki import issue, new_ca
from capelin.testing.waiting import until
from capelin_embedded.addresses import free_port, is_listening
from capelin_machine_pool.hosts.redfish import RedfishError, basic_auth, power_cycle

EMULATOR: Final = "sushy-tools==2.2.0"
PASSWORD: Final = "hunter2"
# "hunter2" by bcrypt.
USERS: Final = "admin:$2b$04$w1e00su3zgHyvPUl3yqNKuI7dpwMYVfk5Rb7BKHgN.BAjYMr7/zWK\n"
SYSTEM: Final = "27946b59-9e44-4fa7-8e91-f3527a1ef094"
LOOPBACK = Destinations((ip_network("127.0.0.0/8"),))
CA = new_ca("bmc", now=datetime.now(UTC))

pytestmark = [pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Emulator:
    """A system that is off at first."""

    url: str

    async def cycle(self, password: str = PASSWORD) -> None:
        await power_cycle(
            self.url,
            user="admin",
            password=password,
            ca_bundle=CA.certificate_pem.decode(),
            destinations=LOOPBACK,
        )

    async def power_state(self) -> str:
        tls = tls_context(CA.certificate_pem, None, None)
        headers = {"Authorization": basic_auth("admin", PASSWORD)}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(self.url, ssl=tls) as response,
        ):
            return (await response.json())["PowerState"]


@asynccontextmanager
async def emulator(folder: Path) -> AsyncGenerator[Emulator]:
    """Serve Redfish over TLS, with a password."""
    if shutil.which("uvx") is None:
        pytest.fail("missing uvx, which gets sushy-tools")
    address = "127.0.0.1"
    leaf = issue(
        CA, common_name="bmc", usages=("server",), addresses=[address], now=datetime.now(UTC)
    )
    files = {"bmc.crt": leaf.certificate_pem, "bmc.key": leaf.private_key_pem}
    port = free_port(address)
    settings = {
        "SUSHY_EMULATOR_LISTEN_IP": address,
        "SUSHY_EMULATOR_LISTEN_PORT": port,
        "SUSHY_EMULATOR_SSL_CERT": str(folder / "bmc.crt"),
        "SUSHY_EMULATOR_SSL_KEY": str(folder / "bmc.key"),
        "SUSHY_EMULATOR_AUTH_FILE": str(folder / "users"),
        "SUSHY_EMULATOR_STATE_DIR": str(folder),
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    files |= {"users": USERS.encode(), "settings": "\n".join(lines).encode()}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    process = await asyncio.create_subprocess_exec(
        *("uvx", "--from", EMULATOR, "sushy-emulator", "--fake"),
        *("--config", str(folder / "settings")),
        stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:

        async def serves() -> bool:
            if process.returncode is not None:
                pytest.fail(f"{EMULATOR} cannot be installed or does not start")
            return await is_listening(address, port)

        await until(serves, within=180)
        yield Emulator(f"https://{address}:{port}/redfish/v1/Systems/{SYSTEM}")
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def test_emulated_system_is_switched_on_and_restarted(tmp_path: Path) -> None:
    async with emulator(tmp_path) as bmc:
        with pytest.raises(RedfishError, match="rejects the user or the password"):
            await bmc.cycle("wrong")
        assert await bmc.power_state() == "Off"
        await bmc.cycle()
        # The emulator takes up to eleven seconds.
        await until(bmc.power_state, lambda state: state == "On", within=30)
        await bmc.cycle()
        assert await bmc.power_state() == "Off"
        await until(bmc.power_state, lambda state: state == "On", within=30)
