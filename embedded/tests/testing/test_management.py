"""The management cluster of a test run. Only one environment can run some providers."""

import socket
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
from capelin.errors import BusyError
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.management import Environment, Settings, UpRequest, observe
from capelin_embedded.management.providers import OPTIONAL_PROVIDERS
from capelin_embedded.testing import management
from capelin_embedded.testing.management import ManagementCluster

SETTINGS = Settings(kubernetes_version=TESTED_KUBERNETES[-1], providers=["kubeadm"])


@pytest.fixture
def taken_port(monkeypatch: pytest.MonkeyPatch) -> Generator[socket.socket]:
    """The port that the Dev provider needs, in use by another process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        dev = replace(OPTIONAL_PROVIDERS["dev"][0], fixed_ports=(port,))
        monkeypatch.setitem(OPTIONAL_PROVIDERS, "dev", (dev,))
        yield server


@pytest.fixture
def brought_up(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The executed steps."""
    steps: list[object] = []

    async def carry_out(_: Environment, more: list[object]) -> None:
        steps.extend(more)

    monkeypatch.setattr(management, "carry_out", carry_out)
    return steps


def cluster_of(run: Path, settings: Settings = SETTINGS) -> ManagementCluster:
    environment = Environment(run / "management")
    environment.make_folders()
    environment.write_settings(settings)
    return ManagementCluster(environment)


async def test_known_providers_change_nothing(tmp_path: Path, brought_up: list[object]) -> None:
    cluster = cluster_of(tmp_path / "run")
    await cluster.require("kubeadm")
    assert brought_up == []
    await cluster.require("kubeadm-bootstrap")
    assert brought_up != []


@pytest.mark.usefixtures("taken_port")
async def test_dev_provider_is_unique(tmp_path: Path, brought_up: list[object]) -> None:
    cluster = cluster_of(tmp_path / "run")
    cluster_of(tmp_path / "other run")
    with pytest.raises(BusyError, match="Another environment may have this provider"):
        await cluster.require("dev")
    assert brought_up == []


async def test_a_test_run_waits_for_another_with_the_dev_provider(
    tmp_path: Path,
    taken_port: socket.socket,
    brought_up: list[object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = cluster_of(tmp_path / "run")
    cluster_of(tmp_path / "other run", SETTINGS.model_copy(update={"providers": ["dev"]}))
    (tmp_path / "lock").touch()
    looks = 0

    async def observe_twice(environment: Environment, request: UpRequest) -> object:
        nonlocal looks
        looks += 1
        if looks == 2:
            taken_port.close()
        return await observe(environment, request)

    monkeypatch.setattr(management, "observe", observe_twice)
    await cluster.require("dev")
    assert looks == 2
    assert brought_up != []
