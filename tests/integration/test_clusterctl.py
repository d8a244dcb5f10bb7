"""The real clusterctl with Capelin's release in a local repository."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import Namespace
from capelin.client import Client, Config
from capelin.testing.waiting import until
from capelin.yaml import read_all_yaml
from capelin_cli.status.readiness import wait_until_ready
from capelin_control_plane.provider import provider as control_plane
from capelin_embedded.apiserver import ApiServer
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.management import render_template
from capelin_embedded.testing.management import ManagementCluster
from capelin_machine_pool.provider import provider as machine_pool
from capelin_release.tools import HELM

from .repositories import (
    CLUSTER_API,
    POOLS,
    REGISTRY,
    CommandError,
    Repository,
    cert_manager_crds,
)

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.needs_programs("clusterctl", HELM, "kubectl"),
]

PROVIDERS = {provider.label: provider for provider in (control_plane(), machine_pool())}
VERSION = "0.1.0"
FLAVOURS = ("", "pool", "machines")


@pytest.fixture(scope="module")
async def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    repository = Repository(tmp_path_factory.mktemp("repository"))
    await repository.add_capelin(VERSION)
    await repository.add_cluster_api()
    repository.write_config(
        {
            "cluster-api": CLUSTER_API,
            "bootstrap-kubeadm": CLUSTER_API,
            **dict.fromkeys([*PROVIDERS, "runtime-extension-lifecycle"], f"v{VERSION}"),
        }
    )
    return repository


def keyed(objects: list[Unstructured]) -> dict[tuple[str, str], Unstructured]:
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects if obj}


async def test_the_release_is_a_clusterctl_repository_of_both_providers(
    repository: Repository,
) -> None:
    lines = (await repository.clusterctl("config", "repositories")).splitlines()
    found = [line.split()[:2] for line in lines if "/dist/" in line]
    assert ["capelin", "ControlPlaneProvider"] in found
    assert ["capelin", "InfrastructureProvider"] in found
    assert ["lifecycle", "RuntimeExtensionProvider"] in found


@pytest.mark.parametrize("label", [*PROVIDERS, "runtime-extension-lifecycle"])
async def test_clusterctl_generates_the_rendered_components(
    repository: Repository, label: str
) -> None:
    kind, _, name = label.rpartition("-")
    text = await repository.clusterctl("generate", "provider", f"--{kind}={name}:v{VERSION}")
    generated = keyed(list(read_all_yaml(text)))
    ours = keyed(render_template(repository.file(label, VERSION).read_text(), {}))
    assert generated.keys() == ours.keys()
    for key, obj in generated.items():
        labels = obj["metadata"]["labels"]
        assert labels["clusterctl.cluster.x-k8s.io"] == ""
        assert labels["cluster.x-k8s.io/provider"] == label
        for part in ("spec", "rules", "roleRef"):
            assert obj.get(part) == ours[key].get(part) or key[0] == "Deployment"


@pytest.mark.parametrize("label", [*PROVIDERS, "runtime-extension-lifecycle"])
async def test_clusterctl_describes_a_provider(repository: Repository, label: str) -> None:
    kind, _, name = label.rpartition("-")
    provider = f"--{kind}={name}:v{VERSION}"
    text = await repository.clusterctl("generate", "provider", provider, "--describe")
    assert f"{REGISTRY}/" in text
    assert ("CAPELIN_" in text) is (label in PROVIDERS)


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_cluster_of_every_flavour_becomes_available(
    repository: Repository,
    management: Client,
    management_cluster: ManagementCluster,
    flavour: str,
) -> None:
    name = f"flavour-{flavour or 'default'}"
    await management.apply(Namespace.of(name))
    arguments = [
        *("generate", "cluster", name, "--infrastructure=capelin", f"--target-namespace={name}"),
        f"--kubernetes-version={TESTED_KUBERNETES[-1]}",
        *("--control-plane-machine-count=1", "--worker-machine-count=2"),
        *([f"--flavor={flavour}"] if flavour else []),
    ]
    kubeconfig = management_cluster.kubeconfig
    text = await repository.clusterctl(*arguments, kubeconfig=kubeconfig)
    manifests = [obj for obj in read_all_yaml(text) if obj]
    kinds = {obj["kind"] for obj in manifests}
    assert ("ClusterClass" in kinds) is (flavour == "")
    try:
        for manifest in sorted(manifests, key=lambda obj: obj["kind"] == "Cluster"):
            await management.apply(manifest)
        progress: list[str] = []
        await wait_until_ready(management, name, name, 240, progress.append)
        described = await repository.clusterctl(
            "describe", "cluster", name, f"--namespace={name}", kubeconfig=kubeconfig
        )
        assert "CapelinControlPlane" in described
        assert "CapelinCluster" in described
        secret = await repository.clusterctl(
            "get", "kubeconfig", name, f"--namespace={name}", kubeconfig=kubeconfig
        )
        async with Client(Config.from_secret(secret.encode())) as workload:
            assert len(await nodes(workload)) == 2
    finally:
        await management.delete(Cluster, name, name)

        async def gone() -> bool:
            return await management.find(Cluster, name, name) is None

        await until(gone)


async def nodes(workload: Client) -> list[Any]:
    found = await workload.request("GET", "/api/v1/nodes")
    return found["items"]


@pytest.fixture
async def bare(own_api_server: ApiServer) -> AsyncGenerator[tuple[Client, Path]]:
    """An API server with only cert-manager's kinds."""
    async with Client(Config.from_kubeconfig(own_api_server.kubeconfig)) as client:
        for crd in await cert_manager_crds():
            await client.apply(crd)
        yield client, own_api_server.kubeconfig


async def installed(client: Client) -> dict[str, str]:
    """clusterctl's inventory: versions by provider."""
    path = "/apis/clusterctl.cluster.x-k8s.io/v1alpha3/providers"
    return {
        item["metadata"]["name"]: item["version"]
        for item in (await client.request("GET", path))["items"]
    }


async def cluster_roles(client: Client, label: str) -> set[str]:
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    selector = {"labelSelector": f"cluster.x-k8s.io/provider={label}"}
    found = await client.request("GET", path, parameters=selector)
    return {item["metadata"]["name"] for item in found["items"]}


async def kind_of(client: Client, name: str) -> Unstructured:
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    return await client.request("GET", path)


@pytest.mark.representative
async def test_init_upgrade_and_delete(bare: tuple[Client, Path], repository: Repository) -> None:
    client, kubeconfig = bare
    old = "0.1.0-alpha.1"
    await repository.add_older_capelin(old)
    flags = ("--core=cluster-api", "--bootstrap=kubeadm")
    await repository.clusterctl(
        *(
            "init",
            *flags,
            "--control-plane=capelin:v0.1.0-alpha.1",
            "--infrastructure=capelin:v0.1.0-alpha.1",
        ),
        kubeconfig=kubeconfig,
    )
    expected = {"cluster-api": CLUSTER_API, "bootstrap-kubeadm": CLUSTER_API}
    assert await installed(client) == expected | dict.fromkeys(PROVIDERS, f"v{old}")
    assert "infrastructure-capelin-system-old" in await cluster_roles(
        client, "infrastructure-capelin"
    )
    group, namespace = "infrastructure.cluster.x-k8s.io", "default"
    pool = {
        "apiVersion": f"{group}/v1alpha1",
        "kind": "CapelinMachinePool",
        "metadata": {"name": "kept", "namespace": namespace},
        "spec": {},
    }
    await client.create(pool)
    await repository.clusterctl(
        *("upgrade", "apply", f"--control-plane=capelin:v{VERSION}"),
        f"--infrastructure=capelin:v{VERSION}",
        kubeconfig=kubeconfig,
    )
    assert await installed(client) == expected | dict.fromkeys(PROVIDERS, f"v{VERSION}")
    assert (await kind_of(client, POOLS))["spec"]["versions"][0]["additionalPrinterColumns"]
    path = f"/apis/{group}/v1alpha1/namespaces/{namespace}/capelinmachinepools/kept"
    assert (await client.request("GET", path))["metadata"]["name"] == "kept"
    assert await cluster_roles(client, "infrastructure-capelin") == {
        *(f"infrastructure-capelin-system-{name}" for name in ("view", "edit", "operate")),
        *(
            f"infrastructure-capelin-system-infrastructure-capelin-{n}"
            for n in ("manager", "metrics")
        ),
    }

    await repository.clusterctl("delete", "--infrastructure=capelin", kubeconfig=kubeconfig)
    assert "infrastructure-capelin" not in await installed(client)
    assert await cluster_roles(client, "infrastructure-capelin") == set()
    assert (await kind_of(client, POOLS))["metadata"]["name"] == POOLS
    assert await cluster_roles(client, "control-plane-capelin")


async def test_second_instance_fails(bare: tuple[Client, Path], repository: Repository) -> None:
    _, kubeconfig = bare
    arguments = ("init", "--core=cluster-api", "--bootstrap=-", "--control-plane=-")
    for namespace in ("one", "two"):
        command = (*arguments, "--infrastructure=capelin", f"--target-namespace={namespace}")
        if namespace == "one":
            await repository.clusterctl(*command, kubeconfig=kubeconfig)
        else:
            with pytest.raises(CommandError, match="already"):
                await repository.clusterctl(*command[:1], *command[4:], kubeconfig=kubeconfig)
