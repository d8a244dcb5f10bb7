"""Existing API servers: requirements, and errors for unsuitable ones."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from capelin.api import Unstructured
from capelin.api.core import ServiceAccount
from capelin.client import Client, Config, Server, User
from capelin.errors import InvalidInputError, UserError
from capelin_embedded.apiserver import ApiServer
from capelin_embedded.management import attach
from capelin_embedded.management.attach import (
    belongs_to_cluster_api,
    check_ownership,
    check_server_version,
    examine_server,
    find_config,
)
from capelin_embedded.management.environment import Environment, ExistingServer
from capelin_embedded.management.manifests import ENVIRONMENT_LABEL

URL = "https://127.64.0.9:6443"


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "demo")


def crd(group: str, mark: str | None = None, managers: tuple[str, ...] = ()) -> Unstructured:
    labels = {} if mark is None else {ENVIRONMENT_LABEL: mark}
    fields = [{"manager": manager} for manager in managers]
    status = [{"manager": "kube-apiserver", "subresource": "status"}]
    return {
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"things.{group}",
            "labels": labels,
            "managedFields": fields + status,
        },
        "spec": {"group": group},
    }


@pytest.mark.parametrize("version", ["v1.33.0", "v1.34.4", "v1.36.3", "v1.35.1+k3s1"])
def test_supported_versions_are_accepted(version: str) -> None:
    assert check_server_version(version, URL) == version


@pytest.mark.parametrize("version", ["v1.32.13", "v1.37.0", "v2.34.0", "1.34", ""])
def test_the_error_for_another_version_lists_supported_ones(version: str) -> None:
    with pytest.raises(InvalidInputError, match=r"from v1\.33 to v1\.36"):
        check_server_version(version, URL)


def test_check_ownership_accepts_own_objects() -> None:
    check_ownership([], "demo.1", URL)
    check_ownership([crd("cluster.x-k8s.io", "demo.1")], "demo.1", URL)


def test_the_error_names_the_owner_of_an_existing_cluster_api() -> None:
    existing = [crd("cluster.x-k8s.io", managers=("clusterctl",)), crd("ipam.cluster.x-k8s.io")]
    with pytest.raises(InvalidInputError) as caught:
        check_ownership(existing, "demo.1", URL)
    assert caught.value.message == f"The API server at {URL} already has a Cluster API."
    assert caught.value.reason.endswith("things.cluster.x-k8s.io and 1 more came from clusterctl.")


def test_the_error_names_another_environment() -> None:
    with pytest.raises(InvalidInputError, match="capelin down -e other"):
        check_ownership([crd("cluster.x-k8s.io", "other.2")], "demo.1", URL)


def webhook(*groups: str) -> dict[str, Any]:
    rules = [{"apiGroups": [group]} for group in groups]
    return {
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "a"},
        "webhooks": [{"rules": rules}, {}],
    }


@pytest.mark.parametrize(
    ("obj", "belongs"),
    [
        (crd("cluster.x-k8s.io"), True),
        (crd("infrastructure.cluster.x-k8s.io"), True),
        (crd("mycluster.x-k8s.io"), False),
        (crd("example.com"), False),
        (webhook("apps", "controlplane.cluster.x-k8s.io"), True),
        # Webhooks for all groups do not belong to Cluster API.
        (webhook("*"), False),
    ],
)
def test_objects_with_groups_of_cluster_api_belong_to_it(obj: Unstructured, belongs: bool) -> None:
    assert belongs_to_cluster_api(obj) is belongs


def test_find_config_prefers_a_given_then_the_previous_kubeconfig(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(name: str) -> Path:
        path = tmp_path / f"{name}.kubeconfig"
        path.write_bytes(Config(Server(f"https://{name}:6443")).flattened())
        return path

    monkeypatch.setenv("KUBECONFIG", str(written("current")))
    assert find_config(environment, None, None).server.address == "https://current:6443"
    environment.make_folders()
    written("before").rename(environment.kubeconfig)
    assert find_config(environment, None, None).server.address == "https://before:6443"
    named = find_config(environment, written("named"), None)
    assert named.server.address == "https://named:6443"


def test_the_error_for_an_unknown_context_lists_known_ones(
    environment: Environment, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(Config(Server(URL)).flattened())
    with pytest.raises(InvalidInputError, match='has no context "lab": there are capelin'):
        find_config(environment, path, "lab")


async def test_examine_server_rejects_an_unreachable_api_server(environment: Environment) -> None:
    with pytest.raises(UserError, match="is not usable") as caught:
        await examine_server(Config(Server("https://127.64.0.9:1")), environment, None)
    assert "127.64.0.9:1" in caught.value.reason


async def test_examine_server_rejects_a_user_without_permissions(
    environment: Environment, client: Client, api_server: ApiServer, namespace: str
) -> None:
    await client.apply(ServiceAccount.of("poor", namespace))
    token = (await client.create_token("poor", namespace)).value
    server = Config.from_kubeconfig(api_server.kubeconfig).server
    with pytest.raises(InvalidInputError, match="not have enough permissions"):
        await examine_server(Config(server, User(token=token)), environment, None)


async def test_examine_server_accepts_a_vacant_api_server_that_reaches_us(
    environment: Environment, own_api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.from_kubeconfig(own_api_server.kubeconfig)
    examined = await examine_server(config, environment, None)
    assert examined.server.address == "127.0.0.1"
    assert examined.server.mark.startswith("demo.")
    assert (await examine_server(config, environment, examined.server)).server == examined.server
    other = ExistingServer(
        cluster="another", version="v1.34.4", address="127.0.0.1", mark=examined.server.mark
    )
    with pytest.raises(InvalidInputError, match="uses another cluster"):
        await examine_server(config, environment, other)
    # Simulates an API server that cannot reach this machine.
    monkeypatch.setattr(attach, "source_towards", Mock(return_value=None))
    monkeypatch.setattr(attach, "own_addresses", Mock(return_value=["255.255.255.255"]))
    with pytest.raises(UserError, match="cannot call this machine") as caught:
        await examine_server(config, environment, None)
    assert "it reached none of 255.255.255.255: " in caught.value.reason
    assert "dial tcp 255.255.255.255" in caught.value.reason
