"""Commands and ports of managers."""

import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from capelin.contract import ProviderType
from capelin.provider import Provider
from capelin_embedded.management.components import (
    Component,
    Placement,
    Purpose,
    choose_ports,
    component_command,
    inherited_variables,
    ports_of,
)
from capelin_embedded.management.providers import CORE, python_component, upstream_component

DEPLOYMENT: dict[str, Any] = {
    "kind": "Deployment",
    "metadata": {"name": "capi-controller-manager", "namespace": "capi-system"},
    "spec": {
        "template": {
            "spec": {
                "serviceAccountName": "capi-manager",
                "containers": [
                    {
                        "name": "manager",
                        "args": [
                            "--leader-elect",
                            "--diagnostics-address=:8443",
                            "--feature-gates=ClusterTopology=true",
                        ],
                        "env": [{"name": "DOCKER_HOST", "value": ""}],
                    }
                ],
            }
        }
    },
}
EXTENSION: dict[str, Any] = {"kind": "ExtensionConfig", "metadata": {"name": "mine"}}
FOLDER = Path("/state/cluster-api")
WORKLOADS = Path("/state/workloads")
AUTHORITY = Path("/state/ca.crt")


def core() -> Component:
    return upstream_component(
        CORE, version="v1.14.2", program=Path("/cache/core"), manifests=[DEPLOYMENT]
    )


def mine(kind: ProviderType = "ControlPlaneProvider") -> Component:
    return python_component(
        Provider(
            name="mine",
            type=kind,
            version="v0.1.0",
            module="mine",
            arguments=["--concurrency=5"],
            objects=[EXTENSION],
        )
    )


def test_a_go_manager_keeps_the_flags_of_its_deployment_except_pod_flags() -> None:
    placement = Placement(
        "127.64.0.9", {"health": 31000, "webhooks": 31001}, FOLDER, WORKLOADS, AUTHORITY
    )
    assert component_command(core(), placement).arguments == (
        "/cache/core",
        "--feature-gates=ClusterTopology=true",
        "--kubeconfig=/state/cluster-api/kubeconfig",
        "--health-addr=127.64.0.9:31000",
        "--diagnostics-address=0",
        "--webhook-port=31001",
        "--webhook-cert-dir=/state/cluster-api",
        "--runtime-extension-client-cert-file=/state/cluster-api/tls.crt",
        "--runtime-extension-client-key-file=/state/cluster-api/tls.key",
    )


def test_a_go_manager_serves_metrics_without_tls_if_it_has_a_port_for_them() -> None:
    ports: dict[Purpose, int] = {"health": 31000, "webhooks": 31001, "diagnostics": 31002}
    placement = Placement("127.64.0.9", ports, FOLDER, WORKLOADS, AUTHORITY)
    arguments = component_command(core(), placement).arguments
    assert {"--diagnostics-address=127.64.0.9:31002", "--insecure-diagnostics=true"} <= {*arguments}


def test_a_manager_gets_a_stable_pod_identity() -> None:
    placement = Placement(
        "127.64.0.9", {"health": 31000, "webhooks": 31001}, FOLDER, WORKLOADS, AUTHORITY
    )
    environment = component_command(core(), placement).environment
    assert dict(environment) | {"POD_UID": "?"} == {
        "DOCKER_HOST": "",
        "POD_IP": "127.64.0.9",
        "POD_NAME": "cluster-api",
        "POD_NAMESPACE": "capi-system",
        "POD_UID": "?",
    }
    assert component_command(core(), placement).hash == component_command(core(), placement).hash


@pytest.mark.parametrize(
    ("address", "metrics"), [("127.64.0.9", "127.64.0.9:31000"), ("172.18.0.1", "0")]
)
def test_a_python_manager_runs_in_this_interpreter(address: str, metrics: str) -> None:
    placement = Placement(address, {"health": 31000}, FOLDER, WORKLOADS, AUTHORITY)
    assert component_command(mine(), placement).arguments == (
        sys.executable,
        "-m",
        "mine",
        "--concurrency=5",
        "--kubeconfig=/state/cluster-api/kubeconfig",
        f"--health-address={address}:31000",
        f"--metrics-address={metrics}",
    )


def test_a_python_manager_gets_the_settings_of_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CAPELIN_ENDPOINT_NETWORKS", "192.0.2.0/24")
    ports: dict[Purpose, int] = {"health": 31000}
    variables = {"CAPELIN_ENDPOINT_NETWORKS": "172.17.0.1", "DOCKER_HOST": "unix:///run/sock"}
    placement = Placement("127.64.0.9", ports, FOLDER, WORKLOADS, AUTHORITY, variables)
    environment = component_command(mine(), placement).environment
    assert variables.items() <= environment.items()
    without = Placement("127.64.0.9", ports, FOLDER, WORKLOADS, AUTHORITY)
    assert "DOCKER_HOST" not in component_command(mine(), without).environment


def test_a_python_manager_serves_its_webhooks() -> None:
    conversion = {"strategy": "Webhook", "webhook": {"clientConfig": {"service": {"name": "x"}}}}
    names = {"plural": "fishes", "kind": "Fish"}
    definition: dict[str, Any] = {
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "fishes.sea.example"},
        "spec": {"group": "sea.example", "names": names, "versions": [], "conversion": conversion},
    }
    made = python_component(
        Provider(
            name="mine",
            type="ControlPlaneProvider",
            version="v0.1.0",
            module="mine",
            crds=[definition],
        )
    )
    assert made.listens_for == ("health", "webhooks")
    assert mine().listens_for == ("health",)
    ports: dict[Purpose, int] = {"health": 31000, "webhooks": 31001}
    placement = Placement("127.64.0.9", ports, FOLDER, WORKLOADS, AUTHORITY)
    assert component_command(made, placement).arguments[-2:] == (
        "--webhook-address=127.64.0.9:31001",
        "--cert-dir=/state/cluster-api",
    )


def test_an_extension_requires_a_client_certificate() -> None:
    ports: dict[Purpose, int] = {"health": 31000, "webhooks": 31001}
    made = component_command(
        mine("RuntimeExtensionProvider"),
        Placement("127.64.0.9", ports, FOLDER, WORKLOADS, AUTHORITY),
    )
    assert made.arguments[4:] == (
        "--host=127.64.0.9",
        "--port=31001",
        "--probes-port=31000",
        "--cert-dir=/state/cluster-api",
        "--client-ca=/state/ca.crt",
    )
    assert made.environment["KUBECONFIG"] == "/state/cluster-api/kubeconfig"
    assert made.environment["CAPELIN_STATE_FOLDER"] == "/state/workloads/runtime-extension-mine"


def test_extension_configs_are_applied_last() -> None:
    assert mine("RuntimeExtensionProvider").late == [EXTENSION]
    assert EXTENSION not in mine("RuntimeExtensionProvider").manifests


def test_only_extensions_listen_for_webhooks() -> None:
    assert mine("RuntimeExtensionProvider").listens_for == ("health", "webhooks")
    assert mine().listens_for == ("health",)


def choose(recorded: dict[str, int], *taken: int) -> dict[str, int]:
    ports = count(40000)
    return choose_ports(
        [core(), mine()],
        recorded,
        usable=lambda port: port not in taken,
        free=lambda: next(ports),
    )


def test_every_listener_gets_its_own_port() -> None:
    ports = choose({})
    assert ports == {
        "cluster-api/health": 40000,
        "cluster-api/webhooks": 40001,
        "control-plane-mine/health": 40002,
    }
    assert ports_of(core(), ports) == {"health": 40000, "webhooks": 40001}


def test_usable_ports_stay_the_same() -> None:
    recorded = {"cluster-api/health": 31000, "cluster-api/webhooks": 31001, "gone/health": 31002}
    assert choose(recorded, 31001) == {
        "cluster-api/health": 31000,
        "cluster-api/webhooks": 40000,
        "control-plane-mine/health": 40001,
    }


def test_every_port_is_used_once() -> None:
    assert choose({"cluster-api/health": 40001})["cluster-api/webhooks"] == 40000
    assert choose({"cluster-api/webhooks": 40000, "cluster-api/health": 40000}) == {
        "cluster-api/health": 40000,
        "cluster-api/webhooks": 40001,
        "control-plane-mine/health": 40002,
    }


def test_only_known_variables_are_inherited() -> None:
    variables = {
        "GOPROXY": "off",
        "GOFLAGS": "-mod=readonly",
        "CAPELIN_BACKENDS": "processes,pods",
        "CAPELIN_ENDPOINT_NETWORKS": "192.0.2.0/24",
        "CAPELIN_KMS_PLUGINS": "vault=/run/kms/vault/plugin.sock",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
        "GOOGLE_CREDENTIALS": "a secret",
        "GOOGLE_APPLICATION_CREDENTIALS": "/a/secret",
        "AWS_SECRET_ACCESS_KEY": "a secret",
    }
    assert inherited_variables(variables) == {
        "CAPELIN_BACKENDS": "processes,pods",
        "CAPELIN_ENDPOINT_NETWORKS": "192.0.2.0/24",
        "CAPELIN_KMS_PLUGINS": "vault=/run/kms/vault/plugin.sock",
        "GOFLAGS": "-mod=readonly",
        "GOPROXY": "off",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
    }


@pytest.mark.parametrize(
    ("configured", "networks"), [("", "127.64.0.0/10"), ("::1/128", "127.64.0.0/10,::1/128")]
)
def test_managers_may_connect_to_hosted_api_servers_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, configured: str, networks: str
) -> None:
    monkeypatch.delenv("CAPELIN_ALLOWED_NETWORKS", raising=False)
    if configured:
        monkeypatch.setenv("CAPELIN_ALLOWED_NETWORKS", configured)
    ports: dict[Purpose, int] = {"health": 31000, "webhooks": 31001}
    placement = Placement("127.64.0.9", ports, FOLDER, WORKLOADS, AUTHORITY)
    made = component_command(mine("InfrastructureProvider"), placement)
    assert made.environment["CAPELIN_ALLOWED_NETWORKS"] == networks
