"""Finds the clients of a workload cluster that still need an old CA or service account key."""

import base64
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from capelin.api import Resource, Unstructured
from capelin.api.capi import Machine
from capelin.client import Client
from capelin.contract import CLUSTER_NAME_LABEL, CONTROL_PLANE_LABEL
from capelin.pki import is_issued_by
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)

from capelin_control_plane.keys.certificates import Authorities
from capelin_control_plane.keys.rotation import Clients, NodeFacts, authority_name, key_id

NODE_ANNOTATION: Final = "controlplane.cluster.x-k8s.io/authority"
"""On a Node: the name of the CA of its kubelet's certificate."""
SIMULATED_ANNOTATION: Final = "capelin.cluster.x-k8s.io/simulated"
"""On a Node of the machine pool provider that has no kubelet."""
_KUBELET_SIGNER: Final = "kubernetes.io/kube-apiserver-client-kubelet"
_NODE_USER: Final = "system:node:"
_TOKEN_TYPE: Final = "kubernetes.io/service-account-token"  # noqa: S105 - a type
NODES: Final = Resource("", "v1", "Node", "nodes", namespaced=False)
_REQUESTS: Final = Resource(
    "certificates.k8s.io",
    "v1",
    "CertificateSigningRequest",
    "certificatesigningrequests",
    namespaced=False,
)
SECRETS: Final = Resource("", "v1", "Secret", "secrets")


async def find_clients(workload: Client, authorities: Authorities) -> Clients:
    """The clients that the API of a workload cluster shows.

    A Node whose kubelet got a certificate from the new CA is annotated: the request for the
    certificate is deleted after an hour.
    """
    name = authority_name(authorities.ca.certificate_pem)
    # One by one: a list of all Nodes takes much memory.
    nodes = [_node(item) async for item in workload.iterate(NODES)]
    old = {node.name for node in nodes if not node.simulated and node.authority != name}
    renewed: set[str] = set()
    if old:
        async for item in workload.iterate(_REQUESTS, fields={"spec.signerName": _KUBELET_SIGNER}):
            user = str(item.get("spec", {}).get("username", ""))
            encoded = item.get("status", {}).get("certificate")
            if (
                user.removeprefix(_NODE_USER) in old
                and encoded
                and is_issued_by(base64.b64decode(encoded), authorities.ca.certificate_pem)
            ):
                renewed.add(user.removeprefix(_NODE_USER))
    for node in sorted(renewed):
        await workload.patch(
            NODES, node, None, {"metadata": {"annotations": {NODE_ANNOTATION: name}}}
        )
    return Clients(
        nodes=[node for node in nodes if node.name not in renewed],
        tokens=[
            f"{item['metadata']['namespace']}/{item['metadata']['name']}"
            async for item in find_old_tokens(workload, account_key_id(authorities))
        ],
    )


async def find_old_tokens(workload: Client, key: str) -> AsyncGenerator[Unstructured]:
    """The Secrets with tokens that another service account key than this one has signed."""
    async for item in workload.iterate(SECRETS, fields={"type": _TOKEN_TYPE}):
        if has_old_token(item.get("data") or {}, key):
            yield item


async def machines_of(client: Client, namespace: str, cluster: str) -> list[Machine]:
    """The worker machines of a Cluster."""
    listed = await client.list(Machine, namespace, labels={CLUSTER_NAME_LABEL: cluster})
    return [it for it in listed.items if CONTROL_PLANE_LABEL not in it.metadata.labels]


def unjoined(machines: Iterable[Machine], since: datetime) -> list[str]:
    """Machines whose bootstrap data has only the old CA, and that have not joined yet."""
    return [
        machine.name
        for machine in machines
        if machine.status.node_ref is None
        and machine.metadata.deletion_timestamp is None
        and (machine.metadata.creation_timestamp or since) <= since
    ]


def with_ages_of_machines(
    nodes: Iterable[NodeFacts], machines: Iterable[Machine]
) -> list[NodeFacts]:
    """The Nodes, as old as their Machines. A Node object may have been created again."""
    created = {
        machine.status.node_ref.name: machine.metadata.creation_timestamp
        for machine in machines
        if machine.status.node_ref is not None
    }
    return [replace(node, created=created.get(node.name) or node.created) for node in nodes]


def has_old_token(data: Mapping[str, Any], key: str) -> bool:
    """Whether a Secret has a token that another key than this one has signed."""
    try:
        token = base64.b64decode(str(data.get("token", "")))
        header = token.split(b".")[0]
        found: Any = json.loads(base64.urlsafe_b64decode(header + b"=" * (-len(header) % 4)))
        return bool(token) and found.get("kid") != key
    except (ValueError, AttributeError):
        return False


def _node(item: Mapping[str, Any]) -> NodeFacts:
    metadata = item["metadata"]
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    return NodeFacts(
        name=metadata["name"],
        created=datetime.fromisoformat(metadata["creationTimestamp"]),
        simulated=SIMULATED_ANNOTATION in annotations,
        authority=annotations.get(NODE_ANNOTATION),
    )


def account_key_id(authorities: Authorities) -> str:
    """The ID of the service account key that signs."""
    key = load_pem_public_key(authorities.service_account.public_key_pem)
    return key_id(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
