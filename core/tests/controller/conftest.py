"""Managers that run in this process against the real API server, and patience with them."""

import asyncio
import io
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Protocol
from uuid import uuid4

import pytest
from capelin.api.views.core import Namespace
from capelin.client import Client, Config
from capelin.client import Options as ClientOptions
from capelin.controller import Manager, Options, Reconciler, logs

Check = Callable[[], Awaitable[bool] | bool]


class Eventually(Protocol):
    """Waits until something is true."""

    async def __call__(self, check: Check, within: float = ..., pause: float = ...) -> None: ...


class Running(Protocol):
    """Runs a manager in a block, and stops it in the end."""

    def __call__(
        self, *reconcilers: Reconciler[Any], **options: Any
    ) -> AbstractAsyncContextManager[Manager]: ...


@pytest.fixture(scope="session")
def config(kubeconfig: Path) -> Config:
    """The administrator of the shared API server."""
    return Config.from_kubeconfig(kubeconfig)


@pytest.fixture(scope="session")
async def client(config: Config) -> AsyncIterator[Client]:
    """A client without haste or limit."""
    async with Client(config, manager="user", options=ClientOptions(qps=0)) as made:
        yield made


@pytest.fixture
async def namespace(client: Client) -> str:
    """The name of a namespace for one test."""
    name = f"test-{uuid4().hex[:8]}"
    await client.create(Namespace.of(name))
    return name


@pytest.fixture
def start() -> Generator[Callable[[Literal["text", "json"], int], io.StringIO]]:
    """Begins to log in a form and as much as is asked for, and gives what is written."""
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in (None, "kopf", "aiohttp", "asyncio")}
    handlers = list(root.handlers)

    def begin(form: Literal["text", "json"], verbosity: int) -> io.StringIO:
        stream = io.StringIO()
        logs.configure(form, verbosity, stream)
        return stream

    yield begin
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture(scope="session")
def eventually() -> Eventually:
    """See `Eventually`."""

    async def wait(check: Check, within: float = 30, pause: float = 0.02) -> None:
        async with asyncio.timeout(within):
            while True:
                answer = check()
                if answer if isinstance(answer, bool) else await answer:
                    return
                await asyncio.sleep(pause)

    return wait


@pytest.fixture
def running(config: Config, namespace: str) -> Running:
    """See `Running`: in the test's namespace, listening nowhere, if not told otherwise."""

    @asynccontextmanager
    async def run(*reconcilers: Reconciler[Any], **options: Any) -> AsyncGenerator[Manager]:
        usual: dict[str, Any] = {
            "namespace": namespace,
            "metrics_address": None,
            "health_address": None,
            "grace_period": 5,
        }
        chosen = Options(**(usual | options))
        manager = Manager("capelin-test", reconcilers, chosen, config)
        task = asyncio.create_task(manager.run())
        try:
            yield manager
        finally:
            manager.stop()
            await task

    return run
