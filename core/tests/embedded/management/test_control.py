"""What an environment is asked to be, and refusals before anything starts."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from capelin.embedded.management import control, providers
from capelin.embedded.management.environment import Environment, Settings
from capelin.embedded.management.problems import BadInputError, BusyError, NotUpError


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    environment = Environment(tmp_path / "demo")
    environment.make_folders()
    return environment


def wanted(environment: Environment, version: str, *names: str) -> Settings:
    return control.wanted(environment, kubernetes_version=version, providers=names, durable=True)


def test_providers_are_added_to_those_that_there_are(environment: Environment) -> None:
    first = wanted(environment, "v1.34.4", "kubeadm")
    environment.write_settings(first.model_copy(update={"ports": {"a/health": 1}}))
    second = wanted(environment, "v1.34.4", "dev")
    assert second.providers == ["dev", "kubeadm"]
    assert second.ports == {"a/health": 1}


def test_a_management_cluster_keeps_its_version(environment: Environment) -> None:
    environment.write_settings(wanted(environment, "v1.33.13"))
    with pytest.raises(BadInputError, match=r"demo runs Kubernetes v1\.33\.13"):
        wanted(environment, "v1.34.4")


def test_a_provider_whose_port_is_taken_is_refused(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        dev = replace(providers.ON_REQUEST["dev"][0], fixed_ports=(port,))
        monkeypatch.setitem(providers.ON_REQUEST, "dev", (dev,))
        with pytest.raises(BusyError, match=f"port {port} whatever one says"):
            control.check_fixed_ports(environment, wanted(environment, "v1.34.4", "dev"))
        control.check_fixed_ports(environment, wanted(environment, "v1.34.4", "kubeadm"))
    control.check_fixed_ports(environment, wanted(environment, "v1.34.4", "dev"))


async def test_an_environment_without_a_supervisor_does_not_come_up(
    environment: Environment,
) -> None:
    with pytest.raises(NotUpError, match="Its supervisor does not run"):
        await anext(control.follow(environment))


async def test_an_environment_that_never_ran_is_removed_too(environment: Environment) -> None:
    await control.remove(environment)
    assert not environment.folder.exists()
