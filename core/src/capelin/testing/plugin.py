"""The pytest plugin: fixtures by name, loaded through the `pytest11` entry point.

It loads in every pytest run of the environment, so it imports nothing before a fixture is used.
"""

# ruff: noqa: PLC0415

import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from capelin.embedded.apiserver import ApiServer

_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid4().hex)


@pytest.fixture(scope="session")
def capelin_test_run() -> Generator[Path]:
    """The folder in which this test run keeps its servers; removed when its last worker ends."""
    from capelin.testing.run import held_run

    with held_run(_RUN) as folder:
        yield folder


@pytest.fixture(scope="session")
def api_server(capelin_test_run: Path) -> "ApiServer":
    """A Kubernetes API server that the whole test run shares; leave it as you found it."""
    from capelin.testing.run import shared_api_server

    return shared_api_server(capelin_test_run)


@pytest.fixture(scope="session")
def kubeconfig(api_server: "ApiServer") -> Path:
    """The administrator's kubeconfig of `api_server`."""
    return api_server.kubeconfig


@pytest.fixture
def own_api_server(capelin_test_run: Path) -> "Generator[ApiServer]":
    """A Kubernetes API server for this test alone, which may stop, kill and restart it."""
    from capelin.testing.run import own_api_server

    with own_api_server(capelin_test_run) as server:
        yield server
