"""How managers are started."""

import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from capelin.contract import ProviderType
from capelin.embedded.management.components import (
    Component,
    Placement,
    Purpose,
    choose_ports,
    component_command,
    inherited_variables,
    ports_of,
)
from capelin.embedded.management.providers import CORE, python_component, upstream_component
from capelin.provider import Provider

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
        CORE, version="v1.14.0", program=Path("/cache/core"), manifests=[DEPLOYMENT]
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


def test_a_go_manager_keeps_its_deployments_flags_but_those_that_speak_of_a_pod() -> None:
    place = Placement(
        "127.64.0.9", {"health": 31000, "webhooks": 31001}, FOLDER, WORKLOADS, AUTHORITY
    )
    assert component_command(core(), place).arguments == (
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


def test_a_manager_is_told_of_a_pod_that_stays_the_same() -> None:
    place = Placement(
        "127.64.0.9", {"health": 31000, "webhooks": 31001}, FOLDER, WORKLOADS, AUTHORITY
    )
    environment = component_command(core(), place).environment
    assert dict(environment) | {"POD_UID": "?"} == {
        "DOCKER_HOST": "",
        "POD_IP": "127.64.0.9",
        "POD_NAME": "cluster-api",
        "POD_NAMESPACE": "capi-system",
        "POD_UID": "?",
    }
    assert component_command(core(), place).hash == component_command(core(), place).hash


def test_a_python_manager_runs_in_this_interpreter_with_its_own_flags() -> None:
    place = Placement("127.64.0.9", {"health": 31000}, FOLDER, WORKLOADS, AUTHORITY)
    assert component_command(mine(), place).arguments == (
        sys.executable,
        "-m",
        "mine",
        "--concurrency=5",
        "--kubeconfig=/state/cluster-api/kubeconfig",
        "--health-address=127.64.0.9:31000",
        "--metrics-address=0",
    )


def test_an_extension_serves_hooks_to_those_who_show_a_certificate() -> None:
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


def test_what_needs_cluster_api_to_answer_is_sent_late() -> None:
    assert mine("RuntimeExtensionProvider").late == [EXTENSION]
    assert EXTENSION not in mine("RuntimeExtensionProvider").manifests


def test_what_is_called_gets_a_port_and_what_is_not_gets_none() -> None:
    assert mine("RuntimeExtensionProvider").listens_for == ("health", "webhooks")
    assert mine().listens_for == ("health",)


def chosen(recorded: dict[str, int], *taken: int) -> dict[str, int]:
    ports = count(40000)
    return choose_ports(
        [core(), mine()],
        recorded,
        usable=lambda port: port not in taken,
        free=lambda: next(ports),
    )


def test_everything_that_listens_gets_a_port_of_its_own() -> None:
    ports = chosen({})
    assert ports == {
        "cluster-api/health": 40000,
        "cluster-api/webhooks": 40001,
        "control-plane-mine/health": 40002,
    }
    assert ports_of(core(), ports) == {"health": 40000, "webhooks": 40001}


def test_ports_stay_while_they_can_be_used() -> None:
    recorded = {"cluster-api/health": 31000, "cluster-api/webhooks": 31001, "gone/health": 31002}
    assert chosen(recorded, 31001) == {
        "cluster-api/health": 31000,
        "cluster-api/webhooks": 40000,
        "control-plane-mine/health": 40001,
    }


def test_no_port_is_given_twice() -> None:
    assert chosen({"cluster-api/health": 40001})["cluster-api/webhooks"] == 40000
    assert chosen({"cluster-api/webhooks": 40000, "cluster-api/health": 40000}) == {
        "cluster-api/health": 40000,
        "cluster-api/webhooks": 40001,
        "control-plane-mine/health": 40002,
    }


def test_variables_are_inherited_by_name() -> None:
    variables = {
        "GOPROXY": "off",
        "GOFLAGS": "-mod=readonly",
        "GOOGLE_CREDENTIALS": "a secret",
        "GOOGLE_APPLICATION_CREDENTIALS": "/a/secret",
        "AWS_SECRET_ACCESS_KEY": "a secret",
    }
    assert inherited_variables(variables) == {"GOFLAGS": "-mod=readonly", "GOPROXY": "off"}


@pytest.mark.parametrize(
    ("chosen", "networks"), [("", "127.64.0.0/10"), ("::1/128", "127.64.0.0/10,::1/128")]
)
def test_managers_may_connect_to_hosted_api_servers_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, chosen: str, networks: str
) -> None:
    monkeypatch.delenv("CAPELIN_ALLOWED_NETWORKS", raising=False)
    if chosen:
        monkeypatch.setenv("CAPELIN_ALLOWED_NETWORKS", chosen)
    ports: dict[Purpose, int] = {"health": 31000, "webhooks": 31001}
    place = Placement("127.64.0.9", ports, FOLDER, WORKLOADS, AUTHORITY)
    made = component_command(mine("InfrastructureProvider"), place)
    assert made.environment["CAPELIN_ALLOWED_NETWORKS"] == networks
