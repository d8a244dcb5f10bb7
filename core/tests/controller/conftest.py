"""Managers that run in this process against the real API server."""

import io
import logging
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol
from uuid import uuid4

import pytest
from capelin.api import Unstructured
from capelin.api.core import Namespace
from capelin.client import Client, ClientOptions, Config, Impersonation
from capelin.controller import Manager, Reconciler, logs
from capelin.testing import managers

LOGGERS = (None, "kopf", "kopf.objects", "aiohttp", "asyncio")


class Running(Protocol):
    """Runs a manager for the duration of a block."""

    def __call__(
        self, *reconcilers: Reconciler[Any], **options: Any
    ) -> AbstractAsyncContextManager[Manager]: ...


@pytest.fixture(scope="session")
def config(kubeconfig: Path) -> Config:
    """The administrator of the shared API server."""
    return Config.from_kubeconfig(kubeconfig)


@pytest.fixture(scope="session")
async def client(config: Config) -> AsyncIterator[Client]:
    """A client without a rate limit."""
    async with Client(config, manager="user", options=ClientOptions(qps=0)) as client:
        yield client


@pytest.fixture
async def namespace(client: Client) -> str:
    name = f"test-{uuid4().hex[:8]}"
    await client.create(Namespace.of(name))
    return name


class Limited(Protocol):
    """The configuration of a service account with these rules, in the namespace of the test."""

    async def __call__(self, rules: Sequence[Unstructured]) -> Config: ...


@pytest.fixture
def limited(client: Client, config: Config, namespace: str) -> Limited:
    """See `Limited`."""

    async def grant(rules: Sequence[Unstructured]) -> Config:
        group = "rbac.authorization.k8s.io"
        metadata = {"name": "manager", "namespace": namespace}
        me = f"system:serviceaccount:{namespace}:manager"
        role = {"kind": "Role", "metadata": metadata, "rules": list(rules)}
        binding = {
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "manager"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": me}],
        }
        for obj in (role, binding):
            await client.create({"apiVersion": f"{group}/v1", **obj})
        return replace(config, user=replace(config.user, impersonate=Impersonation(me)))

    return grant


@pytest.fixture
def start() -> Generator[Callable[[Literal["text", "json"], int], io.StringIO]]:
    """Configures logging with a format and a verbosity, and returns the output."""
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    handlers = list(root.handlers)

    def begin(form: Literal["text", "json"], verbosity: int) -> io.StringIO:
        stream = io.StringIO()
        logs.configure(form, verbosity, stream)
        return stream

    yield begin
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def running(config: Config, namespace: str) -> Running:
    """See `Running`. The default namespace is that of the test."""
    return partial(managers.running, config=config, namespace=namespace)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that fit the length of a seed."""
    for name, seconds in {
        "informer._FIRST_PAUSE": 0.005,
        "informer._LONGEST_PAUSE": 0.05,
        "kopf_thread._SILENT_SECONDS": 0.3,
        "kopf_thread._LOGIN_SECONDS": 0.01,
        "manager._OPTIONAL_EVERY": 0.05,
    }.items():
        monkeypatch.setattr(f"capelin.controller.{name}", seconds)
