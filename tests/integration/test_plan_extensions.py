"""A plan calls real extensions through the proxy of a real API server."""

import json
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from capelin.api.capi import ExtensionConfig
from capelin.api.core import Namespace, Pod
from capelin.client import Client
from capelin.testing.waiting import until
from capelin_cli.plan.extensions import RealExtensions, UnreachableError

from tests.extensions import certificates, example

from .hooked_cluster import PROGRAMS

NAME = "proxied"
DISCOVERY = "/hooks.runtime.cluster.x-k8s.io/v1alpha1/discovery"
EXTENSION = Path(__file__).parent / "in_place_extension.py"
REQUEST = json.dumps(
    {"apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "kind": "DiscoveryRequest"}
).encode()
CONFIG = ExtensionConfig.read(
    {
        "metadata": {"name": NAME},
        "spec": {"clientConfig": {"service": {"namespace": NAME, "name": NAME}}},
    }
)

pytestmark = pytest.mark.needs_programs(*PROGRAMS)


def own_address() -> str:
    """An address of this machine to which an API server forwards: it accepts no loopback one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # No packet leaves: the kernel only chooses a source address.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.fail("this machine has no other address than loopback ones")
        return str(probe.getsockname()[0])


@pytest.fixture(autouse=True)
async def namespace(management: Client) -> AsyncGenerator[None]:
    await management.apply(Namespace.of(NAME))
    yield
    await management.delete(Namespace, NAME)
    await until(lambda: management.find(Namespace, NAME), lambda found: found is None)


async def put_behind_a_service(client: Client, port: int) -> None:
    """Create a Service whose only pod is a program of this machine."""
    address, metadata = own_address(), {"name": NAME, "namespace": NAME}
    container = {"name": NAME, "image": NAME}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    await client.apply({**pod, "spec": {"containers": [container]}})
    # The API server forwards to addresses of pods only.
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    await client.patch(Pod, NAME, NAME, {"status": status}, subresource="status")
    named = {"name": "https", "protocol": "TCP"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata}
    await client.apply({**service, "spec": {"ports": [{**named, "port": 443}]}})
    endpoint = {"ip": address, "targetRef": {"kind": "Pod", **metadata}}
    subsets = [{"addresses": [endpoint], "ports": [{**named, "port": port}]}]
    endpoints = {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata}
    await client.apply({**endpoints, "subsets": subsets})


async def test_the_proxy_forwards_a_call(management: Client, tmp_path: Path) -> None:
    certificates(tmp_path)
    options = ("--host=0.0.0.0", "--allow-any-client")
    async with example(EXTENSION, tmp_path, *options) as running:
        await put_behind_a_service(management, running.port)
        answer = await RealExtensions(management).answer(CONFIG, DISCOVERY, REQUEST)
        handlers = json.loads(answer)["handlers"]
        assert {each["name"] for each in handlers} == {"can-update-machine-set", "update-machine"}


async def test_an_extension_that_requires_a_client_certificate_does_not_respond(
    management: Client, tmp_path: Path
) -> None:
    certificates(tmp_path)
    options = ("--host=0.0.0.0", f"--client-ca={tmp_path / 'ca.crt'}")
    async with example(EXTENSION, tmp_path, *options) as running:
        await put_behind_a_service(management, running.port)
        with pytest.raises(UnreachableError, match="reach service"):
            await RealExtensions(management).answer(CONFIG, DISCOVERY, REQUEST)
