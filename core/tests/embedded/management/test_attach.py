"""API servers that somebody else runs: which can be used, and what is said of the others."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from capelin.api import Unstructured
from capelin.api.core import ServiceAccount
from capelin.client import Client, Config, Server, User
from capelin.embedded.apiserver import ApiServer
from capelin.embedded.management import attach
from capelin.embedded.management.attach import (
    belongs_to_cluster_api,
    check_ownership,
    check_server_version,
    examine_server,
    find_config,
)
from capelin.embedded.management.environment import Environment, ExistingServer
from capelin.embedded.management.manifests import ENVIRONMENT_LABEL
from capelin.errors import InvalidInputError, UserError

URL = "https://127.64.0.9:6443"


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "demo")


def crd(group: str, mark: str | None = None, managers: tuple[str, ...] = ()) -> Unstructured:
    labels = {} if mark is None else {ENVIRONMENT_LABEL: mark}
    fields = [{"manager": each} for each in managers]
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
def test_supported_versions_are_taken(version: str) -> None:
    assert check_server_version(version, URL) == version


@pytest.mark.parametrize("version", ["v1.32.13", "v1.37.0", "v2.34.0", "1.34", ""])
def test_other_versions_are_refused_with_the_supported_ones(version: str) -> None:
    with pytest.raises(InvalidInputError, match=r"from v1\.33 to v1\.36"):
        check_server_version(version, URL)


def test_what_an_environment_put_there_itself_is_no_obstacle() -> None:
    check_ownership([], "demo.1", URL)
    check_ownership([crd("cluster.x-k8s.io", "demo.1")], "demo.1", URL)


def test_a_cluster_api_of_somebody_else_is_refused_with_who_put_it_there() -> None:
    there = [crd("cluster.x-k8s.io", managers=("clusterctl",)), crd("ipam.cluster.x-k8s.io")]
    with pytest.raises(InvalidInputError) as caught:
        check_ownership(there, "demo.1", URL)
    assert caught.value.message == f"The API server at {URL} already has a Cluster API."
    assert caught.value.reason.endswith("things.cluster.x-k8s.io and 1 more came from clusterctl.")


def test_another_environment_is_refused_by_its_name() -> None:
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
        # Policies for everything are none of Cluster API's.
        (webhook("*"), False),
    ],
)
def test_what_belongs_to_a_cluster_api(obj: Unstructured, belongs: bool) -> None:
    assert belongs_to_cluster_api(obj) is belongs


def test_the_api_server_of_before_is_the_one_where_no_other_is_named(
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


def test_unknown_context_lists_the_known_ones(environment: Environment, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(Config(Server(URL)).flattened())
    with pytest.raises(InvalidInputError, match='has no context "lab": there are capelin'):
        find_config(environment, path, "lab")


async def test_an_api_server_that_does_not_answer_is_refused(environment: Environment) -> None:
    with pytest.raises(UserError, match="is not usable") as caught:
        await examine_server(Config(Server("https://127.64.0.9:1")), environment, None)
    assert "127.64.0.9:1" in caught.value.reason


async def test_somebody_without_rights_is_refused(
    environment: Environment, client: Client, api_server: ApiServer, namespace: str
) -> None:
    await client.apply(ServiceAccount.of("poor", namespace))
    token = (await client.create_token("poor", namespace)).value
    server = Config.from_kubeconfig(api_server.kubeconfig).server
    with pytest.raises(InvalidInputError, match="not have enough permissions"):
        await examine_server(Config(server, User(token=token)), environment, None)


async def test_a_vacant_api_server_is_taken_if_it_can_call(
    environment: Environment, own_api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.from_kubeconfig(own_api_server.kubeconfig)
    found = await examine_server(config, environment, None)
    assert found.server.address == "127.0.0.1"
    assert found.server.mark.startswith("demo.")
    assert (await examine_server(config, environment, found.server)).server == found.server
    other = ExistingServer(
        cluster="another", version="v1.34.4", address="127.0.0.1", mark=found.server.mark
    )
    with pytest.raises(InvalidInputError, match="uses another cluster"):
        await examine_server(config, environment, other)
    # As one that has no way to this machine.
    monkeypatch.setattr(attach, "source_towards", Mock(return_value=None))
    monkeypatch.setattr(attach, "own_addresses", Mock(return_value=["255.255.255.255"]))
    with pytest.raises(UserError, match="cannot call this machine") as caught:
        await examine_server(config, environment, None)
    assert "it reached none of 255.255.255.255: " in caught.value.reason
    assert "dial tcp 255.255.255.255" in caught.value.reason
