"""The pytest plugin: fixtures by name, loaded through the `pytest11` entry point.

It loads in every pytest run of the environment, so it imports nothing before a fixture is used.
"""

# ruff: noqa: PLC0415

import os
from collections.abc import Callable, Generator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from capelin_embedded.apiserver import ApiServer
    from capelin_embedded.binaries import Component
    from capelin_embedded.testing.administrator import Administrator, Installable
    from capelin_embedded.testing.management import ManagementCluster

_WITH_PROGRAMS = {"api_server", "own_api_server", "management_cluster"}
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid4().hex)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that only downloads or builds binaries."""
    parser.getgroup("capelin").addoption(
        "--fetch-binaries",
        action="store_true",
        help="Download or build the binaries that the collected tests need, and run no test.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker. Load the coroutine fixtures if pytest-asyncio is installed."""
    config.addinivalue_line(
        "markers",
        "needs_programs(*names): binaries such as `etcd` or `kube-apiserver@v1.36.3`, or "
        "components of other packages, that the test uses. They are downloaded before the first "
        "test, outside of its time limit.",
    )
    # All workload clusters of tests are on this machine.
    os.environ.setdefault("CAPELIN_ALLOWED_NETWORKS", "127.0.0.0/8")
    if config.pluginmanager.hasplugin("asyncio"):
        config.pluginmanager.import_plugin("capelin.testing.coroutines")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Download or build the binaries for the collected tests. The first time may take minutes."""
    fixtures: set[str] = set()
    marked: set[str | Component] = set()
    for item in session.items:
        fixtures.update(getattr(item, "fixturenames", ()))
        for mark in item.iter_markers("needs_programs"):
            marked.update(mark.args)
    if session.config.option.collectonly or not (marked or fixtures & _WITH_PROGRAMS):
        return
    from capelin_embedded.testing.run import get, needed

    capture: Any = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        problem = get(needed(fixtures, marked))
    if session.config.option.fetch_binaries:
        reason = f"Binaries are missing: {problem}" if problem else "All binaries are available."
        pytest.exit(reason, returncode=1 if problem else 0)


@pytest.fixture(scope="session")
def capelin_test_run() -> Generator[Path]:
    """The folder for the servers of this test run. Removed when its last worker ends."""
    from capelin_embedded.testing.run import held_run

    with held_run(_RUN) as folder:
        yield folder


@pytest.fixture(scope="session")
def api_server(capelin_test_run: Path) -> "ApiServer":
    """A Kubernetes API server that the whole test run shares. Leave no changes behind."""
    from capelin_embedded.testing.run import shared_api_server

    return shared_api_server(capelin_test_run)


@pytest.fixture(scope="session")
def kubeconfig(api_server: "ApiServer") -> Path:
    return api_server.kubeconfig


@pytest.fixture(scope="session")
def management_cluster(capelin_test_run: Path) -> "ManagementCluster":
    """Cluster API's core and all installed providers, shared by the whole test run.

    It has the kubeadm bootstrap provider. `await management_cluster.require("kubeadm", "dev")`
    adds other providers of Cluster API.
    """
    from capelin_embedded.testing.run import shared_management_cluster

    return shared_management_cluster(capelin_test_run)


@pytest.fixture
def own_api_server(capelin_test_run: Path) -> "Generator[ApiServer]":
    """A Kubernetes API server for only this test, which may stop, kill and restart it."""
    from capelin_embedded.testing.run import own_api_server

    with own_api_server(capelin_test_run) as server:
        yield server


@pytest.fixture(scope="session")
def capelin_administrator(api_server: "ApiServer") -> "Generator[Administrator]":
    """Creates namespaces and CRDs on `api_server`."""
    from capelin_embedded.testing.administrator import Administrator

    administrator = Administrator(api_server)
    yield administrator
    administrator.close()


@pytest.fixture(scope="session")
def install_crds(capelin_administrator: "Administrator") -> "Callable[..., None]":
    """Installs CRDs on `api_server` and waits until their kinds are served.

    Takes kinds, tuples of the versions of one kind, manifests, names of Cluster API's own, and
    providers: their kinds, and those of Cluster API in their permissions.
    """

    def install(*what: "Installable") -> None:
        capelin_administrator.install(*what)

    return install


@pytest.fixture
def namespace(capelin_administrator: "Administrator") -> str:
    """A fresh namespace on `api_server` for one test.

    It exists as long as the server: deleting it would cost two requests for each kind.
    """
    return capelin_administrator.new_namespace()
