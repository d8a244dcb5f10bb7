"""Fixtures of the pytest plugin."""

import http.client
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest
from annotated_types import Ge, Le
from capelin.api import Model, Object, crd, kind
from capelin.api.capi import Machine, MachineSet
from capelin.api.core import Namespace
from capelin.client import Client
from capelin.provider import Provider
from capelin_embedded.apiserver import ApiServer
from capelin_embedded.testing import administrator


def ready(server: ApiServer) -> str:
    trust = ssl.create_default_context(cafile=server.keys.ca("ca"))
    trust.load_cert_chain(*server.keys.files("admin"))
    connection = http.client.HTTPSConnection(
        server.listeners.address, server.listeners.port, context=trust, timeout=5
    )
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_the_shared_api_server_answers(api_server: ApiServer, kubeconfig: Path) -> None:
    assert ready(api_server) == "ok"
    assert api_server.url in kubeconfig.read_text()


class Spec(Model):
    size: Annotated[int, Ge(0), Le(10)] = 1


@kind(group="testing.capelin.dev", version="v1alpha1")
class Shoal(Object[Spec, Spec]):
    """Some fish."""


@kind(group="testing.capelin.dev", version="v1alpha1")
class School(Object[Spec, Spec]):
    """Some more fish."""


@kind(group="testing.capelin.dev", version="v1alpha1")
class Minnow(Object[Spec, Spec]):
    """A fish."""


async def test_the_client_connects_to_the_shared_api_server(client: Client) -> None:
    assert (await client.get(Namespace, "default")).name == "default"


async def test_a_namespace_exists(namespace: str, client: Client) -> None:
    live = await client.get(Namespace, namespace)
    assert live.metadata.deletion_timestamp is None


async def test_installed_kinds_can_be_used_at_once(
    install_crds: Callable[..., None], client: Client, namespace: str
) -> None:
    install_crds(Shoal, crd(School))
    for kind_ in (Shoal, School):
        created = await client.create(kind_.of("a", namespace, spec=Spec(size=3)))
        assert (await client.get(kind_, "a", namespace)) == created
    install_crds((Shoal,))


async def test_kinds_of_cluster_api_are_installed_by_name(
    install_crds: Callable[..., None], client: Client, namespace: str
) -> None:
    install_crds("machines.cluster.x-k8s.io", "devmachines.infrastructure.cluster.x-k8s.io")
    assert await client.find(Machine, "a", namespace) is None
    with pytest.raises(FileNotFoundError, match=r"cluster\.x-k8s\.io_machine\.yaml"):
        install_crds("machine.cluster.x-k8s.io")


async def test_installing_a_provider_installs_the_kinds_that_it_reads(
    install_crds: Callable[..., None], client: Client, namespace: str
) -> None:
    rules = [
        {"apiGroups": ["cluster.x-k8s.io"], "resources": ["machinesets", "machinesets/status"]},
        {"apiGroups": ["", "cluster.x-k8s.io"], "resources": ["*"]},
        {"apiGroups": ["testing.capelin.dev"], "resources": ["minnows"]},
    ]
    install_crds(
        Provider(
            name="shoals",
            type="InfrastructureProvider",
            version="v0.1.0",
            module="shoals",
            crds=[crd(Minnow)],
            rules=rules,
        )
    )
    assert await client.find(Minnow, "a", namespace) is None
    assert await client.find(MachineSet, "a", namespace) is None


def test_installing_a_kind_with_taken_names_fails(
    install_crds: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = crd(School)
    taken["metadata"]["name"] = "imposters.testing.capelin.dev"
    taken["spec"]["names"] |= {"plural": "imposters"}
    install_crds(School)
    monkeypatch.setattr(administrator, "SERVED_WITHIN", 1.0)
    with pytest.raises(
        TimeoutError, match=r"imposters\.testing\.capelin\.dev: NamesAccepted is False"
    ):
        install_crds(taken)
