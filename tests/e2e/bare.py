"""etcd and API server as bare pods, for comparison with a control plane."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import Node, Service
from capelin.client import Client
from capelin.controller import ObjectKey
from capelin.pki import new_ca, new_service_account_keys
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.backends.pods.exposure import api_server_service
from capelin_control_plane.backends.pods.membership import EtcdState
from capelin_control_plane.backends.pods.names import Names
from capelin_control_plane.backends.pods.objects import desired_objects, etcd_state, pki_secret
from capelin_control_plane.backends.pods.pki_secret import pki_data
from capelin_control_plane.desired.control_plane import desired_state
from capelin_control_plane.desired.instances import Endpoint
from capelin_control_plane.keys.certificates import Authorities

from .hosted import trust_anybody


class BarePods:
    """The pods of a control plane with one etcd member and one API server, without a provider."""

    def __init__(self, namespace: str, name: str, version: str, host: str) -> None:
        now = datetime.now(UTC)
        metadata = {"name": name, "namespace": namespace}
        spec = {
            "version": version,
            "backend": "Pods",
            "pods": {"exposure": {"type": "NodePort"}},
            "controlPlaneEndpoint": {"host": host},
        }
        desired = desired_state(
            CapelinControlPlane.read({"metadata": metadata, "spec": spec}),
            Cluster.read({"metadata": metadata, "spec": {}}),
            now,
        )
        names = Names.of(ObjectKey(namespace, name))
        authorities = Authorities(
            ca=new_ca("kubernetes", now=now),
            etcd=new_ca("etcd-ca", now=now),
            proxy=new_ca("front-proxy-ca", now=now),
            service_account=new_service_account_keys(),
        )
        service = api_server_service(desired, names)
        objects = desired_objects(desired, names, service)
        endpoint = Endpoint(names.api_server_host, host, desired.port)
        data, _ = pki_data(desired, authorities, names, endpoint, {})
        secret = pki_secret(desired, names, data, owner={"metadata": {"uid": ""}})
        # The owner only serves deletion, and nothing would wait for its UID here.
        del secret["metadata"]["ownerReferences"]
        claims: list[Any] = objects.etcd.manifest["spec"]["volumeClaimTemplates"]
        claim = names.claim(0)
        self._namespace, self._host = namespace, host
        self._service = names.of_component("kube-apiserver")
        self._manifests: list[Unstructured] = [
            *objects.supporting,
            secret,
            etcd_state(desired, names, EtcdState("new", (0,), 1)),
            *({**template, "metadata": {**metadata, "name": claim}} for template in claims),
            _pod(
                objects.etcd.manifest,
                {**metadata, "name": names.member(0)},
                hostname=names.member(0),
                subdomain=names.etcd_members,
                volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            ),
            _pod(objects.api_server.manifest, {**metadata, "name": f"{name}-kube-apiserver"}),
        ]

    async def start(self, client: Client) -> None:
        """Create everything at once, and wait until the API server is ready."""
        await asyncio.gather(*map(client.apply, self._manifests))
        service = await client.get(Service, self._service, self._namespace)
        port = service.spec.ports[0].node_port
        assert port is not None
        await until(lambda: _is_ready(self._host, port), within=240)


def _pod(workload: Unstructured, metadata: dict[str, Any], **spec: Any) -> Unstructured:
    template = workload["spec"]["template"]
    volumes = [*template["spec"]["volumes"], *spec.pop("volumes", ())]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], **metadata},
        "spec": {**template["spec"], **spec, "volumes": volumes},
    }


async def _is_ready(host: str, port: int) -> bool:
    """Whether /readyz answers 200."""
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(host, port, ssl=trust_anybody())
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n")
            answer = await reader.readline()
            writer.close()
    except (OSError, TimeoutError):
        return False
    return b" 200 " in answer


async def bare_pods(
    client: Client, namespace: str, names: Iterable[str], version: str
) -> list[BarePods]:
    """Bare pods by these names, with everything computed before they start."""
    (node,) = (await client.list(Node)).items
    host = next(
        address.address for address in node.status.addresses if address.type == "InternalIP"
    )
    return [BarePods(namespace, name, version, host) for name in names]
