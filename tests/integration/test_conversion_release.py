"""The second release of a provider converts and migrates the objects of its first release.

The chart and the component file run against an API server without nodes. The test starts the pods
as processes, fills the EndpointSlice of their Service, and issues the certificate in place of
cert-manager. The API server finds the pods by the Service, and verifies their certificate.
"""

import asyncio
import base64
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from capelin.api import Resource, Unstructured
from capelin.api.core import CustomResourceDefinition, Lease, Namespace
from capelin.client import ApiError, Client, Config, NotServed, User
from capelin.pki import issue, new_ca
from capelin.provider import Provider
from capelin.testing.waiting import until
from capelin_embedded.addresses import free_port, own_addresses
from capelin_embedded.apiserver import ApiServer, Settings
from capelin_embedded.binaries import Binaries
from capelin_embedded.management import render_template
from capelin_embedded.processes import kill_all
from capelin_embedded.testing.run import run_elsewhere
from capelin_release.components import FILES, helm
from capelin_release.repository import provider_installation, write_installation
from capelin_release.tools import HELM

from .repositories import ROOT, cert_manager_crds

EXAMPLE = ROOT / "examples" / "04-conversion"
SETTINGS = Settings(durable=False, arguments={"enable-aggregator-routing": "true"})
"""An API server without kube-proxy calls the endpoints of Services directly."""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.representative,
    pytest.mark.timeout(300),
    pytest.mark.needs_programs(HELM, *SETTINGS.programs),
]

GROUP = "infrastructure.cluster.x-k8s.io"
NAME = f"reams.{GROUP}"
OLD = Resource(GROUP, "v1alpha1", "Ream", "reams")
NEW = Resource(GROUP, "v1beta1", "Ream", "reams")
LABEL = "infrastructure-ream"
NAMESPACE = f"{LABEL}-system"
CERTIFICATES = Resource("cert-manager.io", "v1", "Certificate", "certificates")
DEPLOYMENTS = Resource("apps", "v1", "Deployment", "deployments")

Install = Callable[[str], Awaitable[None]]


@pytest.fixture(scope="module")
def provider() -> Generator[Provider]:
    """The provider of the example."""
    sys.path.insert(0, str(EXAMPLE))
    yield import_module("ream").provider()
    sys.path.remove(str(EXAMPLE))


def first_release(provider: Provider) -> Provider:
    """The provider before it had a second version."""

    def only_old(crd: Unstructured) -> Unstructured:
        (old,) = (version for version in crd["spec"]["versions"] if version["name"] == OLD.version)
        spec = {key: value for key, value in crd["spec"].items() if key != "conversion"}
        return {**crd, "spec": {**spec, "versions": [{**old, "storage": True}]}}

    return replace(provider, version="v0.1.0", crds=[only_old(crd) for crd in provider.crds])


@pytest.fixture
def api_server_with_routes(tmp_path: Path) -> Generator[ApiServer]:
    folder = tmp_path / "server"

    async def started() -> ApiServer:
        server = await ApiServer.prepare(folder, SETTINGS)
        await server.start()
        return server

    try:
        yield run_elsewhere(started())
    finally:
        run_elsewhere(kill_all(folder / "processes"))


@pytest.fixture
async def client(api_server_with_routes: ApiServer) -> AsyncGenerator[Client]:
    config = Config.from_kubeconfig(api_server_with_routes.kubeconfig)
    async with Client(config) as client:
        for crd in await cert_manager_crds():
            await client.apply(crd)
        await client.apply(Namespace.of(NAMESPACE))
        yield client


@pytest.fixture
async def releases(provider: Provider, tmp_path: Path) -> Path:
    """The folder of both releases."""
    for released in (first_release(provider), provider):
        version = released.version.removeprefix("v")
        installation = provider_installation(
            released, version=version, registry="registry.example", description="Paper."
        )
        await write_installation(
            tmp_path / "dist",
            installation,
            version=version,
            sources=ROOT / "clusterctl",
            modified=0,
        )
    return tmp_path / "dist"


@pytest.fixture
def install(
    request: pytest.FixtureRequest,
    client: Client,
    api_server_with_routes: ApiServer,
    releases: Path,
) -> Install:
    async def with_helm(version: str) -> None:
        chart = str(releases / f"ream-{version}.tgz")
        where = (f"--namespace={NAMESPACE}", f"--kubeconfig={api_server_with_routes.kubeconfig}")
        await helm(Binaries(), "upgrade", "--install", LABEL, chart, *where)

    async def with_components(version: str) -> None:
        file = FILES["InfrastructureProvider"]
        text = (releases / "clusterctl" / LABEL / f"v{version}" / file).read_text()
        for obj in render_template(text, {}):
            await client.apply(obj)

    return with_helm if request.param == "helm" else with_components


@asynccontextmanager
async def pods(client: Client, config: Config, folder: Path) -> AsyncGenerator[None]:
    """Run the pods of the Deployment as processes, with the certificate of their Service."""
    (deployment,) = (await client.list(DEPLOYMENTS, namespace=NAMESPACE)).items
    (certificate,) = (await client.list(CERTIFICATES, namespace=NAMESPACE)).items
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    await issue_certificate(client, certificate, folder)
    token = await client.create_token(pod["serviceAccountName"], NAMESPACE)
    user = replace(config, user=User(token=token.value), namespace=NAMESPACE)
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_bytes(user.flattened())
    address = next(address for address in own_addresses() if not address.startswith("127."))
    ports: list[int] = []
    async with AsyncExitStack() as stack:
        for _ in range(deployment["spec"]["replicas"]):
            port, health = free_port(address), free_port("127.0.0.1")
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "ream", *container["args"]),
                *(f"--kubeconfig={kubeconfig}", f"--cert-dir={folder}"),
                *(f"--webhook-address={address}:{port}", f"--health-address=127.0.0.1:{health}"),
                "--metrics-address=0",
                env={**os.environ, "PYTHONPATH": str(EXAMPLE)},
            )
            stack.push_async_callback(ended, process)
            probe = container["readinessProbe"]["httpGet"]["path"]
            await until(lambda health=health, probe=probe: answers(health, probe), within=60)
            ports.append(port)
        for index, port in enumerate(ports):
            await client.apply(endpoints(certificate["metadata"]["name"], index, address, port))
        yield


async def issue_certificate(client: Client, certificate: dict[str, Any], folder: Path) -> None:
    """Issue a certificate, and write its CA into the CRDs that ask for it, like cert-manager."""
    now = datetime.now(UTC)
    ca = new_ca("releases", now=now)
    names = certificate["spec"]["dnsNames"]
    pair = issue(ca, common_name=names[0], usages=["server"], dns_names=names, now=now)
    (folder / "tls.crt").write_bytes(pair.certificate_pem)
    (folder / "tls.key").write_bytes(pair.private_key_pem)
    wanted = f"{NAMESPACE}/{certificate['metadata']['name']}"
    bundle = {"caBundle": base64.b64encode(ca.certificate_pem).decode()}
    patch = {"spec": {"conversion": {"webhook": {"clientConfig": bundle}}}}
    definitions = await client.list(CustomResourceDefinition)
    for crd in definitions.items:
        annotations = crd.metadata.annotations or {}
        if annotations.get("cert-manager.io/inject-ca-from") == wanted:
            await client.patch(CustomResourceDefinition, crd.name, None, patch)


def endpoints(service: str, index: int, address: str, port: int) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{service}-{index}",
            "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "webhooks", "port": port, "protocol": "TCP"}],
    }


async def answers(port: int, path: str) -> bool:
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}{path}") as response,
        ):
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    await process.wait()


async def capelin(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "capelin_cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def is_served(client: Client, resource: Resource) -> bool:
    try:
        return resource.plural in {
            other.plural for other in await client.resources(resource.api_version)
        }
    except NotServed:
        return False


async def read(client: Client) -> Unstructured | None:
    """The object in the new version, or None as long as the API server cannot convert it."""
    try:
        return await client.find(NEW, "a", "default")
    except ApiError:
        return None


async def stored(client: Client) -> list[str]:
    return (await client.get(CustomResourceDefinition, NAME)).status.stored_versions


@pytest.mark.parametrize("install", ["helm", "components"], indirect=True)
async def test_objects_of_the_first_release_are_converted_and_migrated(
    client: Client, api_server_with_routes: ApiServer, install: Install, tmp_path: Path
) -> None:
    await install("0.1.0")
    await until(lambda: is_served(client, OLD))
    ream = {"apiVersion": OLD.api_version, "kind": "Ream", "spec": {"pages": 5}}
    await client.create({**ream, "metadata": {"name": "a", "namespace": "default"}})

    await install("0.2.0")
    kubeconfig = api_server_with_routes.kubeconfig
    async with pods(client, Config.from_kubeconfig(kubeconfig), tmp_path):
        assert (await until(lambda: read(client)))["spec"]["sheets"] == 3
        assert (await client.get(OLD, "a", "default"))["spec"]["pages"] == 5
        # Its permissions suffice for the lease.
        await until(lambda: client.find(Lease, "capelin-ream", NAMESPACE))
        assert await stored(client) == ["v1alpha1", "v1beta1"]

        where = f"--kubeconfig={kubeconfig}"
        assert NAME in await capelin("migrate", where)
        assert "; 1 objects to write" in await capelin("migrate", NAME, where, "--dry-run")
        assert "v1alpha1 can be removed" in await capelin("migrate", NAME, where)
        assert await stored(client) == ["v1beta1"]
    # Without pods, the API server reads only objects that are stored in the requested version.
    assert (await client.get(NEW, "a", "default"))["spec"]["sheets"] == 3
