"""What an environment is asked to be, and refusals before anything starts."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from capelin.embedded.management import control, providers
from capelin.embedded.management.environment import Environment, Existing, Settings
from capelin.errors import BusyError, InvalidInputError, NotReadyError

EXISTING = Existing(cluster="uid", version="v1.35.0+k3s1", address="127.0.0.1", mark="demo.1")


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
    with pytest.raises(InvalidInputError, match=r"demo runs Kubernetes v1\.33\.13"):
        wanted(environment, "v1.34.4")


def test_the_clusters_of_an_existing_api_server_need_not_have_its_version(
    environment: Environment,
) -> None:
    environment.write_settings(
        Settings(
            kubernetes_version="v1.33.13",
            providers=["dev"],
            existing=EXISTING,
            ports={"cluster-api/health": 1},
        )
    )
    now = control.wanted(
        environment,
        kubernetes_version="v1.34.4",
        providers=["kubeadm"],
        durable=True,
        existing=EXISTING.model_copy(update={"address": "127.0.0.2"}),
    )
    assert now.kubernetes_version == "v1.34.4"
    assert now.server_version == "v1.35.0+k3s1"
    assert now.providers == ["dev", "kubeadm"]
    assert now.ports == {"cluster-api/health": 1}
    assert now.existing is not None
    assert now.existing.address == "127.0.0.2"


def test_the_target_is_remembered(environment: Environment) -> None:
    assert control.target_of(environment, None) == "process"
    assert control.target_of(environment, "existing") == "existing"
    environment.write_settings(Settings(kubernetes_version="v1.34.4", existing=EXISTING))
    assert control.target_of(environment, None) == "existing"
    assert control.target_of(environment, "existing") == "existing"
    with pytest.raises(InvalidInputError, match="demo has the target existing"):
        control.target_of(environment, "process")


def test_an_environment_of_before_there_were_targets_is_a_process(environment: Environment) -> None:
    environment.settings_file.write_text('{"kubernetesVersion": "v1.34.4"}')
    assert control.target_of(environment, "process") == "process"


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
    with pytest.raises(NotReadyError, match="Its supervisor does not run"):
        await anext(control.follow(environment))


async def test_an_environment_that_never_ran_is_removed_too(environment: Environment) -> None:
    await control.remove(environment)
    assert not environment.folder.exists()
